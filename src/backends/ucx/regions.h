// The local regions that peers may reach, by rkey, and the keys to regions of peers.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_UCX_REGIONS_H_
#define KVXFER_BACKENDS_UCX_REGIONS_H_

#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/backends/ucx/frames.h"

namespace kvxfer::ucx {

class UcxRegistration;

// Outlived by registrations: the agent may close those later.
class RegionMap {
 public:
  ~RegionMap();

  // False: the rkey is taken.
  bool Insert(UcxRegistration* registration);
  void Erase(const UcxRegistration& registration);

  // PermissionDenied names rkey, address and reason unless a region grants `wanted` for all of
  // `piece`.
  absl::Status Check(const Piece& piece, Access wanted);
  bool Knows(uint32_t rkey) const { return by_rkey_.contains(rkey); }

 private:
  std::unordered_map<uint32_t, UcxRegistration*> by_rkey_;
  UcxRegistration* recent_ = nullptr;  // the one found last
};

class UcxRegistration final : public Registration {
 public:
  UcxRegistration(RegionMap* regions, const LocalRegion& region);
  ~UcxRegistration() override;

  uint32_t rkey() const { return rkey_; }
  bool Grants(const Piece& piece, Access wanted) const {
    return Allows(access_, wanted) && piece.address >= base_ && piece.bytes <= bytes_ &&
           piece.address - base_ <= bytes_ - piece.bytes;
  }
  // Why Grants says no, for a person.
  std::string WhyNot(const Piece& piece, Access wanted) const;
  // The backend is gone.
  void Detach() { regions_ = nullptr; }

 private:
  RegionMap* regions_;
  const uint32_t rkey_;
  const uint64_t base_;
  const uint64_t bytes_;
  const Access access_;
};

class UcxRemoteKey final : public RemoteKey {
 public:
  explicit UcxRemoteKey(uint32_t rkey) : rkey_(rkey) {}
  uint32_t rkey() const { return rkey_; }

 private:
  const uint32_t rkey_;
};

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_REGIONS_H_
