// Messages of the target, and which part of the peer each is for.
#include <string>
#include <utility>

#include "src/agent/session/peer.h"

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
  if (envelope->type == FrameType::kHelloAck) {
    OnHelloAck(link, *envelope);
    return TakeEarly(link);
  }
  if (envelope->type == FrameType::kRegions) {
    OnRegions(link, *envelope);
    return TakeEarly(link);
  }
  if (link.state == Link::State::kHello) return KeepEarly(link, message);
  OnInSession(link, *envelope);
}

// Until the answer to the hello is complete. Before it is not known of which session the peer
// speaks; and the session counts no link that is not up, so it may be over while one speaks.
void Peer::KeepEarly(Link& link, std::span<const std::byte> message) {
  link.early_bytes += message.size();
  if (link.early.size() >= ReliableChannel::kMaxGap ||
      link.early_bytes > ReliableChannel::kMaxAheadBytes) {
    return ProtocolError(link, absl::ResourceExhaustedError("it does not answer the hello"));
  }
  link.early.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
}

void Peer::TakeEarly(Link& link) {
  if (link.state != Link::State::kUp) return;
  for (const std::string& message : std::exchange(link.early, {})) {
    if (link.state == Link::State::kClosing) return;
    const auto envelope = DecodeEnvelope(std::as_bytes(std::span(message)));
    if (envelope.ok()) OnInSession(link, *envelope);
  }
}

void Peer::OnInSession(Link& link, const Envelope& envelope) {
  absl::Status status = shared_.OnMessage(link, envelope);
  if (status.ok() && envelope.type == FrameType::kRailFenced) {
    status = DecodeFor<RailFrame>(envelope.body,
                                  [&](auto& frame) { return keeper_.OnRailFenced(link, frame); });
  }
  if (!status.ok()) ProtocolError(link, status);
}

void Peer::ProtocolError(Link& link, const absl::Status& why) {
  shared_.Fail(why);
  link.Close(why);
}

}  // namespace kvxfer
