// The session with the target's incarnation: its hello, what the target's answer means for it, and
// its end.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/host_identity.h"
#include "src/core/base/reason.h"
#include "src/core/base/strings.h"

namespace kvxfer {

void Peer::OnConnected(Link& link) {
  if (link.state == Link::State::kClosing) return;
  link.LearnRails(runtime_->options.connect_timeout, Now());
  link.state = Link::State::kProving;
  link.give_up = Now() + runtime_->options.connect_timeout;
  const Handshake& handshake =
      link.handshake.emplace(Handshake::Dialling(runtime_->NewSide(link.backend), link.number,
                                                 session_.Hello(), session_.channel().received()));
  for (const std::string& message : {handshake.HelloMessage(), handshake.KeyMessage()}) {
    if (link.endpoint->Send(std::as_bytes(std::span(message)))) continue;
    return link.Close(absl::InternalError("no room for the hello"));
  }
}

// Before the target has proved who it is, nothing that comes may touch the session.
void Peer::OnProving(Link& link, std::span<const std::byte> message) {
  const auto envelope = DecodeEnvelope(message);
  if (envelope.ok() && envelope->type == FrameType::kRefuse) return OnRefuse(link, *envelope);
  const auto proof = link.handshake->Take(message);
  if (!proof.ok()) {
    return link.Close(
        WithMessage(proof.status(), absl::StrCat("at the address of peer ", metadata_.name,
                                                 " is another one: ", proof.status().message())));
  }
  if (!link.endpoint->Send(std::as_bytes(std::span(*proof)))) {
    return link.Close(absl::InternalError("no room for the proof"));
  }
  link.handshake.reset();
  link.state = Link::State::kHello;
}

void Peer::OnHelloAck(Link& link, const Envelope& envelope) {
  auto ack = Decode<HelloAckFrame>(envelope.body);
  if (!ack.ok()) return ProtocolError(link, ack.status());
  if (link.state != Link::State::kHello) return;
  const absl::Status status = session_.OnHelloAck(link.answer, *ack);
  if (absl::IsAborted(status)) {
    link.refused = true;
    return EndSession(status, Ends::kPreceding);
  }
  if (!status.ok()) return ProtocolError(link, status);
  GoUp(link);
  if (auto acked = session_.channel().OnAck(envelope.ack); !acked.ok()) ProtocolError(link, acked);
}

// A page of the target's regions. Those that it does not list are gone.
void Peer::OnRegions(Link& link, const Envelope& envelope) {
  const auto page = Decode<RegionsFrame>(envelope.body);
  if (!page.ok()) return ProtocolError(link, page.status());
  if (link.state != Link::State::kHello) return;
  if (auto status = session_.OnPage(link.answer, *page); !status.ok()) {
    return ProtocolError(link, status);
  }
  regions_.OnPage(*page);
  if (auto status = regions_.CheckRevoked(); !status.ok()) return ProtocolError(link, status);
  GoUp(link);
}

// Once the target has said all that it says when a connection begins.
void Peer::GoUp(Link& link) {
  if (!link.answer.complete()) return;
  transfers_.DropDeadKeys();
  link.state = Link::State::kUp;
  link.was_up = true;
  const Time now = Now();
  link.heard = now;
  link.prove_by = now + runtime_->options.connect_timeout * 3 / 4;
  shared_.OnLinkUp(link);
  transfers_.OnLinkUp(link);
  runtime_->presence.LinkUp(metadata_.name, metadata_.incarnation);
  if (link.rails.up() != 0) paths_.OnProven(link);
}

void Peer::OnRefuse(Link& link, const Envelope& envelope) {
  auto refuse = Decode<RefuseFrame>(envelope.body);
  const bool proved = link.state == Link::State::kHello || link.state == Link::State::kUp;
  if (!refuse.ok()) {
    return proved ? ProtocolError(link, refuse.status()) : link.Close(refuse.status());
  }
  const Session::Refusal refusal = session_.OnRefuse(*refuse, proved);
  link.refused = refusal.again;
  link.Close(refusal.why);
  if (refusal.forgotten) EndSession(refusal.why, Ends::kPreceding);
  // Whoever is at its address has not proved to be its successor: this ends transfers that no other
  // connection can carry, and says nothing of the bytes that are on their way.
  bool other = shared_.linked();
  paths_.ForEachLink([&](const Link& one) { other |= one.state != Link::State::kClosing; });
  if (refusal.restarted && !other) transfers_.Lose(refusal.why);
}

// Where the peer's process is proven dead, nothing is kept for it.
void Peer::CheckDeath(const absl::Status& why) {
  if (!ProcessGone(metadata_.host, runtime_->host)) return;
  // A restart that was recognised as such stays one.
  const auto code = absl::IsFailedPrecondition(why) ? why.code() : absl::StatusCode::kUnavailable;
  const absl::Status gone(code, absl::StrCat("peer ", metadata_.name, " (process ",
                                             metadata_.host.pid, ") is gone: ", why.message()));
  OnDeath(WithReason(gone, Reason::kPeerGone));
}

void Peer::OnDeath(const absl::Status& why) {
  EndSession(why, Ends::kAll);
  transfers_.OnQuiet();
  transfers_.Settle();
  ready_.Mark();
}

// A peer that waits for another one of its incarnation to be closed has nothing in its session.
void Peer::EndSession(const absl::Status& why, Ends which) {
  if (shared_.IsActive(this)) return shared_.End(why, which);
  OnSessionEnd(why, which);
}

// Ends every transfer of the session, and its links.
void Peer::OnSessionEnd(const absl::Status& why, Ends which) {
  const auto ends = [&](const auto& record) {
    return which == Ends::kAll || session_.Precedes(record.posted);
  };
  transfers_.EndQueued(ends, TransferState::kFailed, why);
  tracker_.OnSessionLost(why, Now());
  paths_.ForEachLink([&](Link& link) {
    // What goes on in the next session does not take it for an attempt that failed.
    link.refused |= which == Ends::kPreceding;
    link.Close(why);
  });
  transfers_.Settle();
  ready_.Mark();
}

void Peer::OnSessionRenewed() {
  tracker_.NewSession();
  transfers_.OnNewSession();
  ready_.Mark();
}

}  // namespace kvxfer
