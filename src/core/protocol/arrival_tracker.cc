#include "src/core/protocol/arrival_tracker.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Adds to every protocol error how to recover: after one, none of the session's counts can be
// trusted.
template <typename... Parts>
absl::Status ProtocolError(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts..., "; the session must be reset"));
}

bool SameGeneration(const SlotTable::Slot& slot, SlotRef ref) {
  return slot.generation == ref.generation;
}

// The slot is one generation further: the lane that `ref` names was complete and its slot was
// freed.
bool FreedSince(const SlotTable::Slot& slot, SlotRef ref) {
  return slot.generation == NextGeneration(ref.generation);
}

}  // namespace

// --- frames -------------------------------------------------------------------------------------

absl::Status ArrivalTracker::OnOpen(OpenFrame&& frame) {
  const auto known = transfers_.find(frame.transfer);
  if (known != transfers_.end() && known->second.phase != Phase::kUnopened) {
    return ProtocolError("OPEN of transfer ", frame.transfer, ", which is open already");
  }
  if (frame.order != 0 && IsPast(frame.order)) {
    return ProtocolError("OPEN of transfer ", frame.transfer, ": number ", frame.order,
                         " is past already");
  }
  // The notification uses credit from here until it is delivered or aborted.
  if (frame.notice != Notice::kNone) {
    ++held_notifications_;
    held_bytes_ += frame.notification.size();
  }
  if (known == transfers_.end() && frame.lanes.empty()) {  // no lane is awaited
    return End(frame.transfer, frame.order, frame.notice, std::move(frame.notification));
  }
  // The transfer may be known already: a DISCARD may name lanes before OPEN does.
  Inbound& transfer = transfers_[frame.transfer];
  transfer.phase = Phase::kOpen;
  transfer.order = frame.order;
  transfer.notice = frame.notice;
  transfer.notification = std::move(frame.notification);
  if (absl::Status s = AddLanes(frame.transfer, transfer, frame.lanes); !s.ok()) {
    return Annotate(s, "OPEN");
  }
  return EndIfWhole(frame.transfer);
}

absl::Status ArrivalTracker::OnAmend(const AmendFrame& frame) {
  const auto it = transfers_.find(frame.transfer);
  if (it == transfers_.end() || it->second.phase != Phase::kOpen) {
    return ProtocolError("AMEND of transfer ", frame.transfer, ", which is not open");
  }
  Inbound& transfer = it->second;
  // Each lane of an AMEND replaces one discarded lane. A surplus lane could hide that another is
  // missing.
  if (frame.lanes.size() > transfer.missing) {
    return ProtocolError("AMEND of transfer ", frame.transfer, " brings ", frame.lanes.size(),
                         " lanes where ", transfer.missing, " are missing");
  }
  transfer.missing -= frame.lanes.size();
  if (absl::Status s = AddLanes(frame.transfer, transfer, frame.lanes); !s.ok()) {
    return Annotate(s, "AMEND");
  }
  return EndIfWhole(frame.transfer);
}

absl::Status ArrivalTracker::OnAbort(const AbortFrame& frame) {
  const auto [it, fresh] = transfers_.try_emplace(frame.transfer);
  Inbound& transfer = it->second;
  if (fresh && frame.opened) {  // opened and no longer known: it was complete
    transfers_.erase(it);
    actions_.released.aborted.push_back({.transfer = frame.transfer, .delivered = true});
    return absl::OkStatus();
  }
  if (transfer.phase == Phase::kAborting) {
    return ProtocolError("ABORT of transfer ", frame.transfer, ", which is aborted already");
  }
  const bool open = transfer.phase == Phase::kOpen;
  // `order` and `opened` must match the state here; otherwise the two sides disagree about the
  // transfer.
  if (frame.opened != open || (open && frame.order != transfer.order)) {
    return ProtocolError("ABORT of transfer ", frame.transfer,
                         " does not agree with what OPEN said");
  }
  transfer.phase = Phase::kAborting;
  if (transfer.notice != Notice::kNone) Unhold(transfer.notification);
  transfer.notification.clear();
  if (absl::Status s = AddAbortedLanes(frame, transfer); !s.ok()) return Annotate(s, "ABORT");
  // Exact lanes are already freed; other transfers may be using their slots.
  std::erase_if(transfer.lanes, [](const Lane& lane) { return lane.exact; });
  // The acknowledgement must wait until no byte of the transfer can be written: OnFenced sends it.
  actions_.fence.push_back(frame.transfer);
  if (frame.order == 0) return absl::OkStatus();
  return Annotate(Record(frame.order, {.last = frame.order, .delivered = {}}), "ABORT");
}

