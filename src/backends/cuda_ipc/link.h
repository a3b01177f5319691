// A connection to one peer: a control stream (src/net) for messages, and a lifeline beside it for
// handles of memory and for the end. What both sides have in common is here; DialledLink and
// AcceptedLink are the two sides.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_BACKENDS_CUDA_IPC_LINK_H_
#define KVXFER_BACKENDS_CUDA_IPC_LINK_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "src/backends/cuda_ipc/lifeline.h"
#include "src/transport/control_link.h"

namespace kvxfer::cuda_ipc {

class CudaIpcBackend;

class Link : public net::ControlLink {
 public:
  // --- Endpoint ---
  uint32_t rails() const override { return 1; }

  // --- for the backend ---
  // A turn of the lifeline, also of a link that is down and not quiet yet.
  void WorkAside();
  virtual bool HasWorkAside() const { return lifeline_ != nullptr && lifeline_->HasWork(); }
  // Accepting side: the lifeline that said `dial` first, where it is of this link. True: taken.
  virtual bool Join(std::unique_ptr<Lifeline>& /*lifeline*/, const DialPacket& /*dial*/) {
    return false;
  }
  // Accepting side: that region of this process is no more.
  virtual void Forget(uint64_t /*region*/) {}
  // Connecting side: the backend goes, and waits for what has begun.
  virtual void StopData() {}

 protected:
  Link(CudaIpcBackend* backend, net::PeerAddress peer);
  Link(CudaIpcBackend* backend, net::Fd control, std::string from);

  // An error ends the link.
  virtual absl::Status OnPacket(Lifeline::Packet& packet) = 0;
  // All that waited has been sent: what is to be sent next.
  virtual void Serve() {}
  // Looks whether the peer's process is there.
  virtual void Watch() {}
  // The peer is gone or going. The control stream has a little time to say why, and to bring what
  // was sent before.
  void Expect(absl::Status end);

  std::optional<Time> DataDeadline() const override { return end_at_; }
  void OnDataDeadline(Time now) override;

  CudaIpcBackend* backend_;  // null once detached
  std::unique_ptr<Lifeline> lifeline_;

 private:
  std::optional<Time> end_at_;
  absl::Status end_;
};

}  // namespace kvxfer::cuda_ipc

#endif  // KVXFER_BACKENDS_CUDA_IPC_LINK_H_
