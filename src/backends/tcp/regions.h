// The local regions that peers may reach, by rkey, and the keys to regions of peers.
//
// Every run of every frame is looked up here, so a look-up is an array access for the regions used
// last and a hash look-up else.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_TCP_REGIONS_H_
#define KVXFER_BACKENDS_TCP_REGIONS_H_

#include <array>
#include <cstdint>
#include <string>
#include <unordered_map>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/tcp/frames.h"

namespace kvxfer::tcp {

class TcpBackend;

class TcpRegistration final : public Registration {
 public:
  TcpRegistration(TcpBackend* backend, const LocalRegion& region)
      : backend_(backend),
        rkey_(region.rkey),
        base_(reinterpret_cast<uint64_t>(region.span.data)),
        bytes_(region.span.bytes),
        access_(region.access) {}
  ~TcpRegistration() override;

  uint32_t rkey() const { return rkey_; }
  bool Grants(const WireRun& run, Access wanted) const {
    return Allows(access_, wanted) && run.address >= base_ && run.bytes <= bytes_ &&
           run.address - base_ <= bytes_ - run.bytes;
  }
  // Why Grants says no, for a person.
  std::string WhyNot(const WireRun& run, Access wanted) const;
  // The backend is gone.
  void Detach() { backend_ = nullptr; }

 private:
  TcpBackend* backend_;
  const uint32_t rkey_;
  const uint64_t base_;
  const uint64_t bytes_;
  const Access access_;
};

class TcpRemoteKey final : public RemoteKey {
 public:
  explicit TcpRemoteKey(uint32_t rkey) : rkey_(rkey) {}
  uint32_t rkey() const { return rkey_; }

 private:
  const uint32_t rkey_;
};

class RegionMap {
 public:
  ~RegionMap();

  // False: the rkey is taken.
  bool Insert(TcpRegistration* registration);
  void Erase(const TcpRegistration& registration);

  // The registration that grants `wanted` for all of `run`. PermissionDenied names rkey, address
  // and reason.
  absl::StatusOr<const TcpRegistration*> Check(const WireRun& run, Access wanted);

 private:
  TcpRegistration* Find(uint32_t rkey);

  std::unordered_map<uint32_t, TcpRegistration*> by_rkey_;
  std::array<TcpRegistration*, 64> recent_{};  // by the low bits of the rkey
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_REGIONS_H_
