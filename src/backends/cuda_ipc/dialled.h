// The connecting side of a link: opens the peer's memory, and has this process's GPUs do every op.
//
// Life: the peer's hello names the link; the lifeline is made and says so; the peer has looked at
// whose process it is: up. At its end no copy begins any more; once those under way are over all
// memory of the peer is let go of (and closed soon), then the peer is told, which is its proof,
// then comes kDown.
//
// Thread-safety: none; used by the backend's owner.

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
#include "src/backends/cuda_ipc/link.h"
#include "src/backends/cuda_ipc/peer_region.h"

namespace kvxfer::cuda_ipc {

class DialledLink final : public Link, private CopyUser {
 public:
  DialledLink(CudaIpcBackend* backend, net::PeerAddress control, Whereabouts peer,
              const HostIdentity& host);
  ~DialledLink() override;

  // --- Endpoint ---
  std::string Describe() const override;
  void Authorize() override {}
  size_t Post(std::span<const Op> ops) override;
  void Fence(uint64_t transfer) override;
  // Unavailable: what the peer has to say of the region is on its way; try again after the next
  // Poll. FailedPrecondition, PermissionDenied, InvalidArgument, ResourceExhausted: it cannot be
  // had, and why.
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- Link ---
  void SayHello() override {}
  void StopData() override;

 private:
  // Of ops that are not over, so that little has to be stopped.
  static constexpr size_t kMaxOps = 256;
  static constexpr uint64_t kMaxBytes = 8 * kMaxOpBytes;
  // Ops that ended within Post, between two Polls.
  static constexpr size_t kMaxAtOnce = 4096;

  // A region that was asked for, or is known.
  struct Wanted {
    uint32_t rkey = 0;
    bool answered = false;                 // no packet of it is due
    std::shared_ptr<PeerRegion> coming{};  // until it is imported
    std::weak_ptr<PeerRegion> known{};     // afterwards
    absl::Status failed{};                 // told once
  };

  absl::Status OnFrame(std::span<const std::byte> frame) override;
  absl::Status MakeLifeline(const Hello& hello);
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
  absl::Status CheckOp(const Op& op) const;
  void OnCopied(const Op& op, const absl::Status& status) override;
  // Nothing is under way any more, and nothing begins.
  void BeQuiet();

  const Whereabouts peer_;
  const HostIdentity host_;
  MemoryOwner owner_;
  bool dialled_ = false;           // the lifeline was made
  bool ended_ = false;             // EndData has been called
  size_t ops_ = 0;                 // that are not over
  uint64_t bytes_ = 0;             // of them
  uint64_t poll_ = 0;              // number of the Poll before which
  size_t at_once_ = 0;             // so many ops ended within Post
  std::vector<uint64_t> fencing_;  // a transfer for each kFenced that is due
  std::map<uint64_t, Wanted> wanted_;
  std::deque<uint64_t> to_ask_;
  size_t asked_ = 0;  // without their answers
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_DIALLED_H_
