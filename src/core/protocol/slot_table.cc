#include "src/core/protocol/slot_table.h"

#include <algorithm>
#include <span>

namespace kvxfer {
namespace {

// The generation at which all of `slots` start for their next session.
uint32_t NextOwnersGeneration(std::span<const SlotTable::Slot> slots) {
  const auto higher = [](const SlotTable::Slot& a, const SlotTable::Slot& b) {
    return a.generation < b.generation;
  };
  uint32_t next = NextGeneration(std::max_element(slots.begin(), slots.end(), higher)->generation);
  // Generations wrap, so the successor of the highest may be the last generation of another slot.
  const auto has_next = [&next](const SlotTable::Slot& slot) { return slot.generation == next; };
  while (std::any_of(slots.begin(), slots.end(), has_next)) next = NextGeneration(next);
  return next;
}

}  // namespace

SlotTable::SlotTable(uint32_t ranges, uint32_t first_generation)
    : max_ranges_(std::min(ranges, (1u << kSlotBits) / kRangeSlots)),
      first_generation_(first_generation & kGenerationMask) {}

std::optional<SlotGrantFrame> SlotTable::Grant(SessionId session_id) {
  uint32_t index = 0;
  if (!free_.empty()) {
    // Ranges that were returned are used first, so `ranges_` grows only to the highest number in
    // use.
    index = free_.back();
    free_.pop_back();
  } else if (ranges_.size() < max_ranges_) {
    index = static_cast<uint32_t>(ranges_.size());
    ranges_.push_back({.session_id = 0, .next_generation = first_generation_, .slots = nullptr});
  } else {
    return std::nullopt;
  }
  Range& range = ranges_[index];
  range.session_id = session_id;
  range.slots = std::make_unique<Slot[]>(kRangeSlots);
  for (Slot& slot : std::span(range.slots.get(), kRangeSlots)) {
    slot = {.session_id = session_id, .generation = range.next_generation, .arrivals = 0};
  }
  ++in_use_;
  return SlotGrantFrame{.range = {.first = index * kRangeSlots, .count = kRangeSlots},
                        .generation = range.next_generation};
}

void SlotTable::Release(SessionId session_id) {
  for (uint32_t index = 0; index < ranges_.size(); ++index) {
    Range& range = ranges_[index];
    if (range.slots == nullptr || range.session_id != session_id) continue;
    // Remembered while the range is free, although its slots are not.
    range.next_generation = NextOwnersGeneration({range.slots.get(), kRangeSlots});
    range.slots.reset();
    range.session_id = 0;
    free_.push_back(index);
    --in_use_;
  }
}

SlotTable::Slot* SlotTable::Find(uint32_t slot) {
  const uint32_t index = slot / kRangeSlots;
  if (index >= ranges_.size() || ranges_[index].slots == nullptr) return nullptr;
  return &ranges_[index].slots[slot % kRangeSlots];
}

}  // namespace kvxfer
