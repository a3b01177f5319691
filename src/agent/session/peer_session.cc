// The session with the target's incarnation: its hello, what the target's answer means for it, and
// its end.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/host_identity.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer {

void Peer::OnConnected(Link& link) {
  HelloFrame hello{.initiator = runtime_->incarnation,
                   .target = metadata_.incarnation,
                   .session = session_,
                   .oldest_kept = session_known_ ? channel_.oldest_kept() : 0,
                   .name = runtime_->options.name};
  link.LearnRails(runtime_->options.connect_timeout, Now());
  link.state = Link::State::kHello;
  link.give_up = Now() + runtime_->options.connect_timeout;
  const std::string message = EncodeMessage(FrameType::kHello, 0, channel_.received(), hello);
  if (!link.endpoint->Send(std::as_bytes(std::span(message)))) {
    link.Close(absl::InternalError("no room for the hello"));
  }
}

void Peer::OnHelloAck(Link& link, const Envelope& envelope) {
  auto ack = Decode<HelloAckFrame>(envelope.body);
  if (!ack.ok()) return ProtocolError(link, ack.status());
  if (link.state != Link::State::kHello) return;
  if (ack->target != metadata_.incarnation) {
    return ProtocolError(link, absl::InvalidArgumentError("another incarnation took the hello"));
  }
  if (link.acked) return ProtocolError(link, absl::InvalidArgumentError("second hello-ack"));
  link.acked = true;
  version_ = ack->version;
  link.carries = ack->version >= kPiggybackVersion;
  link.rails.OnVersion(ack->version >= kRailVersion);
  if (ack->version < kPageVersion) {
    regions_.RevokeAllBut(std::move(ack->live_regions), ack->last_region);
  } else {
    link.regions_due = ack->last_region;
  }
  GoUp(link);
}

// A page of the target's regions. Those that it does not list are gone.
void Peer::OnRegions(Link& link, const Envelope& envelope) {
  const auto page = Decode<RegionsFrame>(envelope.body);
  if (!page.ok()) return ProtocolError(link, page.status());
  if (link.state != Link::State::kHello) return;
  if (page->target != metadata_.incarnation) {
    return ProtocolError(link, absl::InvalidArgumentError("regions of another incarnation"));
  }
  link.regions_listed += uint64_t{page->last} - page->first + 1;
  regions_.OnPage(*page);
  if (auto status = regions_.CheckRevoked(); !status.ok()) return ProtocolError(link, status);
  GoUp(link);
}

// Once the target has said all that it says when a connection begins.
void Peer::GoUp(Link& link) {
  if (!link.acked || link.regions_listed < link.regions_due) return;
  DropDeadKeys();
  const bool first = paths_.UpLink() == nullptr;
  link.state = Link::State::kUp;
  link.was_up = true;
  const Time now = Now();
  link.heard = now;
  link.prove_by = now + runtime_->options.connect_timeout * 3 / 4;
  link.ping_at = now + runtime_->options.heartbeat;
  unlinked_ = Time{};
  session_known_ = true;
  if (first) channel_.Rewind();
  const auto arrival = runtime_->backends[link.backend]->capabilities().arrival;
  if (arrival == Arrival::kImmediate && !tracker_.has_slots()) tracker_.RequestSlots();
  // Data sent before over a lost connection cannot land after the target's side of it is gone, and
  // the target accepts a new session only then.
  ClearQuarantines();
  for (const Outbound& outbound : active_) {
    if (outbound.sending->asks()) link.endpoint->Fence({.transfer = outbound.record->id});
  }
  runtime_->presence.LinkUp(metadata_.name, metadata_.incarnation);
  if (link.rails.up() != 0) paths_.OnProven(link);
}

void Peer::OnRefuse(Link& link, const Envelope& envelope) {
  auto refuse = Decode<RefuseFrame>(envelope.body);
  if (!refuse.ok()) return ProtocolError(link, refuse.status());
  absl::Status why;
  const std::string text = Printable(refuse->text, kMaxPeerTextBytes);
  switch (refuse->reason) {
    case RefuseReason::kIncarnation:
      why = absl::FailedPreconditionError(
          absl::StrCat("peer ", metadata_.name, " restarted: its metadata is of incarnation ",
                       metadata_.incarnation.ToString(), ", at its address is now ",
                       refuse->target.ToString(), "; add the new metadata"));
      break;
    case RefuseReason::kVersion:
    case RefuseReason::kAuth:
      why =
          absl::FailedPreconditionError(absl::StrCat("peer ", metadata_.name, " refused: ", text));
      break;
    case RefuseReason::kSession:
    case RefuseReason::kClosing:
      why = absl::UnavailableError(absl::StrCat("peer ", metadata_.name, " refused: ", text));
      break;
  }
  const bool forgotten = refuse->reason == RefuseReason::kSession;
  link.refused = forgotten || refuse->reason == RefuseReason::kClosing;
  link.Close(why);
  // What was posted after the connection was lost goes on in the new session.
  if (forgotten) ResetSession(why, unlinked_);
  if (refuse->reason == RefuseReason::kIncarnation) OnDeath(why);
}

// Where the peer's process is proven dead, nothing is kept for it.
void Peer::CheckDeath(const absl::Status& why) {
  if (!ProcessGone(metadata_.host, runtime_->host)) return;
  // A restart that was recognised as such stays one.
  const auto code = absl::IsFailedPrecondition(why) ? why.code() : absl::StatusCode::kUnavailable;
  OnDeath(absl::Status(code, absl::StrCat("peer ", metadata_.name, " (process ", metadata_.host.pid,
                                          ") is gone: ", why.message())));
}

void Peer::OnDeath(const absl::Status& why) {
  ResetSession(why);
  ClearQuarantines();
  Settle();
}

// Ends every transfer posted up to `posted_until` and starts a session of which the target knows
// nothing yet.
void Peer::ResetSession(const absl::Status& why, Time posted_until) {
  const TransferState state = TransferState::kFailed;
  const auto before = [&](const auto& record) { return record.posted <= posted_until; };
  for (const TransferPtr& record : queue_.Remove(before)) FailQueued(record, state, why);
  tracker_.OnSessionLost(why, Now());
  paths_.ForEachLink([&](Link& link) { link.Close(why); });
  Settle();
  NewSession();
}

void Peer::NewSession() {
  session_ += 1;
  session_known_ = false;
  channel_ = ReliableChannel();
  tracker_.NewSession();
  asked_ = {};
  waits_closed_.clear();
  stager_.OnSessionEnd();
}

// Neither side has anything to say in this session, nor is anything queued that was posted before
// its last connection was lost and that a Quiesce at the target may have ruled out since.
bool Peer::SessionIsIdle() const {
  return active_.empty() && channel_.kept() == 0 && asked_.empty() && waits_closed_.empty() &&
         !queue_.AnyOf([&](const auto& record) { return record.posted <= unlinked_; });
}

}  // namespace kvxfer