absl::Status ArrivalTracker::OnDiscard(const DiscardFrame& frame) {
  const auto it = transfers_.find(frame.transfer);
  // The abort's acknowledgement answers for all lanes.
  if (it != transfers_.end() && it->second.phase == Phase::kAborting) return absl::OkStatus();
  for (const SlotRef ref : frame.slots) {
    if (absl::Status s = DiscardLane(frame.transfer, ref); !s.ok()) return Annotate(s, "DISCARD");
  }
  return absl::OkStatus();
}

absl::Status ArrivalTracker::DiscardLane(uint64_t id, SlotRef ref) {
  const absl::StatusOr<SlotTable::Slot*> slot = Resolve(ref);
  if (!slot.ok()) return slot.status();
  const auto it = transfers_.find(id);
  Lane* lane = it == transfers_.end() ? nullptr : FindLane(it->second, ref);
  if (lane != nullptr && lane->draining) {
    return ProtocolError("slot ", ref.slot, " of transfer ", id, " is discarded already");
  }
  // All of the lane arrived: it is exact, or the transfer has ended and the slot is one generation
  // further.
  const bool ended = it == transfers_.end() && FreedSince(**slot, ref);
  if (ended || (lane != nullptr && lane->exact)) {
    actions_.released.discarded.push_back({.transfer = id, .ref = ref, .complete = true});
    return absl::OkStatus();
  }
  // The lane is open and incomplete: it waits for OnLanesDrained, and the transfer for a
  // replacement.
  if (lane != nullptr) {
    lane->draining = true;
    ++it->second.missing;
    return absl::OkStatus();
  }
  // No OPEN or AMEND has named the lane yet, and none will, so no replacement is missing. The lane
  // is recorded so that its immediates are ignored until it is drained.
  if (!SameGeneration(**slot, ref) || !lane_of_slot_.try_emplace(ref.slot, id).second) {
    return ProtocolError("slot ", ref.slot, " at generation ", ref.generation,
                         " is no lane of transfer ", id);
  }
  transfers_[id].lanes.push_back({.ref = ref, .expected = 0, .exact = false, .draining = true});
  return absl::OkStatus();
}

absl::Status ArrivalTracker::AddLanes(uint64_t id, Inbound& transfer,
                                      const std::vector<LaneFrame>& lanes) {
  transfer.lanes.reserve(transfer.lanes.size() + lanes.size());
  for (const LaneFrame& lane : lanes) {
    const absl::StatusOr<SlotTable::Slot*> slot = ResolveInUse(lane.ref);
    if (!slot.ok()) return slot.status();
    if (lane.arrivals == 0) {
      return ProtocolError("slot ", lane.ref.slot, " of transfer ", id, " expects no arrival");
    }
    if (!lane_of_slot_.try_emplace(lane.ref.slot, id).second) {
      return ProtocolError("slot ", lane.ref.slot, " of transfer ", id, " is a lane already");
    }
    transfer.lanes.push_back(
        {.ref = lane.ref, .expected = lane.arrivals, .exact = false, .draining = false});
    // The lane's immediates may have arrived before this frame.
    if (absl::Status s = CheckExact(id, transfer, transfer.lanes.back()); !s.ok()) return s;
  }
  return absl::OkStatus();
}

absl::Status ArrivalTracker::AddAbortedLanes(const AbortFrame& frame, Inbound& transfer) {
  for (const SlotRef ref : frame.slots) {
    const absl::StatusOr<SlotTable::Slot*> slot = Resolve(ref);
    if (!slot.ok()) return slot.status();
    // A lane that OPEN, AMEND or DISCARD named is known. Others were posted to and never named;
    // their slots are freed with the rest in OnFenced.
    if (FindLane(transfer, ref) != nullptr) continue;
    if (!SameGeneration(**slot, ref) ||
        !lane_of_slot_.try_emplace(ref.slot, frame.transfer).second) {
      return ProtocolError("slot ", ref.slot, " at generation ", ref.generation,
                           " is no lane of transfer ", frame.transfer);
    }
    transfer.lanes.push_back({.ref = ref, .expected = 0, .exact = false, .draining = false});
  }
  return absl::OkStatus();
}

