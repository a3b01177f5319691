// An endpoint whose data does not travel over TCP, on either side: its control stream. It dials,
// transports the agents' messages and the backend's frames, and when the endpoint ends it tells the
// peer and reports why. The backend only defines the contents of its frames and what its data does.
//
// States: kDialling → kGreeting (welcomed; waits for the accepting side's first frame) → kUp →
// kDown. An accepted endpoint starts in kUp and sends its hello.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_CONTROL_ENDPOINT_H_
#define KVXFER_TRANSPORT_CONTROL_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/core/base/clock.h"
#include "src/transport/control_stream.h"
#include "src/transport/dialler.h"
#include "src/transport/endpoint_hub.h"
#include "src/transport/sockets/address.h"

namespace kvxfer::net {

class ControlEndpoint : public Endpoint, public StreamClient {
 public:
  ~ControlEndpoint() override;

  // --- Endpoint ---
  bool Send(std::span<const std::byte> message) override;
  void Shutdown(absl::Status why) override;

  // --- for the hub ---
  void Dial();
  // One turn of the control stream; bounded.
  void Work();
  bool HasWork() const;
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  // Accepting side, called once: sends the first frames to the peer.
  virtual void SayHello() = 0;
  // Called when the hub is destroyed before its endpoints.
  void Detach();
  bool active = false;  // in the hub's list of active endpoints

  bool up() const { return state_ == State::kUp; }
  bool down() const { return state_ == State::kDown; }

  // --- StreamClient ---
  Reactor& reactor() override { return hub_->reactor(); }
  void Activate() override { hub_->Activate(this); }

 protected:
  // Connecting side.
  ControlEndpoint(EndpointHub* hub, PeerAddress peer);
  // Accepting side.
  ControlEndpoint(EndpointHub* hub, Fd control, std::string from);

  // Handles a frame of the peer; while greeting() it is the peer's hello. An error ends the
  // endpoint.
  virtual absl::Status OnFrame(std::span<const std::byte> frame) = 0;
  // Ends every op; after this no data of the endpoint may start.
  virtual void EndData(const absl::Status& why) = 0;
  // True if no byte can be written or read through this endpoint any more.
  virtual bool IsQuiet() const = 0;
  // The data's work in one turn while up(), before the peer's frames are read.
  virtual bool HasDataWork() const { return false; }
  virtual void WorkData() {}
  // Called while up() only.
  virtual std::optional<Time> DataDeadline() const { return std::nullopt; }
  virtual void OnDataDeadline(Time /*now*/) {}
  // Called when the backend is destroyed before the endpoint.
  virtual void OnDetached() {}

  // The peer's address; while dialling, the one that is being tried.
  std::string Name() const { return dialler_ ? dialler_->address().ToString() : from_; }
  // "verbs peer 10.0.0.2:7471".
  std::string Where() const;
  bool greeting() const { return state_ == State::kGreeting; }
  // The peer's hello was received and is valid: reports kConnected.
  void GoUp();
  void Tell(std::string_view frame);
  // Bytes of messages and frames that wait for the control stream.
  size_t unsent() const { return control_.queued_bytes(); }
  // Ends the endpoint because of what the peer or the network did.
  void Fail(const absl::Status& status);
  void Down(absl::Status why, bool tell);
  // Called when the data may have become quiet: reports kDown if that was waiting for it.
  void FinishDown();

  // No effect once detached.
  void Emit(Event event);
  void Say(EventKind kind, uint64_t id = 0, absl::Status status = {}, uint32_t rail = 0);

 private:
  enum class State : uint8_t { kDialling, kGreeting, kUp, kDown };

  void FollowDialler();
  void ReceiveFrames();
  bool Take(const ControlStream::Frame& frame);

  EndpointHub* hub_;
  State state_;
  ControlStream control_;
  std::optional<Dialler> dialler_;  // connecting side
  const std::string from_;          // accepting side
  bool ending_ = false;             // Down has begun
  absl::Status why_down_;           // set until kDown is reported
  uint64_t message_poll_ = 0;  // number of the last Poll that reported messages of this endpoint
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_CONTROL_ENDPOINT_H_
