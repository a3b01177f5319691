#include "src/core/protocol/slot_pool.h"

#include "absl/strings/str_cat.h"

namespace kvxfer {

absl::Status SlotPool::AddGrant(const SlotGrantFrame& grant) {
  constexpr uint64_t kSlots = uint64_t{1} << kSlotBits;
  const auto [first, count] = grant.range;
  // A slot that was ever granted is never granted again in a session; this also bounds the memory
  // here.
  if (count == 0 || uint64_t{first} + count > kSlots ||
      ever_granted_.Intersects(first, first + count - 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the target granted ", count, " slots from ", first,
                     " on, which do not exist or are granted already; the session must be reset"));
  }
  ever_granted_.Add(first, first + count - 1);
  free_.reserve(free_.size() + grant.range.count);
  // Slots are taken from the back, so the lowest slot of the newest range goes first.
  for (uint32_t i = grant.range.count; i > 0; --i) {
    free_.push_back(
        {.slot = grant.range.first + i - 1, .generation = grant.generation & kGenerationMask});
  }
  return absl::OkStatus();
}

std::optional<SlotRef> SlotPool::Take(uint64_t holder) {
  if (available() == 0) return std::nullopt;
  return TakeAny(holder);
}

SlotRef SlotPool::TakeReserved(uint64_t holder) {
  --reserved_;
  return TakeAny(holder);
}

uint64_t SlotPool::HolderOf(SlotRef ref) const {
  // The same slot at another generation belongs to another lane.
  const auto used = used_.find(ref.slot);
  return used != used_.end() && used->second.generation == ref.generation ? used->second.holder : 0;
}

SlotRef SlotPool::TakeAny(uint64_t holder) {
  const SlotRef ref = free_.back();
  free_.pop_back();
  used_.emplace(ref.slot, Use{.generation = ref.generation, .holder = holder});
  return ref;
}

absl::Status SlotPool::Free(SlotRef ref) {
  const auto used = used_.find(ref.slot);
  if (used == used_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the target freed slot ", ref.slot, ", which is not in use; the session must be reset"));
  }
  if (used->second.generation != ref.generation) {
    return absl::InvalidArgumentError(
        absl::StrCat("the target freed slot ", ref.slot, " at generation ", ref.generation,
                     ", in use is ", used->second.generation, "; the session must be reset"));
  }
  used_.erase(used);
  free_.push_back({.slot = ref.slot, .generation = NextGeneration(ref.generation)});
  return absl::OkStatus();
}

}  // namespace kvxfer
