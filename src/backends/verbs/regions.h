// Local memory as the devices know it, and keys to memory of peers.
//
// A key lists the rkey of each device of its owner: one byte for the form, four for the agent's own
// rkey, then five for each device (its number and, in the two upper bits in form 2, its penalty;
// its rkey); at most kMaxDevices. A device that failed, or that does not take the region, is left
// out: rails over it cannot be used while the region exists.
//
// The key of a region in parts (part_table.h) has form 3. After the agent's rkey come one byte for
// the number of devices and four for the number of runs of equal parts; then each device (number
// and penalty, as above), each run (four bytes for the number of parts, eight for the size of
// each), and for each device the rkey of each part.
//
// Lifetime: a registration may outlive its backend; it then does nothing.
// Thread-safety: DeviceMemory and VerbsRegistration may be made on any thread; everything else is
// called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_REGIONS_H_
#define KVXFER_BACKENDS_VERBS_REGIONS_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/gpu_memory.h"
#include "src/backends/verbs/nearness.h"
#include "src/backends/verbs/part_table.h"

namespace kvxfer::verbs {

class VerbsBackend;

// Memory that is registered with devices: pinned, with each device's keys. May be made and
// destroyed on any thread while the devices exist.
class DeviceMemory {
 public:
  DeviceMemory() = default;
  ~DeviceMemory() { Close(); }
  DeviceMemory(DeviceMemory&& other) noexcept { *this = std::move(other); }
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;

  // Registers with every device that works; large memory with all at once, each in its own thread.
  // An error, with every cause, only if no device takes it.
  absl::Status Register(const MemorySpan& span, Access access,
                        std::span<const std::unique_ptr<Device>> devices);
  // The same for GPU memory.
  absl::Status Register(const GpuMemory& memory, Access access,
                        std::span<const std::unique_ptr<Device>> devices);
  void Close();

  struct Hold {
    Device* device = nullptr;
    // The registration of the whole, or of a part; the parts of one device are consecutive.
    ibv_mr* mr = nullptr;
  };
  std::span<const Hold> holds() const { return holds_; }
  // The parts that devices know; null: each device knows the whole.
  const PartTable* parts() const { return parts_.get(); }
  // For memory in parts: the keys of all parts with one device.
  struct Known {
    const Device* device = nullptr;
    std::vector<uint32_t> lkeys{};
    std::vector<uint32_t> rkeys{};
  };
  std::vector<Known> ByDevice() const;
  // The GPU whose memory it is; null: host memory.
  const cuda::Device* gpu() const { return gpu_; }
  const cuda::Driver* driver() const { return driver_; }
  // OK: every device has it.
  const absl::Status& why_missing() const { return why_missing_; }

 private:
  // Calls `one` for each device, in separate threads if the memory is large.
  static void OfEach(size_t devices, size_t bytes, const std::function<void(size_t)>& one);
  void Miss(const absl::Status& why);

  std::vector<Hold> holds_;
  std::unique_ptr<const PartTable> parts_;
  const cuda::Driver* driver_ = nullptr;
  const cuda::Device* gpu_ = nullptr;
  absl::Status why_missing_;
};

// ResourceExhausted: metadata cannot hold keys for that many parts and devices.
absl::Status CheckKeyBytes(const PartTable& parts, size_t devices);

class VerbsRegistration final : public Registration {
 public:
  // `backend` may be null: nobody is told of the end then.
  VerbsRegistration(VerbsBackend* backend, const LocalRegion& region, DeviceMemory memory,
                    const Penalties& penalties = {});
  ~VerbsRegistration() override;

  // For a region in one part.
  uint32_t lkey(size_t device) const { return lkeys_[device]; }
  // Null: it is in one part.
  const PartKeys* parts() const { return parts_.get(); }
  // Null: host memory, which the CPU can read; it cannot read GPU memory.
  const cuda::Device* gpu() const { return memory_.gpu(); }
  const cuda::Driver* driver() const { return memory_.driver(); }
  uint32_t penalty(size_t device) const { return penalties_[device]; }
  bool has(size_t device) const { return (devices_ >> device & 1) != 0; }
  const absl::Status& why_missing() const { return memory_.why_missing(); }
  // For a person: "the region of 4096 bytes at 0x7f0000".
  std::string What() const;
  // For keys that are passed to a peer other than by `key`.
  uint32_t rkey_of(size_t device) const { return rkeys_[device]; }
  // The backend is being destroyed first.
  void Close();

 private:
  // How a key encodes a device: its number and its penalty.
  std::byte DeviceByte(const Device& device) const;
  std::string MakeKey(uint32_t rkey) const;
  std::vector<std::byte> KeyOfOne() const;
  std::vector<std::byte> KeyOfParts() const;

  VerbsBackend* backend_;
  const MemorySpan span_;
  const Penalties penalties_;
  DeviceMemory memory_;
  uint64_t devices_ = 0;
  std::array<uint32_t, kMaxDevices> lkeys_{};
  std::array<uint32_t, kMaxDevices> rkeys_{};
  std::unique_ptr<PartKeys> parts_;
};

class VerbsRemoteKey final : public RemoteKey {
 public:
  // Is notified when a key is closed.
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
  // For a region in one part.
  uint32_t rkey(size_t device) const { return rkeys_[device]; }
  // Null: it is in one part.
  const PartKeys* parts() const { return parts_.get(); }
  uint32_t penalty(size_t device) const { return device < kMaxDevices ? penalties_[device] : 0; }
  bool has(size_t device) const { return device < kMaxDevices && (devices_ >> device & 1) != 0; }

 private:
  // Returns the device's number.
  size_t AddDevice(std::byte told);
  // `bytes` begins behind the agent's rkey. False: the encoding is invalid.
  bool DecodeParts(const RemoteRegion& region, std::span<const std::byte> bytes);

  std::array<uint32_t, kMaxDevices> rkeys_{};
  std::unique_ptr<PartKeys> parts_;
  Penalties penalties_{};
  uint64_t devices_ = 0;
  Holder* holder_ = nullptr;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_REGIONS_H_
