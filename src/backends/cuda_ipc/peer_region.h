// A peer's region as one endpoint knows it: the addresses of its allocations for the kernels of
// each local device.
//
// shared_ptr, because the agent's keys (there may be several) and the copies under way share it;
// the last one releases the allocations.
//
// Thread-safety: none; called by the agent's driver only.

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
  // InvalidArgument: the peer's description is not possible.
  static absl::StatusOr<std::shared_ptr<PeerRegion>> Begin(const RegionPacket& packet,
                                                           MemoryOwner owner);

  // InvalidArgument: this is not the next part.
  absl::Status Check(const PartPacket& packet) const;
  // Adds the part. Errors as OpenedTable::Find.
  absl::Status Add(const cuda::Driver* driver, OpenedTable& table, const PartPacket& packet,
                   net::Fd file);
  // Counts the part as received, in a region that will not be used.
  void Skip(const PartPacket& packet) {
    parts_.push_back({.base = packet.base, .bytes = packet.bytes});
  }
  // Opens the parts that are not open for `device`; an error is remembered. Unavailable: not yet
  // (OpenedMemory::AddressFor).
  absl::Status OpenMissing(int device);
  // All parts have been received.
  bool whole() const { return parts_.size() == expected_; }
  bool one_part() const { return expected_ == 1; }
  uint64_t base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  Access access() const { return access_; }
  const MemoryOwner& owner() const { return owner_; }
  // The devices for which it is open.
  std::vector<int> devices() const;

  // Its owner has deregistered it.
  void SetGone() { gone_ = true; }
  bool gone() const { return gone_; }
  // Releases all memory; the region can no longer be used.
  void Release();

  // Appends to `pieces` how `device` moves [remote, remote + bytes), which lies within the region,
  // to or from `local`. `round`: see WatchedSpan::Touch.
  absl::Status AddPieces(int device, OpKind kind, uint64_t local, uint64_t remote, uint64_t bytes,
                         uint64_t round, std::vector<cuda::Piece>& pieces);
  // Where `device` finds the region, if it is in one part: at one address. Nothing: it is in
  // several.
  absl::StatusOr<std::optional<uint64_t>> AddressFor(int device, uint64_t round);
  // How far the region is from `device`.
  cuda::Reach ReachFrom(int device) const;
  // True at the first call for a batch; batches are numbered from 1.
  bool FirstIn(uint64_t batch) { return std::exchange(last_batch_, batch) != batch; }
  // Memory of this process, which must be checked before it is copied; null: another process's
  // memory, which the mapping keeps alive.
  cuda::WatchedSpan* watched() { return watched_ ? &*watched_ : nullptr; }

 private:
  struct Part {
    uint64_t base = 0;
    uint64_t bytes = 0;
    uint64_t offset = 0;  // in its allocation
    std::shared_ptr<OpenedMemory> memory{};
  };
  // The region as one device sees it.
  struct View {
    int device = 0;
    std::vector<uint64_t> at{};  // the address of each part
    absl::Status why_not{};
  };

  PeerRegion(const RegionPacket& packet, MemoryOwner owner);
  View& ViewOf(int device);
  absl::StatusOr<const View*> OpenFor(int device);

  const uint64_t base_;
  const uint64_t bytes_;
  const Access access_;
  const size_t expected_;  // number of parts
  const MemoryOwner owner_;
  bool gone_ = false;
  bool released_ = false;
  std::vector<Part> parts_;
  std::vector<View> views_;
  // If it is memory of this process, until all parts are there.
  std::vector<cuda::Allocation> own_parts_;
  std::optional<cuda::WatchedSpan> watched_;
  size_t hint_ = 0;
  uint64_t last_batch_ = 0;
};

// What the agent holds for one region.
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
