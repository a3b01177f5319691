// Messages of the target, and which part of the peer each is for.
#include "src/agent/session/peer.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {

void Peer::OnMessage(Link& link, std::span<const std::byte> message) {
  if (link.state == Link::State::kClosing) return;
  if (link.state == Link::State::kConnecting) {
    return link.Close(absl::InvalidArgumentError("a message before the connection is made"));
  }
  if (link.state == Link::State::kProving) return OnProving(link, message);
  auto envelope = DecodeEnvelope(message);
  if (!envelope.ok()) return ProtocolError(link, envelope.status());
  if (link.was_up) {
    link.heard = runtime_->now;
    runtime_->presence.Heard(metadata_.name, metadata_.incarnation);
  }
  if (envelope->type == FrameType::kRefuse) return OnRefuse(link, *envelope);
  if (auto status = session_.channel().OnAck(envelope->ack); !status.ok()) {
    return ProtocolError(link, status);
  }
  if (envelope->type == FrameType::kHelloAck) return OnHelloAck(link, *envelope);
  if (envelope->type == FrameType::kRegions) return OnRegions(link, *envelope);
  if (envelope->type == FrameType::kPong) {
    link.unanswered = Time{};
    return;
  }
  if (envelope->type == FrameType::kPiggyback) return OnPiggyback(link, envelope->body);
  absl::Status status;
  if (envelope->type == FrameType::kRailFenced) {
    status = DecodeFor<RailFrame>(envelope->body,
                                  [&](auto& frame) { return keeper_.OnRailFenced(link, frame); });
  } else if (envelope->sequence != 0) {
    status = session_.OnNumbered(
        *envelope, [this](const auto& frame) { return transfers_.OnNumbered(frame); });
  }
  if (!status.ok()) ProtocolError(link, status);
}

// First what the target acknowledges, then what it begins: an answer is told after the transfer
// that it answers has ended.
void Peer::OnPiggyback(Link& link, std::span<const std::byte> body) {
  const auto both = DecodePiggyback(body);
  absl::Status status = both.status();
  const auto take = [this](const auto& frame) { return transfers_.OnNumbered(frame); };
  if (status.ok()) status = session_.OnPiggybacked(both->own, take);
  if (status.ok()) {
    status = runtime_->reverse_session->OnPiggybackedFrom(metadata_.incarnation, both->session,
                                                          both->carried);
  }
  if (!status.ok()) ProtocolError(link, status);
}

absl::Status Peer::OnPiggybacked(std::span<const std::byte> message) {
  const auto take = [this](const auto& frame) { return transfers_.OnNumbered(frame); };
  absl::Status status = session_.OnPiggybacked(message, take);
  if (!status.ok()) ResetSession(Broken(status), Ends::kAll);
  transfers_.Settle();
  return status;
}

void Peer::ProtocolError(Link& link, const absl::Status& why) {
  const absl::Status status = Broken(why);
  link.Close(status);
  ResetSession(status, Ends::kAll);
}

absl::Status Peer::Broken(const absl::Status& why) const {
  Log(LogLevel::kError, "peer {} broke the protocol: {}", metadata_.name, ToStd(why.message()));
  return absl::InternalError(
      absl::StrCat("peer ", metadata_.name, " broke the protocol: ", why.message()));
}

}  // namespace kvxfer
