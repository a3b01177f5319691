#include "src/core/protocol/lane_book.h"

#include <utility>

namespace kvxfer {

std::optional<uint32_t> Lane::ImmediateFor(bool last, bool rail_keeps_order) const {
  // On an ordered rail the last op's immediate covers all earlier writes of the lane.
  if (rail_keeps_order && !last) return std::nullopt;
  return EncodeImmediate(slot);
}

void Lane::OnPosted(bool last, bool rail_keeps_order, uint32_t slice) {
  if (slice != kNoSlice) slices.Add(slice);
  // This count is what OPEN announces, so it must equal the number of immediates that are sent.
  if (last || !rail_keeps_order) ++immediates;
  closed = closed || last;
}

LaneBook::LaneBook(uint32_t rails, bool rail_keeps_order)
    : lanes_(rails), rail_keeps_order_(rail_keeps_order) {}

bool LaneBook::NeedsSlot(uint32_t rail) const { return !lanes_[rail].open; }

void LaneBook::OpenLane(uint32_t rail, SlotRef slot) {
  lanes_[rail] = {.open = true, .slot = slot};
}

std::optional<uint32_t> LaneBook::ImmediateFor(uint32_t rail, bool last) const {
  return lanes_[rail].ImmediateFor(last, rail_keeps_order_);
}

void LaneBook::OnPosted(uint32_t rail, bool last, uint32_t slice) {
  lanes_[rail].OnPosted(last, rail_keeps_order_, slice);
  // From now on lanes can be closed: the number of ops of each is final.
  last_posted_ = last_posted_ || last;
}

std::optional<uint32_t> LaneBook::NextToClose() const {
  if (!last_posted_) return std::nullopt;
  for (uint32_t rail = 0; rail < lanes_.size(); ++rail) {
    const Lane& lane = lanes_[rail];
    // Without order every op has an immediate, so a lane with any op is countable. With order only
    // a lane whose last op had the immediate is.
    const bool has_last = rail_keeps_order_ ? lane.closed : lane.immediates > 0;
    if (lane.open && !has_last) return rail;
  }
  return std::nullopt;
}

void LaneBook::OnFreed(SlotRef slot) {
  for (Lane& lane : lanes_) {
    if (lane.open && !lane.freed && lane.slot == slot) lane.freed = true;
  }
}

std::optional<LaneBook::Discarded> LaneBook::Discard(uint32_t rail) {
  Lane& lane = lanes_[rail];
  // A freed lane has arrived completely: it needs no DISCARD, and its slices need not go again.
  if (!lane.open || lane.freed) return std::nullopt;
  Discarded discarded{.slot = lane.slot, .slices = std::move(lane.slices)};
  lane = {};
  return discarded;
}

std::vector<LaneFrame> LaneBook::Lanes() const {
  std::vector<LaneFrame> lanes;
  lanes.reserve(lanes_.size());
  for (const Lane& lane : lanes_) {
    if (lane.open) lanes.push_back({.ref = lane.slot, .arrivals = lane.immediates});
  }
  return lanes;
}

std::vector<SlotRef> LaneBook::Slots() const {
  std::vector<SlotRef> slots;
  slots.reserve(lanes_.size());
  for (const Lane& lane : lanes_) {
    if (lane.open && !lane.freed) slots.push_back(lane.slot);
  }
  return slots;
}

}  // namespace kvxfer
