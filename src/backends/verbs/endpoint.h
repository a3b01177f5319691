// A connection to one peer: a control stream (src/transport) and the queue pairs of its rails. This
// class has what both sides share; VerbsDialledEndpoint and VerbsAcceptedEndpoint are the two
// sides.
//
// Thread-safety: none; called by the agent's driver only.

#ifndef KVXFER_BACKENDS_VERBS_ENDPOINT_H_
#define KVXFER_BACKENDS_VERBS_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "src/backends/verbs/blobs.h"
#include "src/backends/verbs/carrier.h"
#include "src/backends/verbs/destroy_queue.h"
#include "src/backends/verbs/device.h"
#include "src/backends/verbs/setup_queue.h"
#include "src/core/base/clock.h"
#include "src/core/base/strings.h"
#include "src/transport/control_endpoint.h"

namespace kvxfer::verbs {

class VerbsBackend;

class VerbsEndpoint : public net::ControlEndpoint,
                      public SetupQueue::Client,
                      public DestroyQueue::Client,
                      private Carrier::Owner {
 public:
  ~VerbsEndpoint() override;

  // --- Endpoint ---
  bool Send(std::span<const std::byte> message) override;

  // --- for the backend ---
  // `port` of `device` came up, went down or changed its address.
  void OnPort(const Device& device, uint8_t port, ibv_event_type type);
  // A queue pair, of this endpoint or another one, reported an error.
  void OnQueuePair(const Device& device, uint32_t number, const absl::Status& why);
  // The device no longer works.
  void OnBroken(const Device& device, const absl::Status& why);
  // Memory was registered that is not registered with `device`: nothing may be posted there.
  virtual void OnUncovered(const Device& /*device*/, const absl::Status& /*why*/) {}

 protected:
  // Connecting side.
  VerbsEndpoint(VerbsBackend* backend, net::PeerAddress peer);
  // Accepting side.
  VerbsEndpoint(VerbsBackend* backend, net::Fd control, std::string from);

  virtual absl::Status OnDecoded(Blob& blob) = 0;
  // The same three events for the rails.
  virtual void OnRailPort(const Device& device, uint8_t port, ibv_event_type type) = 0;
  virtual void OnRailQueuePair(const Device& device, uint32_t number, const absl::Status& why) = 0;
  virtual void OnRailDevice(const Device& device, const absl::Status& why) = 0;
  // What the rails add to deadlines, work, the end, and quiet.
  virtual std::optional<Time> RailDeadline() const = 0;
  virtual void OnRailDeadline(Time now) = 0;
  virtual bool HasRailWork() const { return false; }
  virtual void RailTurn() {}
  virtual void EndRails(const absl::Status& why) = 0;
  virtual bool RailsAreQuiet() const = 0;
  void Tell(const Blob& blob) { ControlEndpoint::Tell(Encode(blob)); }

  Carrier& carrier() { return carrier_; }
  const Carrier& carrier() const { return carrier_; }

  VerbsBackend* backend_;  // null once detached

 private:
  // --- ControlEndpoint ---
  std::optional<Time> DataDeadline() const final {
    return Earlier(carrier_.deadline(), RailDeadline());
  }
  void OnDataDeadline(Time now) final;
  bool HasDataWork() const final { return carrier_.HasWork() || HasRailWork(); }
  void Turn() final;
  void EndData(const absl::Status& why) final;
  bool IsQuiet() const final { return carrier_.quiet() && RailsAreQuiet(); }
  absl::Status OnFrame(std::span<const std::byte> frame) override;
  void OnDetached() override;

  // --- Carrier::Owner ---
  void TellPeer(const Blob& blob) override { Tell(blob); }
  void OnCarrierWork() override { Activate(); }
  void OnCarrierDeadline() override { Reschedule(); }
  bool TakesEvents() override { return !down() && !sink().full(); }
  void OnCarrierMessage(std::string message) override;
  void OnCarrierDown(const absl::Status& why) override { Down(Annotate(why, Where()), true); }
  void OnCarrierQuiet() override { FinishDown(); }
  std::string PeerOfCarrier() const override { return Where(); }

  Carrier carrier_;
};

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_ENDPOINT_H_
