// The accepting side of a cuda_ipc endpoint. It sends an authorised peer the handles of its
// regions, and waits for the peer's GPUs when the endpoint ends.
//
// Its kDown means that the peer no longer moves anything here. The proof is either the peer's
// kQuiet packet on the lifeline, which it sends when its last copy is over, or the end of its
// process, which its pidfd shows. The loss of the control stream proves nothing, and neither does
// the loss of the lifeline.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_ACCEPTED_H_
#define KVXFER_BACKENDS_CUDA_IPC_ACCEPTED_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "src/backends/cuda_ipc/endpoint.h"
#include "src/backends/cuda_ipc/process_watch.h"

namespace kvxfer::cuda_ipc {

class CudaIpcAcceptedEndpoint final : public CudaIpcEndpoint {
 public:
  // The most asks without an answer. The peer asks for one region after another and waits beyond
  // this number.
  static constexpr size_t kMaxAsks = 32;

  CudaIpcAcceptedEndpoint(CudaIpcBackend* backend, net::Fd control, std::string from);

  // --- Endpoint ---
  EndpointInfo Describe() const override;
  void Authorize() override {
    authorized_ = true;
    max_message_ = net::kMaxMessageBytes;
    OnAuthorized();
  }
  // Sends nothing before the peer knows that it has joined.
  bool Send(std::span<const std::byte> message) override {
    return process_ != nullptr && CudaIpcEndpoint::Send(message);
  }
  Posted Post(const Op& op) override;
  void Fence(FenceScope scope) override;
  absl::StatusOr<std::unique_ptr<RemoteKey>> Import(const RemoteRegion& region,
                                                    std::string_view key) override;

  // --- CudaIpcEndpoint ---
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
  absl::Status WatchProcess(uint32_t pid, uint64_t start_time);
  absl::Status OnFrame(std::span<const std::byte> frame) override;
  absl::Status OnPacket(Lifeline::Packet& packet) override;
  void Serve() override;
  void Watch() override;
  // Sends the next packet of an answer. True: it was the last.
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
  bool last_word_ = false;   // kQuiet has arrived
  bool quiet_said_ = false;  // kQuiet has arrived, or the peer's process has ended
  bool same_process_ = false;
  std::unique_ptr<ProcessWatch> process_;
  std::deque<Ask> asks_;
  std::set<uint64_t> told_;  // regions whose handles the peer has
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_ACCEPTED_H_
