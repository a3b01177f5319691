// Messages of the target, and which part of the peer each is for.
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
  // Before the answer to the hello it is not known of which session the peer speaks.
  const bool begins = link.state == Link::State::kHello && !link.answer.answered();
  if (begins && envelope->sequence != 0) {
    return link.Close(absl::UnavailableError("a numbered frame before the answer to the hello"));
  }
  if (envelope->type == FrameType::kHelloAck) OnHelloAck(link, *envelope);
  if (link.state == Link::State::kClosing) return;
  if (!begins || link.answer.answered()) {
    if (auto status = session_.channel().OnAck(envelope->ack); !status.ok()) {
      return ProtocolError(link, status);
    }
  }
  if (envelope->type == FrameType::kRegions) return OnRegions(link, *envelope);
  if (envelope->type == FrameType::kPong) {
    link.unanswered = Time{};
    return;
  }
  absl::Status status;
  if (envelope->type == FrameType::kRailFenced) {
    status = DecodeFor<RailFrame>(envelope->body,
                                  [&](auto& frame) { return keeper_.OnRailFenced(link, frame); });
  } else if (envelope->sequence != 0) {
    status = shared_.OnNumbered(*envelope);
  }
  if (!status.ok()) ProtocolError(link, status);
}

void Peer::ProtocolError(Link& link, const absl::Status& why) {
  shared_.Fail(why);
  link.Close(why);
}

}  // namespace kvxfer
