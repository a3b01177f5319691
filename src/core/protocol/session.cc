#include "src/core/protocol/session.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/reason.h"
#include "src/core/base/text.h"
#include "src/core/protocol/transitions.h"

namespace kvxfer {

// --- HelloAnswer ---

absl::Status HelloAnswer::OnAck(const HelloAckFrame& ack, const Incarnation& target) {
  if (ack.target != target) {
    return absl::InvalidArgumentError("another incarnation took the hello");
  }
  if (ack.version < kMinProtocolVersion || ack.version > kMaxProtocolVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("it chose protocol version ", ack.version, ", which nobody offered"));
  }
  if (answered_) return absl::InvalidArgumentError("second hello-ack");
  answered_ = true;
  due_ = ack.last_region;
  return absl::OkStatus();
}

absl::Status HelloAnswer::OnPage(const RegionsFrame& page, const Incarnation& target) {
  if (page.target != target) return absl::InvalidArgumentError("regions of another incarnation");
  listed_ += uint64_t{page.last} - page.first + 1;
  return absl::OkStatus();
}

// --- Session ---

Session::Session(Party self, Party peer, uint64_t number, Time now)
    : self_(std::move(self)), peer_(std::move(peer)), number_(number), unlinked_(now) {}

void Session::Apply(Event event) {
  const State* const to = NextState(kTransitions, state_, event);
  assert(to != nullptr);
  state_ = *to;
}

HelloFrame Session::Hello() const {
  return {.initiator = self_.incarnation,
          .target = peer_.incarnation,
          .session = number_,
          .peer_session = peer_number_,
          .name = self_.name};
}

absl::Status Session::OnHelloAck(HelloAnswer& answer, const HelloAckFrame& ack) {
  if (auto status = answer.OnAck(ack, peer_.incarnation); !status.ok()) return status;
  if (peer_number_ != 0 && peer_number_ != ack.session) {
    return absl::AbortedError(absl::StrCat("peer ", peer_.name, " began a new session"));
  }
  peer_number_ = ack.session;
  return absl::OkStatus();
}

absl::Status Session::OnPage(HelloAnswer& answer, const RegionsFrame& page) const {
  return answer.OnPage(page, peer_.incarnation);
}

// A hello that names no number of this side was said before the peer knew it: whoever forgets a
// session changes its own number.
Session::Meaning Session::OnHello(const HelloFrame& hello) {
  if (state_ == State::kEnding) return Meaning::kEnding;
  if (hello.peer_session != 0 && hello.peer_session != number_) return Meaning::kForgotten;
  if (peer_number_ != 0 && peer_number_ != hello.session) return Meaning::kPeerEnded;
  peer_number_ = hello.session;
  return Meaning::kTaken;
}

Session::Refusal Session::OnRefuse(const RefuseFrame& refuse, bool proved) const {
  const std::string refused =
      absl::StrCat("peer ", peer_.name, " refused: ", Printable(refuse.text, kMaxPeerTextBytes));
  switch (refuse.reason) {
    case RefuseReason::kIncarnation:
      return {
          .why = WithReason(absl::FailedPreconditionError(absl::StrCat(
                                "peer ", peer_.name, " restarted: its metadata is of incarnation ",
                                peer_.incarnation.ToString(), ", at its address is now ",
                                refuse.target.ToString(), "; add the new metadata")),
                            Reason::kPeerRestarted),
          .restarted = true};
    case RefuseReason::kVersion:
    case RefuseReason::kAuth:
    case RefuseReason::kNotProved:
    case RefuseReason::kCarrier:
    default:  // of a later version
      return {.why = absl::FailedPreconditionError(refused)};
    case RefuseReason::kSession:
      return {.why = absl::UnavailableError(refused), .again = true, .forgotten = proved};
    case RefuseReason::kClosing:
      break;
  }
  return {.why = absl::UnavailableError(refused), .again = true};
}

void Session::OnLinkUp() {
  Apply(Event::kLinkUp);
  unlinked_ = Time{};
  if (links_++ == 0) channel_.Rewind();
}

void Session::OnLinkDown(Time now) {
  channel_.Rewind();
  if (--links_ > 0) return;
  Apply(Event::kLastLinkDown);
  if (state_ == State::kUnlinked) unlinked_ = now;
}

absl::Status Session::OnNumbered(const Envelope& envelope, Take take) {
  if (auto status = channel_.OnFrame(envelope, take); !status.ok()) return status;
  if (channel_.kept() <= ReliableChannel::kMaxKept) return absl::OkStatus();
  return absl::ResourceExhaustedError("it acknowledges nothing");
}

Time Session::abandon_at(bool waits) const {
  return waits && state_ == State::kUnlinked ? unlinked_ + kAbandonAfter : Time::max();
}

void Session::End(Time now) {
  if (state_ == State::kLinked) unlinked_ = now;
  Apply(Event::kEnd);
}

void Session::Renew() {
  assert(renewable());
  Apply(Event::kRenew);
  ++number_;
  peer_number_ = 0;
  channel_ = ReliableChannel();
}

}  // namespace kvxfer