// --- arrivals -----------------------------------------------------------------------------------

absl::Status ArrivalTracker::OnImmediate(SlotRef ref) {
  const absl::StatusOr<SlotTable::Slot*> slot = ResolveInUse(ref);
  if (!slot.ok()) return Annotate(slot.status(), "immediate");
  ++(*slot)->arrivals;
  const auto known = lane_of_slot_.find(ref.slot);
  if (known == lane_of_slot_.end()) return absl::OkStatus();  // its OPEN has not arrived yet
  const uint64_t id = known->second;
  Inbound& transfer = transfers_.find(id)->second;
  Lane* const lane = FindLane(transfer, ref);
  if (absl::Status s = CheckExact(id, transfer, *lane); !s.ok()) return s;
  return lane->exact ? EndIfWhole(id) : absl::OkStatus();
}

absl::Status ArrivalTracker::OnFenced(uint64_t transfer) {
  const auto it = transfers_.find(transfer);
  if (it == transfers_.end() || it->second.phase != Phase::kAborting) {
    return absl::InvalidArgumentError(
        absl::StrCat("transfer ", transfer, " was fenced, but no abort of it waits for that"));
  }
  // Nothing of the transfer is in flight, so its slots cannot receive late immediates: they can be
  // freed.
  for (const Lane& lane : it->second.lanes) FreeSlot(lane.ref);
  transfers_.erase(it);
  actions_.released.aborted.push_back({.transfer = transfer, .delivered = false});
  return absl::OkStatus();
}

// The lanes' rails are fenced and drained, so their slots can be freed and the initiator may send
// the slices again.
absl::Status ArrivalTracker::OnLanesDrained(uint64_t transfer) {
  const auto it = transfers_.find(transfer);
  if (it == transfers_.end()) return absl::OkStatus();
  Inbound& inbound = it->second;
  for (const Lane& lane : inbound.lanes) {
    if (!lane.draining) continue;
    FreeSlot(lane.ref);
    actions_.released.discarded.push_back(
        {.transfer = transfer, .ref = lane.ref, .complete = false});
  }
  std::erase_if(inbound.lanes, [](const Lane& lane) { return lane.draining; });
  if (inbound.phase == Phase::kUnopened && inbound.lanes.empty()) {
    transfers_.erase(it);  // a later OPEN or ABORT creates it again
    return absl::OkStatus();
  }
  return EndIfWhole(transfer);
}

absl::Status ArrivalTracker::CheckExact(uint64_t id, const Inbound& transfer, Lane& lane) {
  // Immediates of an aborted or discarded lane are ignored; its slot is freed after the fence.
  if (transfer.phase != Phase::kOpen || lane.draining) return absl::OkStatus();
  const SlotTable::Slot* const slot = slots_->Find(lane.ref.slot);
  // More arrivals than expected mean that some were counted twice or belong elsewhere: a fatal
  // error.
  if (slot->arrivals > lane.expected) {
    return ProtocolError("slot ", lane.ref.slot, " of transfer ", id, " has ", slot->arrivals,
                         " arrivals where ", lane.expected, " are expected");
  }
  if (slot->arrivals == lane.expected) {
    lane.exact = true;
    FreeSlot(lane.ref);
  }
  return absl::OkStatus();
}

// --- the end and the order ----------------------------------------------------------------------

bool ArrivalTracker::IsWhole(const Inbound& transfer) {
  return transfer.phase == Phase::kOpen && transfer.missing == 0 &&
         std::all_of(transfer.lanes.begin(), transfer.lanes.end(),
                     [](const Lane& lane) { return lane.exact; });
}

absl::Status ArrivalTracker::EndIfWhole(uint64_t id) {
  const auto it = transfers_.find(id);
  if (!IsWhole(it->second)) return absl::OkStatus();
  Inbound whole = std::move(it->second);
  transfers_.erase(it);
  return End(id, whole.order, whole.notice, std::move(whole.notification));
}

// Transfer `id` is complete and already removed from transfers_.
absl::Status ArrivalTracker::End(uint64_t id, uint64_t order, Notice notice,
                                 std::string&& notification) {
  Past past{
      .last = order,
      .delivered = {.transfer = id, .notice = notice, .notification = std::move(notification)}};
  actions_.released.arrived.push_back(id);
  // An unordered transfer is delivered at once; an ordered one waits for all numbers before it.
  if (order != 0) return Record(order, std::move(past));
  if (past.deliver()) GiveOut(std::move(past.delivered));
  return absl::OkStatus();
}

