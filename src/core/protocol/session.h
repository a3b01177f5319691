// A session as one side knows it: everything between two incarnations, in both directions. It has
// one numbered control channel each way. The class names the session, judges what the other side
// says when a connection begins, and says what follows from that, and when the session is given up.
//
// Each side gives a session a number of its own, and the two numbers together name it. A side that
// ends the session, or has forgotten it, goes on with another number. So the other side sees from a
// hello whether both mean the same session, and two hellos that cross need no tie to be broken.
//
//   kNew       no connection of it has been up
//   kLinked    a connection is up, whoever dialled it
//   kUnlinked  the last one is down
//   kEnding    it is over; connections of it may not be down yet
//
// A session outlives its connections. It ends when either side has forgotten it, when either side
// breaks it, and when nothing carries it for too long. The next one begins once every connection of
// the one before is down at this side: nothing that it left on the wire lands any more.
// kTransitions is the whole of it.
//
// Thread-safety: none; used by the driver. No I/O, no clock: the caller passes the time.

#ifndef KVXFER_CORE_PROTOCOL_SESSION_H_
#define KVXFER_CORE_PROTOCOL_SESSION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/core/base/clock.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

// What the accepting side says when a connection begins: an answer to the hello, and its live
// regions, in pages that may overtake the answer.
class HelloAnswer {
 public:
  // InvalidArgument, of both: it breaks the protocol.
  absl::Status OnAck(const HelloAckFrame& ack, const Incarnation& target);
  absl::Status OnPage(const RegionsFrame& page, const Incarnation& target);
  bool answered() const { return answered_; }
  // It has said all that it says.
  bool complete() const { return answered_ && listed_ >= due_; }

 private:
  bool answered_ = false;
  uint64_t due_ = 0;     // regions of which it says whether they live
  uint64_t listed_ = 0;  // and of so many it has
};

class Session {
 public:
  // A session without a connection is given up after so long, if a transfer waits for it.
  static constexpr Duration kAbandonAfter = std::chrono::seconds(30);

  enum class State : uint8_t { kNew, kLinked, kUnlinked, kEnding };
  enum class Event : uint8_t { kLinkUp, kLastLinkDown, kEnd, kRenew };
  struct Transition {
    State from;
    Event event;
    State to;
  };
  static constexpr Transition kTransitions[] = {
      {State::kNew, Event::kLinkUp, State::kLinked},
      {State::kNew, Event::kEnd, State::kEnding},
      {State::kLinked, Event::kLinkUp, State::kLinked},
      {State::kLinked, Event::kLastLinkDown, State::kUnlinked},
      {State::kLinked, Event::kEnd, State::kEnding},
      {State::kUnlinked, Event::kLinkUp, State::kLinked},
      {State::kUnlinked, Event::kEnd, State::kEnding},
      {State::kEnding, Event::kLastLinkDown, State::kEnding},
      {State::kEnding, Event::kEnd, State::kEnding},
      {State::kEnding, Event::kRenew, State::kNew},
  };

  struct Party {
    std::string name{};
    Incarnation incarnation{};
  };

  // `number`: random, not 0.
  Session(Party self, Party peer, uint64_t number, Time now);
  Session(const Session&) = default;
  Session& operator=(const Session&) = delete;

  State state() const { return state_; }
  // What this side calls it, and what the peer does; 0: that is not known yet.
  uint64_t number() const { return number_; }
  uint64_t peer_number() const { return peer_number_; }
  const Party& peer() const { return peer_; }
  // Stays where it is, also when the session is renewed.
  ReliableChannel& channel() { return channel_; }
  const ReliableChannel& channel() const { return channel_; }
  // Since when no connection is up, or since when it is over; Time{}: one is up.
  Time unlinked() const { return unlinked_; }

  // --- a connection begins; no session is kEnding then ---
  // Dialling: what this side begins with; it acknowledges what the channel has received.
  HelloFrame Hello() const;
  // Dialling: what the accepting side answers. InvalidArgument, of both: it breaks the protocol.
  // Aborted: it has ended the session that this side knows.
  absl::Status OnHelloAck(HelloAnswer& answer, const HelloAckFrame& ack);
  absl::Status OnPage(HelloAnswer& answer, const RegionsFrame& page) const;
  struct Refusal {
    absl::Status why{};
    bool again = false;  // an attempt soon may succeed: this one did not fail
    // The session is over. What was posted since its last connection was lost goes on in the next.
    bool forgotten = false;
    bool restarted = false;  // another incarnation says that it is at the peer's address
  };
  // `proved`: the peer itself refuses. Otherwise anybody may, and can only deny service.
  Refusal OnRefuse(const RefuseFrame& refuse, bool proved) const;

  // Accepting: what a proved hello means.
  enum class Meaning : uint8_t {
    kTaken,      // the session begins, or goes on: OnHello has learnt the peer's number
    kEnding,     // the session before is not over here: the peer is to try again
    kPeerEnded,  // the peer has ended the session that this side knows, which has to end here too
    kForgotten,  // the peer means a session that has ended here
  };
  Meaning OnHello(const HelloFrame& hello);

  // --- connections come and go ---
  // Accepting: the hello was answered. Dialling: the answer is complete.
  void OnLinkUp();
  // One that was up is down. What it had taken may be lost, whatever other connections there are.
  void OnLinkDown(Time now);

  // --- messages ---
  // One without a number; it acknowledges what was received.
  template <typename Frame>
  std::string Message(FrameType type, const Frame& frame) const {
    return EncodeMessage(type, 0, channel_.received(), frame);
  }
  using Take = absl::FunctionRef<absl::Status(const ReliableChannel::Incoming&)>;
  // A message with a number, whose acknowledgement is known already; see ReliableChannel::OnFrame.
  // An error: the peer breaks the protocol.
  absl::Status OnNumbered(const Envelope& envelope, Take take);

  // --- the end ---
  // A transfer posted then was posted before the last connection was lost, or before the end.
  bool Precedes(Time posted) const { return posted <= unlinked_; }
  // When a session that waits for the peer's word is given up. `waits`: for a word on a transfer.
  // Time::max(): not at all, as matters stand.
  Time abandon_at(bool waits) const;
  // It is over.
  void End(Time now);
  // The next session may begin: this one is over, and none of its connections is up.
  bool renewable() const { return state_ == State::kEnding && links_ == 0; }
  // The next session, of which the peer knows nothing yet. Requires renewable().
  void Renew();

 private:
  // The only place that changes the state.
  void Apply(Event event);

  const Party self_;
  const Party peer_;
  uint64_t number_;
  uint64_t peer_number_ = 0;
  State state_ = State::kNew;
  uint32_t links_ = 0;  // that are up
  Time unlinked_;
  ReliableChannel channel_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SESSION_H_
