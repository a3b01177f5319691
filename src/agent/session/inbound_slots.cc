// Slots: how many each session is granted, within the room that backends have for immediates.
#include <algorithm>

#include "src/agent/session/inbound.h"
#include "src/core/base/log.h"

namespace kvxfer {
namespace {

// Ranges of slots one session may hold, so that one initiator cannot take the table.
constexpr uint32_t kMaxRanges = 32;

}  // namespace

absl::InlinedVector<ArrivalRoom*, 1> InboundSession::Rooms() const {
  absl::InlinedVector<ArrivalRoom*, 1> rooms;
  for (const InboundLink* link : links) {
    if (std::ranges::find(rooms, link->room) == rooms.end()) rooms.push_back(link->room);
  }
  return rooms;
}

void InboundHub::OpenRooms() {
  for (const auto& backend : runtime_->backends) {
    rooms_.emplace_back(backend->capabilities().max_arrivals);
  }
}

bool InboundSession::In(const ArrivalRoom* room) const {
  return std::ranges::find(links, room, &InboundLink::room) != links.end();
}

// Whether there is room for what `session` was granted to come in by `link`.
bool InboundHub::Fits(const InboundSession& session, const InboundLink& link) {
  return session.In(link.room) || link.room->Fits(session.ranges);
}

void InboundHub::Join(InboundSession& session, InboundLink& link) {
  if (!session.In(link.room)) link.room->Take(session.ranges);
  session.links.push_back(&link);
}

// A session without a connection keeps its slots, by which nothing can come; the room that it took
// is for others. If that is gone when it comes back, it is forgotten and begins anew.
void InboundHub::Leave(InboundSession& session, InboundLink& link) {
  if (std::erase(session.links, &link) == 0 || session.In(link.room)) return;
  link.room->Give(session.ranges);
  GrantWaiting();
}

// Asked for once: where there are none left the answer comes when another session gives back.
void InboundHub::GrantSlots(InboundSession& session) {
  const bool waited = std::exchange(session.wants_slots, false);
  if (session.ranges >= kMaxRanges) return;
  const auto rooms = session.Rooms();
  const bool room = std::ranges::all_of(
      rooms, [&](const ArrivalRoom* one) { return one->MayGrow(session.ranges); });
  const auto grant = room ? slots_.Grant(session.owner) : std::nullopt;
  if (!grant.has_value()) {
    session.wants_slots = true;
    if (session.ranges > 0 || waited) return;
    Log(LogLevel::kWarning, "no slots left to grant to peer {}; it waits for others to end",
        session.name);
    return;
  }
  ++session.ranges;
  for (ArrivalRoom* one : rooms) one->Take(1);
  session.channel.Push(FrameType::kSlotGrant, *grant);
}

// Those that have no connection are granted theirs when they are back.
void InboundHub::GrantWaiting() {
  for (auto& [initiator, session] : sessions_) {
    if (session->wants_slots && !session->failed && !session->links.empty()) GrantSlots(*session);
  }
}

}  // namespace kvxfer
