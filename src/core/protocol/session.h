// A session as its initiator knows it: its number, its numbered control channel, what the target
// knows of it, and since when no connection carries it. The class judges what a target says when a
// connection begins, and says what follows from that. It says when the session is given up.
//
//   kNew       no target has answered a hello of it, and no connection is up
//   kRenewed   the same, but connections of the session before may not be down yet
//   kLinked    a target knows it; a connection is up
//   kUnlinked  a target knows it, and the last connection is down
//
// A session outlives its connections. It is renewed, with the next number and nothing in the
// channel, when the target has forgotten it, when either side breaks it, and when it is idle while
// a first connection is made. kTransitions is the whole of it.
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

// What a target says when a connection begins: an answer to the hello, and its live regions, in
// pages that may overtake the answer.
class HelloAnswer {
 public:
  // InvalidArgument, of both: the target breaks the protocol.
  absl::Status OnAck(const HelloAckFrame& ack, const Incarnation& target);
  absl::Status OnPage(const RegionsFrame& page, const Incarnation& target);
  // The target has said all that it says.
  bool complete() const { return answered_ && listed_ >= due_; }

 private:
  bool answered_ = false;
  uint64_t due_ = 0;     // regions of which it says whether they live
  uint64_t listed_ = 0;  // and of so many it has
};

class Session {
 public:
  // A session without a connection is given up before the target sweeps it
  // (InboundHub::kSweepAfter), so that both never disagree on what was delivered.
  static constexpr Duration kAbandonAfter = std::chrono::seconds(30);

  enum class State : uint8_t { kNew, kRenewed, kLinked, kUnlinked };
  enum class Event : uint8_t { kLinkUp, kLastLinkDown, kRenew };
  struct Transition {
    State from;
    Event event;
    State to;
  };
  static constexpr Transition kTransitions[] = {
      {State::kNew, Event::kLinkUp, State::kLinked},
      {State::kNew, Event::kLastLinkDown, State::kNew},
      {State::kNew, Event::kRenew, State::kNew},
      {State::kRenewed, Event::kLinkUp, State::kLinked},
      {State::kRenewed, Event::kLastLinkDown, State::kNew},
      {State::kRenewed, Event::kRenew, State::kRenewed},
      {State::kLinked, Event::kLinkUp, State::kLinked},
      {State::kLinked, Event::kLastLinkDown, State::kUnlinked},
      {State::kLinked, Event::kRenew, State::kRenewed},
      {State::kUnlinked, Event::kLinkUp, State::kLinked},
      {State::kUnlinked, Event::kLastLinkDown, State::kUnlinked},  // one that was closing
      {State::kUnlinked, Event::kRenew, State::kNew},
  };

  struct Party {
    std::string name{};
    Incarnation incarnation{};
  };

  // `number`: random, not 0.
  Session(Party initiator, Party target, uint64_t number, Time now);
  Session(const Session&) = default;
  Session& operator=(const Session&) = delete;

  State state() const { return state_; }
  uint64_t number() const { return number_; }
  // Stays where it is, also when the session is renewed.
  ReliableChannel& channel() { return channel_; }
  const ReliableChannel& channel() const { return channel_; }
  // Since when no connection is up; Time{}: one is, or may be.
  Time unlinked() const { return unlinked_; }

  // --- a connection begins ---
  // What the initiator begins with; it acknowledges what the channel has received.
  HelloFrame Hello() const;
  // InvalidArgument, of both: the target breaks the protocol.
  absl::Status OnHelloAck(HelloAnswer& answer, const HelloAckFrame& ack) const;
  absl::Status OnPage(HelloAnswer& answer, const RegionsFrame& page) const;
  struct Refusal {
    absl::Status why{};
    bool again = false;  // an attempt soon may succeed: this one did not fail
    // The session is to be renewed. What was posted since its last connection was lost goes on in
    // the next one.
    bool forgotten = false;
    bool restarted = false;  // another incarnation says that it is at the target's address
  };
  // `proved`: the target itself refuses. Otherwise anybody may, and can only deny service.
  Refusal OnRefuse(const RefuseFrame& refuse, bool proved) const;

  // --- connections come and go ---
  // The answer to the hello of one is complete. `first`: no other is up.
  void OnLinkUp(bool first);
  // One that was up is down. What it had taken may be lost, whatever other connections there are.
  // `last`: no other is up.
  void OnLinkDown(bool last, Time now);

  // --- messages ---
  // One without a number; it acknowledges what was received.
  template <typename Frame>
  std::string Message(FrameType type, const Frame& frame) const {
    return EncodeMessage(type, 0, channel_.received(), frame);
  }
  using Take = absl::FunctionRef<absl::Status(const ReliableChannel::Incoming&)>;
  // A message with a number, whose acknowledgement is known already; see ReliableChannel::OnFrame.
  // An error: the target breaks the protocol.
  absl::Status OnNumbered(const Envelope& envelope, Take take);
  // A complete one, which was piggybacked.
  absl::Status OnPiggybacked(std::span<const std::byte> message, Take take);

  // --- the end ---
  // Neither side waits for anything in the channel.
  bool idle() const { return channel_.kept() == 0; }
  // A transfer posted then was posted before the last connection was lost.
  bool Precedes(Time posted) const { return posted <= unlinked_; }
  // When a session that waits for the target's word is given up, once. `waits`: for a word on a
  // transfer. Time::max(): not at all, as matters stand; the target knows nothing of it.
  Time abandon_at(bool waits) const;
  // The next session: the target knows nothing of it yet.
  void Renew();

 private:
  // The only place that changes the state.
  void Apply(Event event);

  const Party initiator_;
  const Party target_;
  uint64_t number_;
  State state_ = State::kNew;
  Time unlinked_;
  ReliableChannel channel_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SESSION_H_
