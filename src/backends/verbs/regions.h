// Local memory as the devices know it, and keys to memory of peers.
//
// A key tells the rkey of each device of its owner: one byte for the form, four for the agent's own
// rkey, then five for each device (its number and, in the two upper bits of form 2, its penalty;
// its rkey); at most kMaxDevices. A device that failed, or that does not take the region, is left
// out: rails over it are of no use while the region is there.
//
// Lifetime: a registration may outlive its backend, and is then of no use.
// Thread-safety: none but DeviceMemory's; used by the backend's owner.

#ifndef KVXFER_BACKENDS_VERBS_REGIONS_H_
#define KVXFER_BACKENDS_VERBS_REGIONS_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/nearness.h"

namespace kvxfer::verbs {

class VerbsBackend;

// Memory that devices know: pinned, with the keys that each has for it. Made and let go on any
// thread, while the devices are there.
class DeviceMemory final : public Prepared {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() override { Close(); }
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  // With every device that works: large memory with all at once, each in a thread of its own. An
  // error, with every cause, only where none takes it.
  absl::Status Register(const MemorySpan& span, Access access,
                        std::span<const std::unique_ptr<Device>> devices);
  void Close();

  struct Hold {
    Device* device = nullptr;
    ibv_mr* mr = nullptr;
  };
  std::span<const Hold> holds() const { return holds_; }
  // OK where every device has it.
  const absl::Status& why_missing() const { return why_missing_; }

 private:
  std::vector<Hold> holds_;
  absl::Status why_missing_;
};

class VerbsRegistration final : public Registration {
 public:
  VerbsRegistration(VerbsBackend* backend, uint32_t rkey, DeviceMemory memory, RegionId id = {},
                    const Penalties& penalties = {});
  ~VerbsRegistration() override;

  std::string Key() const override;
  uint32_t lkey(size_t device) const { return lkeys_[device]; }
  uint32_t penalty(size_t device) const { return penalties_[device]; }
  bool has(size_t device) const { return (devices_ >> device & 1) != 0; }
  const absl::Status& why_missing() const { return memory_.why_missing(); }
  RegionId id() const { return id_; }
  // For keys that are told otherwise than by Key().
  uint32_t rkey_of(size_t device) const { return rkeys_[device]; }
  // The backend goes first.
  void Close();

 private:
  VerbsBackend* backend_;
  const uint32_t rkey_;
  const RegionId id_;
  const Penalties penalties_;
  DeviceMemory memory_;
  uint64_t devices_ = 0;
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
  uint32_t penalty(size_t device) const { return device < kMaxDevices ? penalties_[device] : 0; }
  bool has(size_t device) const { return device < kMaxDevices && (devices_ >> device & 1) != 0; }

 private:
  std::array<uint32_t, kMaxDevices> rkeys_{};
  Penalties penalties_{};
  uint64_t devices_ = 0;
  Holder* holder_ = nullptr;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_REGIONS_H_
