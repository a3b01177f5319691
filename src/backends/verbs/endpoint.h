// A connection to one peer: a control stream (src/transport) and the queue pairs of its rails. This
// class has what both sides share; VerbsDialledEndpoint and VerbsAcceptedEndpoint are the two
// sides.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_ENDPOINT_H_
#define KVXFER_BACKENDS_VERBS_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/destroy_queue.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/setup_queue.h"
#include "src/transport/control_endpoint.h"

namespace kvxfer::verbs {

class VerbsBackend;

class VerbsEndpoint : public net::ControlEndpoint,
                      public SetupQueue::Client,
                      public DestroyQueue::Client {
 public:
  ~VerbsEndpoint() override;

  // --- for the backend ---
  // `port` of `device` came up, went down or changed its address.
  virtual void OnPort(const Device& device, uint8_t port, ibv_event_type type) = 0;
  // A queue pair of this endpoint reported an error.
  virtual void OnQueuePair(const Device& device, uint32_t number, const absl::Status& why) = 0;
  // The device no longer works.
  virtual void OnBroken(const Device& device, const absl::Status& why) = 0;
  // Memory was registered that is not registered with `device`: nothing may be posted there.
  virtual void OnUncovered(const Device& /*device*/, const absl::Status& /*why*/) {}

 protected:
  VerbsEndpoint(VerbsBackend* backend, net::PeerAddress peer);
  VerbsEndpoint(VerbsBackend* backend, net::Fd control, std::string from);

  virtual absl::Status OnDecoded(Blob& blob) = 0;
  void Tell(const Blob& blob) { ControlEndpoint::Tell(Encode(blob)); }

  VerbsBackend* backend_;  // null once detached

 private:
  absl::Status OnFrame(std::span<const std::byte> frame) override;
  void OnDetached() override;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_ENDPOINT_H_
