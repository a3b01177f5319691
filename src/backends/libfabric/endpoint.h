// A connection to one peer: a control stream (src/transport), and an endpoint for each rail. This
// class is what both sides share; LibfabricDialledEndpoint and LibfabricAcceptedEndpoint are the
// two sides.
//
// A rail connects one domain with the peer's domain of the same number, and fails alone.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_LIBFABRIC_ENDPOINT_H_
#define KVXFER_BACKENDS_LIBFABRIC_ENDPOINT_H_

#include <span>
#include <string>

#include "absl/status/status.h"
#include "src/backends/libfabric/frames.h"
#include "src/transport/control_endpoint.h"

namespace kvxfer::libfabric {

class LibfabricBackend;

class LibfabricEndpoint : public net::ControlEndpoint {
 public:
  // --- for the backend ---
  // Its completion queues may get entries: they have to be polled again and again.
  virtual bool busy() const = 0;
  // Polls the completion queues.
  virtual void PollData() = 0;
  // The agent's driver is about to sleep.
  virtual void Rest() {}
  // The last PollData left entries in a completion queue.
  virtual bool unread() const = 0;

 protected:
  LibfabricEndpoint(LibfabricBackend* backend, net::PeerAddress peer);
  LibfabricEndpoint(LibfabricBackend* backend, net::Fd control, std::string from);

  virtual absl::Status OnDecoded(const Frame& frame) = 0;
  void Tell(const Frame& frame) { ControlEndpoint::Tell(Encode(frame)); }

  LibfabricBackend* backend_;  // null once detached

 private:
  absl::Status OnFrame(std::span<const std::byte> frame) override;
  void OnDetached() override { backend_ = nullptr; }
};

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_ENDPOINT_H_
