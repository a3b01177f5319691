// A region of a peer as one link knows it: where its allocations are for the kernels of each local
// device.
//
// Shared (shared_ptr) by the keys that the agent holds, of which there may be several, and by the
// copies under way; whichever goes last lets go of the allocations.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_CUDA_IPC_PEER_REGION_H_
#define KVXFER_BACKENDS_CUDA_IPC_PEER_REGION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/backends/cuda_ipc/opened.h"
#include "src/backends/cuda_ipc/wire.h"
#include "src/cuda/copier.h"
#include "src/cuda/watched_span.h"

namespace kvxfer::cuda_ipc {

class PeerRegion {
 public:
  // InvalidArgument: what the peer says makes no sense.
  static absl::StatusOr<std::shared_ptr<PeerRegion>> Begin(const RegionPacket& packet,
                                                           MemoryOwner owner);

  // InvalidArgument: this is not the next part.
  absl::Status Check(const PartPacket& packet) const;
  // Adds it. As OpenedTable::Find.
  absl::Status Add(const cuda::Driver* driver, OpenedTable& table, const PartPacket& packet,
                   net::Fd file);
  // Counts it as there, in a region that is of no use.
  void Skip(const PartPacket& packet) {
    parts_.push_back({.base = packet.base, .bytes = packet.bytes});
  }
  // Opens for `device` the parts that it has not opened, or remembers why that cannot be.
  // Unavailable: not yet (OpenedMemory::AddressFor).
  absl::Status OpenMissing(int device);
  // All parts are there.
  bool whole() const { return parts_.size() == expected_; }
  uint64_t base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  Access access() const { return access_; }
  const MemoryOwner& owner() const { return owner_; }
  // Devices that have opened it.
  std::vector<int> devices() const;

  // Its owner has deregistered it.
  void SetGone() { gone_ = true; }
  bool gone() const { return gone_; }
  // Lets go of all memory; of no use any more.
  void Release();

  // Appends to `pieces` how `device` moves [remote, remote + bytes), which is within the region, to
  // or from `local`. `batch`: as WatchedSpan::Touch.
  absl::Status AddPieces(int device, OpKind kind, uint64_t local, uint64_t remote, uint64_t bytes,
                         uint64_t batch, std::vector<cuda::Piece>& pieces);
  // True at the first call with that number, from AddPieces' batches.
  bool FirstIn(uint64_t batch) { return std::exchange(last_batch_, batch) != batch; }
  // Memory of this process, which has to be asked whether it is there still; null: another's, which
  // a mapping keeps.
  cuda::WatchedSpan* watched() { return watched_ ? &*watched_ : nullptr; }

 private:
  struct Part {
    uint64_t base = 0;
    uint64_t bytes = 0;
    uint64_t offset = 0;  // in its allocation
    std::shared_ptr<OpenedMemory> memory{};
  };
  // For one device.
  struct View {
    int device = 0;
    std::vector<uint64_t> at{};  // where each part begins
    absl::Status why_not{};
  };

  PeerRegion(const RegionPacket& packet, MemoryOwner owner);
  View& ViewOf(int device);
  absl::StatusOr<const View*> OpenFor(int device);

  const uint64_t base_;
  const uint64_t bytes_;
  const Access access_;
  const size_t expected_;  // parts
  const MemoryOwner owner_;
  bool gone_ = false;
  bool released_ = false;
  std::vector<Part> parts_;
  std::vector<View> views_;
  std::vector<cuda::Allocation> own_parts_;  // of memory of this process, until it is whole
  std::optional<cuda::WatchedSpan> watched_;
  size_t hint_ = 0;
  uint64_t last_batch_ = 0;
};

// What the agent holds of one.
class CudaIpcRemoteKey final : public RemoteKey {
 public:
  CudaIpcRemoteKey(const Endpoint* endpoint, const RemoteRegion& told,
                   std::shared_ptr<PeerRegion> region)
      : endpoint_(endpoint), told_(told), region_(std::move(region)) {}

  const Endpoint* endpoint() const { return endpoint_; }
  const RemoteRegion& told() const { return told_; }
  const std::shared_ptr<PeerRegion>& region() const { return region_; }

 private:
  const Endpoint* const endpoint_;
  const RemoteRegion told_;
  const std::shared_ptr<PeerRegion> region_;
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_PEER_REGION_H_
