// Slots: how many each session is granted, within the room that backends have for immediates.
#include <algorithm>

#include "src/agent/session/inbound.h"
#include "src/core/base/log.h"

namespace kvxfer {
namespace {

// Ranges of slots one session may hold, so that one initiator cannot take the table.
constexpr uint32_t kMaxRanges = 32;

}  // namespace

absl::InlinedVector<ArrivalCapacity*, 1> InboundSession::ArrivalCapacities() const {
  absl::InlinedVector<ArrivalCapacity*, 1> spaces;
  for (const InboundLink* link : links) {
    if (std::ranges::find(spaces, link->space) == spaces.end()) spaces.push_back(link->space);
  }
  return spaces;
}

void InboundHub::OpenArrivalCapacities() {
  for (const auto& backend : runtime_->backends) {
    arrival_capacities_.emplace_back(backend->capabilities().max_arrivals);
  }
}

bool InboundSession::In(const ArrivalCapacity* space) const {
  return std::ranges::find(links, space, &InboundLink::space) != links.end();
}

bool InboundSession::Fits(const InboundLink& link) const {
  return In(link.space) || link.space->Fits(ranges);
}

void InboundSession::Join(InboundLink& link) {
  if (!In(link.space)) link.space->Take(ranges);
  links.push_back(&link);
}

// A session without a connection keeps its slots, by which nothing can come; the room that it took
// is for others. If that is gone when it comes back, it is forgotten and begins anew.
void InboundHub::Leave(InboundSession& session, InboundLink& link) {
  if (std::erase(session.links, &link) == 0 || session.In(link.space)) return;
  link.space->Give(session.ranges);
  GrantWaiting();
}

// Asked for once: where there are none left the answer comes when another session gives back.
void InboundHub::GrantSlots(InboundSession& session) {
  const bool waited = std::exchange(session.wants_slots, false);
  if (session.ranges >= kMaxRanges) return;
  const auto spaces = session.ArrivalCapacities();
  // Its immediates come in by its own links; without one there is no room yet to take.
  const bool space =
      !spaces.empty() && std::ranges::all_of(spaces, [&](const ArrivalCapacity* one) {
        return one->MayGrow(session.ranges);
      });
  const auto grant = space ? slots_.Grant(session.local_id) : std::nullopt;
  if (!grant.has_value()) {
    session.wants_slots = true;
    if (session.ranges > 0 || waited || spaces.empty()) return;
    Log(LogLevel::kWarning, "no slots left to grant to peer {}; it waits for others to end",
        session.name);
    return;
  }
  ++session.ranges;
  for (ArrivalCapacity* one : spaces) one->Take(1);
  session.channel.Push(FrameType::kSlotGrant, *grant);
}

// Those that have no connection are granted theirs when they are back.
void InboundHub::GrantWaiting() {
  for (auto& [initiator, session] : sessions_) {
    if (session->wants_slots && !session->over() && !session->links.empty()) GrantSlots(*session);
  }
}

}  // namespace kvxfer
