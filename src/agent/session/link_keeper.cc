#include "src/agent/session/link_keeper.h"

#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/str_cat.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {

void LinkKeeper::OnRailDown(Link& link, uint32_t rail, const absl::Status& why) {
  if (link.rails.OnDown(rail, why, Now())) parts_.tracker->OnRailDown(link.number, rail);
}

bool LinkKeeper::OnRailUp(Link& link, uint32_t rail) {
  const auto news = link.rails.OnUp(rail);
  if (!news.ok()) link.Close(news.status());
  if (!news.ok() || !*news) return false;
  if (link.state == Link::State::kUp && !link.proven) parts_.paths->OnProven(link);
  Log(LogLevel::kInfo, "peer {}: rail {} of {} is up", parts_.peer->name, rail,
      parts_.runtime->backends[link.backend]->name());
  return true;
}

// Over the connection itself: lost only together with it, and then nothing needs a fence any more.
bool LinkKeeper::SendFences() {
  bool all = true;
  parts_.paths->ForEachUpLink([&](Link& link) {
    if (link.rails.all_up()) return;
    for (auto due = link.rails.NextDue(); due.has_value(); due = link.rails.NextDue()) {
      const std::string message =
          parts_.session->Message(FrameType::kFenceRail, RailFrame{.rail = *due});
      if (!link.endpoint->Send(std::as_bytes(std::span(message)))) {
        all = false;
        break;
      }
      link.rails.OnFenceSent(*due);
    }
  });
  return all;
}

// From here on nothing of the rail's earlier life is on the way, and all of it that arrived has
// been counted.
absl::Status LinkKeeper::OnRailFenced(Link& link, const RailFrame& frame) {
  const uint32_t rail = frame.rail;
  if (auto status = link.rails.OnFenced(rail); !status.ok()) return status;
  // Not before: rails also end with their connection, which may close as planned, and then its end
  // is what there is to say.
  Log(LogLevel::kWarning, "peer {}: rail {} of {} failed: {}", parts_.peer->name, rail,
      parts_.runtime->backends[link.backend]->name(), ToStd(link.rails.why(rail).message()));
  parts_.tracker->OnRailFenced(link.number, rail);
  link.endpoint->ReopenRail(rail);
  return absl::OkStatus();
}

void LinkKeeper::OnRailTimer(Time now) {
  parts_.paths->ForEachUpLink([this, now](Link& link) {
    const RailFences::Expired expired = link.rails.OnTime(now);
    for (const uint32_t rail : expired.cleared)
      parts_.tracker->OnRailCleared(link.number, rail, now);
    if (!expired.close.ok()) link.Close(expired.close);
  });
}

void LinkKeeper::OnConnectTimer(Time now) {
  const auto within = std::chrono::duration_cast<std::chrono::milliseconds>(
      parts_.runtime->options.connect_timeout);
  parts_.paths->ForEachLink([&](Link& link) {
    if (link.state == Link::State::kUp || now < link.give_up) return;
    link.Close(absl::UnavailableError(absl::StrCat(
        "peer ", parts_.peer->name, " did not answer within ", within.count(), " ms")));
  });
}

}  // namespace kvxfer
