// An endpoint with a control stream, on either side. It dials, transports the agents' messages and
// the backend's frames, and when the endpoint ends it tells the peer and reports why. The backend
// defines the contents of its frames and what its data does, which may travel over TCP as well.
//
// States of the connecting side: kDialling → kGreeting (welcomed; waits for the accepting side's
// first frames) → kUp → kDown. States of the accepting side: kGreeting (the hub owns it; nothing is
// read) → kUp (the agent owns it; it has sent its hello) → kDown.
//
// Thread-safety: none; used by the agent's driving thread.

#ifndef KVXFER_TRANSPORT_CONTROL_ENDPOINT_H_
#define KVXFER_TRANSPORT_CONTROL_ENDPOINT_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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
  // Accepting side: was reported to the agent. Goes up and says hello.
  void OnReported();
  // One turn; bounded.
  void Work();
  bool HasWork() const;
  // Reads the control stream, whether it is known to be readable or not, unless frames that it
  // brought earlier are not handled yet.
  void ReadControl();
  std::optional<Time> deadline() const;
  // The deadline may have changed.
  void Reschedule();
  void OnDeadline(Time now);
  // Called when the hub is destroyed before its endpoints.
  void Detach();
  // Ends the endpoint at once, and does not tell the peer.
  void Drop(const absl::Status& why);
  // Sockets that it has open.
  size_t descriptors() const { return (control_.fd() >= 0 ? 1 : 0) + DataDescriptors(); }
  bool active = false;          // in the hub's list of active endpoints
  bool rescheduled = false;     // in the hub's list of those to ask for their deadlines
  std::optional<Time> timer{};  // its place in the hub's timers

  bool connecting() const { return dialler_.has_value(); }
  bool up() const { return state_ == State::kUp; }
  bool down() const { return state_ == State::kDown; }

  // --- StreamClient ---
  Reactor& reactor() override { return hub_->reactor(); }
  void Activate() override { hub_->Activate(this); }

 protected:
  // Connecting side.
  ControlEndpoint(EndpointHub* hub, PeerAddress peer, uint32_t rails = 1);
  // Accepting side.
  ControlEndpoint(EndpointHub* hub, Fd control, std::string from);

  // Accepting side, called once: sends the first frames to the peer.
  virtual void SayHello() = 0;
  // Handles a frame of the peer; while greeting() it is the peer's hello. An error ends the
  // endpoint.
  virtual absl::Status OnFrame(std::span<const std::byte> frame) = 0;
  // Ends every op; after this no data of the endpoint may start.
  virtual void EndData(const absl::Status& why) = 0;
  // True if no byte can be written or read through this endpoint any more.
  virtual bool IsQuiet() const = 0;
  // The next four are not called while dialling, nor once down().
  virtual std::optional<Time> DataDeadline() const { return std::nullopt; }
  virtual void OnDataDeadline(Time /*now*/) {}
  // One turn, after what waits was sent: handles frames, and lets the data do its work.
  virtual void Turn() {
    if (!down()) ReceiveFrames();
  }
  // Whether Turn has work besides frames.
  virtual bool HasDataWork() const { return false; }
  // Called when the backend is destroyed before the endpoint.
  virtual void OnDetached() {}

  // --- for data streams ---
  // Connecting side: the peer has welcomed the control stream.
  virtual void OnWelcome() {}
  // Whether the peer's next frame, of that kind, has to wait. `after_message`: a message before it
  // was reported in this Poll. Once up, kClosing stands for the end of the stream too.
  virtual bool MustWait(ControlKind /*kind*/, bool /*after_message*/) const { return false; }
  // Handles the frame kReady. False: it has no place here.
  virtual bool TakeReady() { return false; }
  // Connecting side, greeting(): the time is over in which it may come up.
  virtual void OnGreetingDeadline();
  // Sockets of data streams.
  virtual size_t DataDescriptors() const { return 0; }
  // Closes the data streams and returns those sockets that must linger with the control stream's.
  virtual std::vector<Fd> ReleaseData() { return {}; }

  // The peer's address; while dialling, the one that is being tried.
  std::string Name() const { return dialler_ ? dialler_->address().ToString() : from_; }
  // "verbs peer 10.0.0.2:7471".
  std::string Where() const;
  // Accepting side: the agent has authorised the endpoint.
  void OnAuthorized();
  bool greeting() const { return state_ == State::kGreeting; }
  // Connecting side.
  const Dialler& dialler() const { return *dialler_; }
  // The peer's hello was received and is valid: reports kConnected.
  void GoUp();
  void Tell(std::string_view frame);
  ControlStream& control() { return control_; }
  // Bytes of messages and frames that wait for the control stream.
  size_t unsent() const { return control_.queued_bytes(); }
  // Handles the frames that have arrived, and reports the messages among them. `look`: reads the
  // socket even if no event said that it is readable. True: all frames were handled, and none was a
  // message in this Poll. The agent must see a message before data that comes after it.
  bool ReceiveFrames(bool look = false);
  // One of its messages was reported in this Poll.
  bool MessagesReported() const { return message_poll_ == hub_->poll_number(); }
  // The number of the last Poll that reported some.
  uint64_t message_poll() const { return message_poll_; }
  // Ends the endpoint because of what the peer or the network did on `stream`. The peer is told
  // unless the network failed.
  void Fail(const absl::Status& status, std::string_view stream = "control stream");
  void Down(absl::Status why, bool tell);
  // Called when the data may have become quiet: reports kDown if that was waiting for it.
  void FinishDown();

  EventSink& sink() { return hub_->sink(); }
  // No effect once detached.
  void Emit(Event event);
  void Say(EventKind kind, uint64_t id = 0, absl::Status status = {}, uint32_t rail = 0);

 private:
  enum class State : uint8_t { kDialling, kGreeting, kUp, kDown };

  // The control stream carries frames in both directions.
  bool in_use() const { return up() || (greeting() && connecting()); }
  void SetUp();
  void FollowDialler();
  // Whether frames have arrived, or may have, and need not wait.
  bool HasFrames() const;
  bool Take(const ControlStream::Frame& frame);

  EndpointHub* hub_;  // null once detached
  State state_;
  ControlStream control_;
  std::optional<Dialler> dialler_;  // connecting side
  const std::string from_;          // accepting side
  std::optional<Time> up_by_;       // while dialling and greeting: when the attempt is given up
  bool ending_ = false;             // Down has begun
  absl::Status why_down_;           // set until kDown is reported
  uint64_t message_poll_ = 0;  // number of the last Poll that reported messages of this endpoint
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_CONTROL_ENDPOINT_H_
