#include "src/core/protocol/session.h"

#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
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

Session::Session(Party initiator, Party target, uint64_t number, Time now)
    : initiator_(std::move(initiator)),
      target_(std::move(target)),
      number_(number),
      unlinked_(now) {}

void Session::Apply(Event event) {
  const State* const to = NextState(kTransitions, state_, event);
  assert(to != nullptr);
  state_ = *to;
}

HelloFrame Session::Hello() const {
  const bool known = state_ == State::kLinked || state_ == State::kUnlinked;
  return {.initiator = initiator_.incarnation,
          .target = target_.incarnation,
          .session = number_,
          .oldest_kept = known ? channel_.oldest_kept() : 0,
          .name = initiator_.name};
}

absl::Status Session::OnHelloAck(HelloAnswer& answer, const HelloAckFrame& ack) const {
  return answer.OnAck(ack, target_.incarnation);
}

absl::Status Session::OnPage(HelloAnswer& answer, const RegionsFrame& page) const {
  return answer.OnPage(page, target_.incarnation);
}

Session::Refusal Session::OnRefuse(const RefuseFrame& refuse, bool proved) const {
  const std::string refused =
      absl::StrCat("peer ", target_.name, " refused: ", Printable(refuse.text, kMaxPeerTextBytes));
  switch (refuse.reason) {
    case RefuseReason::kIncarnation:
      return {.why = absl::FailedPreconditionError(
                  absl::StrCat("peer ", target_.name, " restarted: its metadata is of incarnation ",
                               target_.incarnation.ToString(), ", at its address is now ",
                               refuse.target.ToString(), "; add the new metadata")),
              .restarted = true};
    case RefuseReason::kVersion:
    case RefuseReason::kAuth:
    case RefuseReason::kNotProved:
    default:  // of a later version
      return {.why = absl::FailedPreconditionError(refused)};
    case RefuseReason::kSession:
      return {.why = absl::UnavailableError(refused), .again = true, .forgotten = proved};
    case RefuseReason::kClosing:
      break;
  }
  return {.why = absl::UnavailableError(refused), .again = true};
}

void Session::OnLinkUp(bool first) {
  Apply(Event::kLinkUp);
  unlinked_ = Time{};
  if (first) channel_.Rewind();
}

void Session::OnLinkDown(bool last, Time now) {
  channel_.Rewind();
  if (!last) return;
  Apply(Event::kLastLinkDown);
  unlinked_ = now;
}

absl::Status Session::OnNumbered(const Envelope& envelope, Take take) {
  if (auto status = channel_.OnFrame(envelope, take); !status.ok()) return status;
  if (channel_.kept() <= ReliableChannel::kMaxKept) return absl::OkStatus();
  return absl::ResourceExhaustedError("it acknowledges nothing");
}

absl::Status Session::OnPiggybacked(std::span<const std::byte> message, Take take) {
  const auto envelope = DecodeNumbered(message);
  if (!envelope.ok()) return envelope.status();
  if (auto status = channel_.OnAck(envelope->ack); !status.ok()) return status;
  return OnNumbered(*envelope, take);
}

Time Session::abandon_at(bool waits) const {
  const bool awaits = waits || !idle();
  return awaits && state_ == State::kUnlinked ? unlinked_ + kAbandonAfter : Time::max();
}

void Session::Renew() {
  Apply(Event::kRenew);
  ++number_;
  channel_ = ReliableChannel();
}

}  // namespace kvxfer
