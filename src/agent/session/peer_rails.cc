// Rails that fail alone and come back. docs/architecture.md, "A rail fails", says in which order.
#include "src/agent/session/peer.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {

void Peer::OnRailDown(Link& link, uint32_t rail, const absl::Status& why) {
  if (link.rails.OnDown(rail, why, Now())) tracker_.OnRailDown(link.number, rail);
}

void Peer::OnRailUp(Link& link, uint32_t rail) {
  const auto news = link.rails.OnUp(rail);
  if (!news.ok()) return link.Close(news.status());
  if (!*news) return;
  if (link.state == Link::State::kUp && !link.proven) paths_.OnProven(link);
  // It may lie between other ports now.
  for (Outbound& outbound : active_) {
    if (outbound.link == &link) outbound.distances.local = nullptr;
  }
  Log(LogLevel::kInfo, "peer {}: rail {} of {} is up", metadata_.name, rail,
      runtime_->backends[link.backend]->name());
}

// Over the connection itself: lost only together with it, and then nothing needs a fence any more.
void Peer::SendRailFences() {
  paths_.ForEachUpLink([this](Link& link) {
    if (link.rails.all_up()) return;
    for (auto due = link.rails.NextDue(); due.has_value(); due = link.rails.NextDue()) {
      const std::string message = session_.Message(FrameType::kFenceRail, RailFrame{.rail = *due});
      if (!link.endpoint->Send(std::as_bytes(std::span(message)))) break;
      link.rails.OnFenceSent(*due);
    }
  });
}

// From here on nothing of the rail's earlier life is on the way, and all of it that arrived has
// been counted.
void Peer::OnRailFenced(Link& link, const Envelope& envelope) {
  auto frame = Decode<RailFrame>(envelope.body);
  if (!frame.ok()) return ProtocolError(link, frame.status());
  const uint32_t rail = frame->rail;
  if (auto status = link.rails.OnFenced(rail); !status.ok()) return ProtocolError(link, status);
  // Not before: rails also end with their connection, which may close as planned, and then its end
  // is what there is to say.
  Log(LogLevel::kWarning, "peer {}: rail {} of {} failed: {}", metadata_.name, rail,
      runtime_->backends[link.backend]->name(), ToStd(link.rails.why(rail).message()));
  tracker_.OnRailFenced(link.number, rail);
  link.endpoint->ReopenRail(rail);
}

void Peer::RailTimers(Time now) {
  paths_.ForEachUpLink([this, now](Link& link) {
    const RailFences::Expired expired = link.rails.OnTime(now);
    for (const uint32_t rail : expired.cleared) tracker_.OnRailCleared(link.number, rail, now);
    if (!expired.close.ok()) link.Close(expired.close);
  });
}

}  // namespace kvxfer
