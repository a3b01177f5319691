// A connection to one peer: a control stream (src/transport) for messages, and a lifeline for
// memory handles and for detecting the end. This class has what both sides share;
// CudaIpcDialledEndpoint and CudaIpcAcceptedEndpoint are the two sides.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_CUDA_IPC_ENDPOINT_H_
#define KVXFER_BACKENDS_CUDA_IPC_ENDPOINT_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "src/backends/cuda_ipc/lifeline.h"
#include "src/transport/control_endpoint.h"

namespace kvxfer::cuda_ipc {

class CudaIpcBackend;

class CudaIpcEndpoint : public net::ControlEndpoint {
 public:
  // --- for the backend ---
  // A turn of the lifeline, also for an endpoint that is down but not quiet yet.
  void WorkAside();
  virtual bool HasWorkAside() const { return lifeline_ != nullptr && lifeline_->HasWork(); }
  // Accepting side: takes a lifeline whose first packet was `dial`, if it belongs to this endpoint.
  // True: taken.
  virtual bool Join(std::unique_ptr<Lifeline>& /*lifeline*/, const DialPacket& /*dial*/) {
    return false;
  }
  // Accepting side: a region of this process is closed.
  virtual void Forget(uint64_t /*region*/) {}
  // Connecting side: the backend is being destroyed and waits for what has begun.
  virtual void StopData() {}

 protected:
  CudaIpcEndpoint(CudaIpcBackend* backend, net::PeerAddress peer);
  CudaIpcEndpoint(CudaIpcBackend* backend, net::Fd control, std::string from);

  // Handles a packet. An error ends the endpoint.
  virtual absl::Status OnPacket(Lifeline::Packet& packet) = 0;
  // Everything queued has been sent: sends what comes next.
  virtual void Serve() {}
  // Checks whether the peer's process still exists.
  virtual void Watch() {}
  // The peer has ended or is ending. The control stream gets a little time to deliver what was sent
  // before, including the reason.
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

#endif  // KVXFER_BACKENDS_CUDA_IPC_ENDPOINT_H_
