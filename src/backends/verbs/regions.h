// Local memory as the devices know it, and keys to memory of peers.
//
// A key tells the rkey of each device of its owner: one byte for the form, four for the agent's own
// rkey, then five for each device (its number and, in the two upper bits of form 2, its penalty;
// its rkey); at most kMaxDevices. A device that failed, or that does not take the region, is left
// out: rails over it are of no use while the region is there.
//
// The key of a region in pieces (pieces.h) has form 3: after the agent's rkey one byte for the
// number of devices and four for the number of runs of equal pieces; then each device (number and
// penalty, as above), each run (four bytes for how many pieces, eight for the bytes of each), and
// for each device the rkey of each piece.
//
// Lifetime: a registration may outlive its backend, and is then of no use.
// Thread-safety: none but DeviceMemory's; used by the backend's owner.

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
#include "src/backends/verbs/pieces.h"

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
  // The same of GPU memory.
  absl::Status Register(const GpuMemory& memory, Access access,
                        std::span<const std::unique_ptr<Device>> devices);
  void Close();

  struct Hold {
    Device* device = nullptr;
    ibv_mr* mr = nullptr;  // of the whole, or of a piece: then those of a device follow each other
  };
  std::span<const Hold> holds() const { return holds_; }
  // The pieces that devices know it in; null: each knows it as one.
  const PieceTable* pieces() const { return pieces_.get(); }
  // Of memory in pieces: the keys of each, by device.
  struct Known {
    const Device* device = nullptr;
    std::vector<uint32_t> lkeys{};
    std::vector<uint32_t> rkeys{};
  };
  std::vector<Known> ByDevice() const;
  // Whose memory it is; null: the host's.
  const cuda::Device* gpu() const { return gpu_; }
  const cuda::Driver* driver() const { return driver_; }
  // OK where every device has it.
  const absl::Status& why_missing() const { return why_missing_; }

 private:
  // Calls `one` for each device, in threads of their own where that is worth it.
  static void OfEach(size_t devices, size_t bytes, const std::function<void(size_t)>& one);
  void Miss(const absl::Status& why);

  std::vector<Hold> holds_;
  std::unique_ptr<const PieceTable> pieces_;
  const cuda::Driver* driver_ = nullptr;
  const cuda::Device* gpu_ = nullptr;
  absl::Status why_missing_;
};

// Whether peers can be told of so many pieces with so many devices: ResourceExhausted.
absl::Status CheckKeyBytes(const PieceTable& pieces, size_t devices);

class VerbsRegistration final : public Registration {
 public:
  VerbsRegistration(VerbsBackend* backend, uint32_t rkey, DeviceMemory memory, RegionId id = {},
                    const Penalties& penalties = {});
  ~VerbsRegistration() override;

  std::string Key() const override;
  // Of a region in one piece.
  uint32_t lkey(size_t device) const { return lkeys_[device]; }
  // Null: it is in one.
  const PieceKeys* pieces() const { return pieces_.get(); }
  // Null: host memory. The CPU can touch no other.
  const cuda::Device* gpu() const { return memory_.gpu(); }
  uint32_t penalty(size_t device) const { return penalties_[device]; }
  bool has(size_t device) const { return (devices_ >> device & 1) != 0; }
  const absl::Status& why_missing() const { return memory_.why_missing(); }
  RegionId id() const { return id_; }
  // For keys that are told otherwise than by Key().
  uint32_t rkey_of(size_t device) const { return rkeys_[device]; }
  // The backend goes first.
  void Close();

 private:
  // How a key names a device: its number, and its penalty.
  std::byte Told(const Device& device) const;
  std::vector<std::byte> KeyOfOne() const;
  std::vector<std::byte> KeyOfPieces() const;

  VerbsBackend* backend_;
  const uint32_t rkey_;
  const RegionId id_;
  const Penalties penalties_;
  DeviceMemory memory_;
  uint64_t devices_ = 0;
  std::array<uint32_t, kMaxDevices> lkeys_{};
  std::array<uint32_t, kMaxDevices> rkeys_{};
  std::unique_ptr<PieceKeys> pieces_;
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
  // Of a region in one piece.
  uint32_t rkey(size_t device) const { return rkeys_[device]; }
  // Null: it is in one.
  const PieceKeys* pieces() const { return pieces_.get(); }
  uint32_t penalty(size_t device) const { return device < kMaxDevices ? penalties_[device] : 0; }
  bool has(size_t device) const { return device < kMaxDevices && (devices_ >> device & 1) != 0; }

 private:
  // Its number.
  size_t AddDevice(std::byte told);
  // `bytes` from behind the agent's rkey on. False: it makes no sense.
  bool DecodePieces(const RemoteRegion& region, std::span<const std::byte> bytes);

  std::array<uint32_t, kMaxDevices> rkeys_{};
  std::unique_ptr<PieceKeys> pieces_;
  Penalties penalties_{};
  uint64_t devices_ = 0;
  Holder* holder_ = nullptr;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_REGIONS_H_
