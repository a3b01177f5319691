// The connecting side of a cuda_ipc endpoint. It opens the peer's memory and executes every op on
// this process's GPUs.
//
// How it comes up: the peer's hello names the endpoint; this side connects the lifeline and sends
// that name on it; the peer checks which process it is; then the endpoint is up. How it ends: no
// further copy begins. Once the copies under way are over, all memory of the peer is released (and
// closed soon). Then kQuiet is sent, which is the peer's proof, and then kDown is reported.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_DIALLED_H_
#define KVXFER_BACKENDS_CUDA_IPC_DIALLED_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "src/backends/cuda_ipc/copy_queue.h"
#include "src/backends/cuda_ipc/endpoint.h"
#include "src/backends/cuda_ipc/peer_region.h"
#include "src/core/plan/pair_walk.h"

namespace kvxfer::cuda_ipc {

class CudaIpcRegistration;

class CudaIpcDialledEndpoint final : public CudaIpcEndpoint, private CopyUser {
 public:
  CudaIpcDialledEndpoint(CudaIpcBackend* backend, net::PeerAddress control, MetadataAddress peer,
                         const HostIdentity& host);
  ~CudaIpcDialledEndpoint() override;

  // --- Endpoint ---
  EndpointInfo Describe() const override;
  void Authorize() override {}
  Posted Post(const Op& op) override;
  void Fence(FenceScope scope) override;
  // Unavailable: the peer's answer about the region is on its way; try again after the next Poll.
  // FailedPrecondition, PermissionDenied, InvalidArgument, ResourceExhausted: it cannot be
  // imported, and why.
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- CudaIpcEndpoint ---
  void SayHello() override {}
  void StopData() override;

 private:
  // Limits of ops that are not over: enough for the batches of a fast GPU, and little to be stopped
  // at the end.
  static constexpr size_t kMaxOps = 256;
  static constexpr uint64_t kMaxBytes = 32 * kMaxOpBytes;
  // The most ops that end inside Post between two Polls.
  static constexpr size_t kMaxAtOnce = 4096;

  // A region that was asked for, or that is known.
  struct Wanted {
    uint32_t rkey = 0;
    bool answered = false;                 // no further packet about it is due
    std::shared_ptr<PeerRegion> coming{};  // until it is imported
    std::weak_ptr<PeerRegion> known{};     // afterwards
    absl::Status failed{};                 // reported once
  };

  absl::Status OnFrame(std::span<const std::byte> frame) override;
  absl::Status MakeLifeline(const Hello& hello);
  std::string Path() const;
  void EndData(const absl::Status& why) override;
  bool IsQuiet() const override;
  void OnDetached() override;

  // --- dialled_regions.cc ---
  absl::Status OnPacket(Lifeline::Packet& packet) override;
  absl::Status OnRegion(const RegionPacket& packet);
  absl::Status OnPart(const PartPacket& packet, net::Fd file);
  absl::Status OnRefused(const RefusedPacket& packet);
  void OnForget(uint64_t region);
  void AskNext();
  void Answered(Wanted& wanted, absl::Status failed);
  absl::StatusOr<std::unique_ptr<RemoteKey>> MakeKey(const RemoteRegion& told, Wanted& wanted);
  void ReleaseAll();

  // --- ops ---
  absl::Status CheckOp(const Op& op);
  absl::Status CheckUnread(const Op& op);
  static absl::Status NotOfThis();
  absl::Status CheckBlocks(const Op& op, const PairWalk& blocks);
  absl::Status CheckRuns(const Op& op, const BlockRange& range);
  absl::Status CheckRun(const Run& run) const;
  absl::Status CheckSides(const CudaIpcRegistration* here, const CudaIpcRemoteKey* there,
                          OpKind kind);
  absl::Status CheckKey(const CudaIpcRemoteKey& key, OpKind kind) const;
  void OnCopied(const Op& op, const absl::Status& status) override;
  // Nothing is under way, and nothing begins.
  void BeQuiet();

  const MetadataAddress peer_;
  const HostIdentity host_;
  MemoryOwner owner_;
  bool dialled_ = false;  // the lifeline was connected
  bool ended_ = false;    // EndData has been called
  size_t ops_ = 0;        // ops that are not over
  uint64_t bytes_ = 0;    // their bytes
  // What CheckOp found last: the devices of the op's local memory, and its last two sides.
  std::vector<int> op_devices_;
  const CudaIpcRegistration* last_local_ = nullptr;
  const CudaIpcRemoteKey* last_key_ = nullptr;
  bool by_ids_ = false;            // and whether CopyQueue::Holds for all of its pairs
  uint64_t poll_ = 0;              // the Poll since which at_once_ counts
  size_t at_once_ = 0;             // ops that have ended inside Post since then
  std::vector<uint64_t> fencing_;  // one transfer for each kFenced that is due
  std::map<uint64_t, Wanted> wanted_;
  std::deque<uint64_t> to_ask_;
  size_t asked_ = 0;  // regions asked for and not answered
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_DIALLED_H_
