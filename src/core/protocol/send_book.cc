#include "src/core/protocol/send_book.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {

size_t SendBook::NextLane() const {
  const auto next =
      // A lane that goes again is unfinished until it is closed.
      std::ranges::find_if(lanes_, [](const LaneAgain& again) { return !again.lane.closed; });
  return next == lanes_.end() ? kFirst : static_cast<size_t>(next - lanes_.begin());
}

SendBook::Slice SendBook::Cut(bool last) {
  fresh_ = true;
  cut_all_ = last;
  return {.book = kFirst, .number = cut_++};
}

SendBook::Slice SendBook::Next() const {
  // First the slices that go again within the first book, then the lanes that replace discarded
  // ones.
  if (const uint32_t number = again_.Front(cut_); number != kNoSlice) {
    return {.book = kFirst, .number = number};
  }
  const size_t book = NextLane();
  return {.book = book, .number = lanes_[book].slices.Front(cut_)};
}

std::optional<uint32_t> SendBook::BoundTo(const Slice& slice) const {
  return slice.book == kFirst ? std::nullopt : lanes_[slice.book].rail;
}

bool SendBook::OpenLane(const Slice& slice, uint32_t rail, SlotPool& pool, uint64_t holder) {
  if (slice.book != kFirst) {
    Lane& lane = lanes_[slice.book].lane;
    // The slot was reserved when the discarded lane was freed, so this never has to wait for one.
    if (!lane.open) lane = {.open = true, .slot = pool.TakeReserved(holder)};
    return true;
  }
  if (!first_.has_value() || !first_->NeedsSlot(rail)) return true;
  // A reserved slot belongs to slices that a failed rail gave back while the first book was open.
  if (reserved_ > 0) {
    --reserved_;
    first_->OpenLane(rail, pool.TakeReserved(holder));
    return true;
  }
  const auto slot = pool.Take(holder);
  if (slot.has_value()) first_->OpenLane(rail, *slot);
  return slot.has_value();
}

bool SendBook::IsLast(const Slice& slice) const {
  if (slice.book != kFirst) {
    return slice.number == kNoSlice || lanes_[slice.book].slices.IsLast(slice.number, cut_);
  }
  if (!cut_all_) return false;
  // `fresh_`: the slice was just cut and is not in again_.
  return fresh_ ? again_.Front(cut_) == kNoSlice : again_.IsLast(slice.number, cut_);
}

std::optional<uint32_t> SendBook::ImmediateFor(const Slice& slice, uint32_t rail) const {
  if (!first_.has_value()) return std::nullopt;
  if (slice.book == kFirst) return first_->ImmediateFor(rail, IsLast(slice));
  return lanes_[slice.book].lane.ImmediateFor(IsLast(slice), first_->rail_keeps_order());
}

void SendBook::OnPosted(const Slice& slice, uint32_t rail) {
  const bool last = IsLast(slice);
  if (slice.book != kFirst) {
    LaneAgain& again = lanes_[slice.book];
    again.rail = rail;
    again.lane.OnPosted(last, first_->rail_keeps_order(), slice.number);
    if (slice.number != kNoSlice) again.slices.Pop(slice.number);
    return;
  }
  if (first_.has_value()) first_->OnPosted(rail, last, slice.number);
  if (fresh_) {
    fresh_ = false;
  } else {
    again_.Pop(slice.number);
  }
}

std::optional<SendBook::Closing> SendBook::NextToClose() const {
  if (!first_.has_value()) return std::nullopt;
  const auto rail = first_->NextToClose();
  if (!rail.has_value()) return std::nullopt;
  return Closing{.rail = *rail, .immediate = *first_->ImmediateFor(*rail, true)};
}

void SendBook::OnClosed(uint32_t rail) { first_->OnPosted(rail, true); }

void SendBook::Again(uint32_t number) {
  SliceSet slices;
  slices.Add(number);
  again_.Add(slices);
}

// Both kinds of lanes on the failed rail: the first book's, and those that already go again.
std::vector<SlotRef> SendBook::Discard(uint32_t rail) {
  std::vector<SlotRef> slots;
  if (!first_.has_value()) return slots;
  if (auto lane = first_->Discard(rail)) {
    slots.push_back(lane->slot);
    discarded_.push_back({.slot = lane->slot, .slices = std::move(lane->slices), .named = named_});
  }
  std::erase_if(lanes_, [&](LaneAgain& again) {
    if (again.rail != rail || again.lane.freed) return false;
    // The slices that the lane has sent and those that it has not sent yet all go again.
    again.lane.slices.Add(again.slices.slices());
    slots.push_back(again.lane.slot);
    discarded_.push_back(
        {.slot = again.lane.slot, .slices = std::move(again.lane.slices), .named = true});
    return true;
  });
  return slots;
}

absl::StatusOr<bool> SendBook::OnDiscarded(const DiscardAck& ack, SlotPool& pool) {
  const auto it = std::ranges::find(discarded_, ack.ref, &Discarded::slot);
  if (it == discarded_.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("it answers a DISCARD of transfer ", ack.transfer, " that was not sent"));
  }
  const Discarded lane = std::move(*it);
  discarded_.erase(it);
  // Nothing goes again if all of the lane arrived, or if it was opened but never posted to and
  // never named.
  if (ack.complete || (!lane.named && lane.slices.empty())) return false;
  // Reserve at once, before another transfer takes the slot that was just freed.
  if (!pool.Reserve()) {
    return absl::InvalidArgumentError(absl::StrCat("it let go of a lane of transfer ", ack.transfer,
                                                   " without freeing its slot"));
  }
  // While the first book is open, its lanes can carry the slices. Afterwards a new lane replaces
  // the discarded one; OPEN names it if it was not sent yet, else AMEND does.
  if (first_posted()) {
    lanes_.emplace_back().slices.Add(lane.slices);
  } else {
    ++reserved_;
    again_.Add(lane.slices);
  }
  return true;
}

void SendBook::OnFreed(SlotRef slot) {
  if (!first_.has_value()) return;
  first_->OnFreed(slot);
  // A freed lane must not be named in DISCARD or ABORT: other transfers may use its slot.
  for (LaneAgain& again : lanes_) {
    if (again.lane.open && again.lane.slot == slot) again.lane.freed = true;
  }
}

std::vector<LaneFrame> SendBook::TellAll() {
  std::vector<LaneFrame> lanes;
  if (!first_.has_value()) return lanes;
  named_ = true;
  lanes = first_->Lanes();
  for (const LaneFrame& lane : TellNew()) lanes.push_back(lane);
  return lanes;
}

std::vector<LaneFrame> SendBook::TellNew() {
  std::vector<LaneFrame> lanes;
  for (LaneAgain& again : lanes_) {
    if (!again.lane.closed || std::exchange(again.told, true)) continue;
    lanes.push_back({.ref = again.lane.slot, .arrivals = again.lane.immediates});
  }
  return lanes;
}

void SendBook::LetSlotsGo(SlotPool& pool) {
  for (; reserved_ > 0; --reserved_) pool.Unreserve();
}

std::vector<SlotRef> SendBook::End(SlotPool& pool) {
  LetSlotsGo(pool);
  std::vector<SlotRef> slots;
  if (first_.has_value()) slots = first_->Slots();
  // A lane that was never offered to a rail only has a reservation, and no slot to name.
  for (const LaneAgain& again : lanes_) {
    if (!again.lane.open) {
      pool.Unreserve();
    } else if (!again.lane.freed) {
      slots.push_back(again.lane.slot);
    }
  }
  return slots;
}

}  // namespace kvxfer
