// Local memory as the devices know it, and keys to memory of peers.
//
// A key tells the rkey of each device of its owner: one byte for the form, four for the agent's own
// rkey, then five for each device (its number, its rkey); at most kMaxDevices. A device that
// failed, or that does not take the region, is left out: rails over it are of no use while the
// region is there.
//
// Lifetime: a registration may outlive its backend, and is then of no use.
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_VERBS_REGIONS_H_
#define KVXFER_BACKENDS_VERBS_REGIONS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/device.h"

namespace kvxfer::verbs {

inline constexpr size_t kMaxDevices = 64;

class VerbsBackend;

class VerbsRegistration final : public Registration {
 public:
  VerbsRegistration(VerbsBackend* backend, const LocalRegion& region)
      : backend_(backend), region_(region) {}
  ~VerbsRegistration() override;

  // With every device: large regions with all at once, each in a thread of its own. An error, with
  // every cause, only where none takes it.
  absl::Status Register(std::span<const std::unique_ptr<Device>> devices);
  std::string Key() const override;
  uint32_t lkey(size_t device) const { return lkeys_[device]; }
  bool has(size_t device) const { return (devices_ >> device & 1) != 0; }
  // OK where every device has it.
  const absl::Status& why_missing() const { return why_missing_; }
  RegionId id() const { return region_.id; }
  // For keys that are told otherwise than by Key().
  uint32_t rkey_of(size_t device) const { return rkeys_[device]; }
  // The backend goes first.
  void Close();

 private:
  struct Hold {
    Device* device = nullptr;
    ibv_mr* mr = nullptr;
  };
  VerbsBackend* backend_;
  const LocalRegion region_;
  std::vector<Hold> holds_;
  uint64_t devices_ = 0;
  absl::Status why_missing_;
  std::array<uint32_t, kMaxDevices> lkeys_{};
  std::array<uint32_t, kMaxDevices> rkeys_{};
};

class VerbsRemoteKey final : public RemoteKey {
 public:
  // Who wants to know when a key is closed.
  class Holder {
   public:
    virtual ~Holder() = default;
    virtual void OnClosed(const VerbsRemoteKey& key) = 0;
  };

  ~VerbsRemoteKey() override {
    if (holder_ != nullptr) holder_->OnClosed(*this);
  }
  void set_holder(Holder* holder) { holder_ = holder; }
  static absl::StatusOr<std::unique_ptr<VerbsRemoteKey>> Decode(const RemoteRegion& region,
                                                                std::string_view key);
  uint32_t rkey(size_t device) const { return rkeys_[device]; }
  bool has(size_t device) const { return device < kMaxDevices && (devices_ >> device & 1) != 0; }

 private:
  std::array<uint32_t, kMaxDevices> rkeys_{};
  uint64_t devices_ = 0;
  Holder* holder_ = nullptr;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_REGIONS_H_
