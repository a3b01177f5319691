// An endpoint whose data goes another way than over TCP: its control stream, on either side. It
// dials, carries the messages of the agents and the frames of the backend, says goodbye and says
// why the link ended. What is left to a backend is what its frames say and what its data does.
//
// Life: kDialling → kGreeting (welcomed; the accepting side's first frame is waited for) → kUp →
// kDown. An accepted link begins as kUp, and says hello.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_TRANSPORT_CONTROL_LINK_H_
#define KVXFER_TRANSPORT_CONTROL_LINK_H_

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
#include "src/transport/link_hub.h"
#include "src/transport/sockets/address.h"

namespace kvxfer::net {

class ControlLink : public Endpoint, public StreamOwner {
 public:
  ~ControlLink() override;

  // --- Endpoint ---
  bool Send(std::span<const std::byte> message) override;
  void Shutdown(absl::Status why) override;

  // --- for the hub ---
  void Dial();
  // One turn of the control stream.
  void Work();
  bool HasWork() const;
  std::optional<Time> deadline() const;
  void OnDeadline(Time now);
  // Accepting side, once: the first frames to the peer.
  virtual void SayHello() = 0;
  // The hub goes first.
  void Detach();
  bool active = false;  // in the hub's list of links with work

  bool up() const { return state_ == State::kUp; }
  bool down() const { return state_ == State::kDown; }

  // --- StreamOwner ---
  Reactor& reactor() override { return hub_->reactor(); }
  void Activate() override { hub_->Activate(this); }

 protected:
  // Connecting side.
  ControlLink(LinkHub* hub, PeerAddress peer);
  // Accepting side.
  ControlLink(LinkHub* hub, Fd control, std::string from);

  // A frame of the peer: its hello where greeting(). An error ends the link.
  virtual absl::Status OnFrame(std::span<const std::byte> frame) = 0;
  // Ends every op; nothing of this link's data begins any more.
  virtual void EndData(const absl::Status& why) = 0;
  // Whether no byte can land, or be read, through this link any more.
  virtual bool IsQuiet() const = 0;
  // What data has to do in a turn while up(), before the peer's frames are read.
  virtual bool HasDataWork() const { return false; }
  virtual void WorkData() {}
  // While up().
  virtual std::optional<Time> DataDeadline() const { return std::nullopt; }
  virtual void OnDataDeadline(Time /*now*/) {}
  // The backend goes first.
  virtual void OnDetached() {}

  // Address of the peer; of the one of its addresses that is dialled.
  std::string Name() const { return dialler_ ? dialler_->address().ToString() : from_; }
  // "verbs peer 10.0.0.2:7471".
  std::string Where() const;
  bool greeting() const { return state_ == State::kGreeting; }
  // The peer's hello has come and makes sense: kConnected.
  void GoUp();
  void Tell(std::string_view frame);
  // Bytes of messages and frames that wait for the control stream.
  size_t unsent() const { return control_.queued_bytes(); }
  // Ends the link for what the peer or the network did.
  void Fail(const absl::Status& status);
  void Down(absl::Status why, bool tell);
  // It may be quiet now: says kDown where that waited for it.
  void FinishDown();

  // Nothing once detached.
  void Emit(Event event);
  void Say(EventKind kind, uint64_t id = 0, absl::Status status = {}, uint32_t rail = 0);

 private:
  enum class State : uint8_t { kDialling, kGreeting, kUp, kDown };

  void FollowDialler();
  void ReceiveFrames();
  bool Take(const ControlStream::Frame& frame);

  LinkHub* hub_;
  State state_;
  ControlStream control_;
  std::optional<Dialler> dialler_;  // connecting side
  const std::string from_;          // accepting side
  bool ending_ = false;             // Down has begun
  absl::Status why_down_;           // until kDown has been said
  uint64_t message_poll_ = 0;       // number of the Poll that last reported messages of this link
};

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_CONTROL_LINK_H_