// A number is past if it was delivered or skipped, whether in order or ahead of the order.
bool ArrivalTracker::IsPast(uint64_t order) const {
  if (order < next_order_) return true;
  const auto above = ahead_.upper_bound(order);
  return above != ahead_.begin() && std::prev(above)->second.last >= order;
}

absl::Status ArrivalTracker::Record(uint64_t order, Past&& past) {
  // The usual case: the next number in order, and nothing recorded ahead of it.
  if (order == next_order_ && ahead_.empty()) {
    next_order_ = past.last + 1;
    if (past.deliver()) GiveOut(std::move(past.delivered));
    return absl::OkStatus();
  }
  if (IsPast(order)) return ProtocolError("number ", order, " is used twice");
  const auto at = ahead_.emplace(order, std::move(past)).first;
  // Merge neighbouring skipped numbers into one run, so that `ahead_` stays bounded.
  if (!at->second.deliver()) {
    const auto after = std::next(at);
    if (after != ahead_.end() && after->first == order + 1 && !after->second.deliver()) {
      at->second.last = after->second.last;
      ahead_.erase(after);
    }
    if (at != ahead_.begin()) {
      Past& before = std::prev(at)->second;
      if (before.last + 1 == order && !before.deliver()) {
        before.last = at->second.last;
        ahead_.erase(at);
      }
    }
  }
  // Deliver what is now in order.
  while (!ahead_.empty() && ahead_.begin()->first == next_order_) {
    Past& next = ahead_.begin()->second;
    next_order_ = next.last + 1;
    if (next.deliver()) GiveOut(std::move(next.delivered));
    ahead_.erase(ahead_.begin());
  }
  return absl::OkStatus();
}

void ArrivalTracker::GiveOut(Delivered&& delivered) {
  Unhold(delivered.notification);
  ++given_out_.notifications;
  given_out_.bytes += delivered.notification.size();
  actions_.deliver.push_back(std::move(delivered));
}

void ArrivalTracker::Unhold(const std::string& notification) {
  --held_notifications_;
  held_bytes_ -= notification.size();
}

ArrivalTracker::Deliveries ArrivalTracker::GiveOut() {
  // The missing numbers will never come. Delivering in order what is complete keeps both sides
  // agreed: the initiator knows these transfers as done.
  for (auto& [order, past] : std::exchange(ahead_, {})) {
    if (past.deliver()) GiveOut(std::move(past.delivered));
  }
  return std::move(actions_.deliver);
}

void ArrivalTracker::TakeActions(Actions& out) {
  out.clear();
  std::swap(out, actions_);
}

// --- slots --------------------------------------------------------------------------------------

ArrivalTracker::Lane* ArrivalTracker::FindLane(Inbound& transfer, SlotRef ref) {
  for (Lane& lane : transfer.lanes) {
    if (lane.ref == ref) return &lane;
  }
  return nullptr;
}

absl::StatusOr<SlotTable::Slot*> ArrivalTracker::Resolve(SlotRef ref) {
  SlotTable::Slot* const slot = slots_->Find(ref.slot);
  if (slot == nullptr || slot->session_id != session_id_) {
    return ProtocolError("slot ", ref.slot, " is not granted to this session");
  }
  // Deliberately ignores the generation; the callers compare it.
  return slot;
}

absl::StatusOr<SlotTable::Slot*> ArrivalTracker::ResolveInUse(SlotRef ref) {
  absl::StatusOr<SlotTable::Slot*> slot = Resolve(ref);
  if (slot.ok() && !SameGeneration(**slot, ref)) {
    return ProtocolError("slot ", ref.slot, " is at generation ", (*slot)->generation, ", not ",
                         ref.generation);
  }
  return slot;
}

void ArrivalTracker::FreeSlot(SlotRef ref) {
  SlotTable::Slot* const slot = slots_->Find(ref.slot);
  // From now on only the next lane's immediates count in this slot; the generation detects a late
  // one.
  slot->arrivals = 0;
  slot->generation = NextGeneration(slot->generation);
  lane_of_slot_.erase(ref.slot);
  actions_.released.freed.push_back(ref);
}

}  // namespace kvxfer
