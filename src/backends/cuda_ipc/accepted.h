// The accepting side of a link: tells an authorised peer what is behind its regions, and waits for
// the peer's GPUs when the link ends.
//
// Its kDown means that nothing of the peer moves here any more. The proof is the peer's word on the
// lifeline, which it gives when its last copy is over, or the end of its process, as its pidfd
// tells. The loss of the control stream proves nothing, nor does that of the lifeline.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_CUDA_IPC_ACCEPTED_H_
#define KVXFER_BACKENDS_CUDA_IPC_ACCEPTED_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "src/backends/cuda_ipc/link.h"
#include "src/backends/cuda_ipc/process.h"

namespace kvxfer::cuda_ipc {

class AcceptedLink final : public Link {
 public:
  // The peer asks for one region after the other and waits for answers beyond so many.
  static constexpr size_t kMaxAsks = 32;

  AcceptedLink(CudaIpcBackend* backend, net::Fd control, std::string from);

  // --- Endpoint ---
  std::string Describe() const override;
  void Authorize() override { authorized_ = true; }
  // Nothing before the peer knows that it has joined.
  bool Send(std::span<const std::byte> message) override {
    return process_ != nullptr && Link::Send(message);
  }
  size_t Post(std::span<const Op> ops) override;
  void Fence(uint64_t transfer) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- Link ---
  void SayHello() override;
  bool HasWorkAside() const override;
  bool Join(std::unique_ptr<Lifeline>& lifeline, const DialPacket& dial) override;
  void Forget(uint64_t region) override;

 private:
  struct Ask {
    AskPacket packet{};
    bool begun = false;
    size_t next_part = 0;
  };

  bool serves() const { return authorized_ && up() && !asks_.empty(); }
  absl::Status OnFrame(std::span<const std::byte> frame) override;
  absl::Status OnPacket(Lifeline::Packet& packet) override;
  void Serve() override;
  void Watch() override;
  // The next packet of an answer; true: it was the last.
  bool Answer(Ask& ask);
  void Refuse(uint64_t region, const absl::Status& why);
  void EndData(const absl::Status& /*why*/) override { asks_.clear(); }
  bool IsQuiet() const override {
    return !granted_ || quiet_said_ || (process_ != nullptr && process_->exited());
  }
  void OnDetached() override;

  Word word_{};
  bool authorized_ = false;
  bool granted_ = false;     // the peer may have opened memory of this process
  bool last_word_ = false;   // it has said that it moves nothing there any more
  bool quiet_said_ = false;  // that, or its process has ended
  bool same_process_ = false;
  std::unique_ptr<PeerProcess> process_;
  std::deque<Ask> asks_;
  std::set<uint64_t> told_;  // regions that the peer knows
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_ACCEPTED_H_
