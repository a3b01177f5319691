#include "src/core/protocol/stage_lender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {

void StageLender::SetSlots(uint32_t slots) {
  for (uint32_t slot = slots; slot > 0; --slot) free_.push_back(slot - 1);
  Serve();
}

absl::Status StageLender::Ask(Owner owner, uint32_t count) {
  const auto same = [owner](const Wish& wish) { return wish.owner == owner; };
  if (std::ranges::any_of(waiting_, same)) {
    return absl::FailedPreconditionError("it asks for staging slots while it waits for some");
  }
  const auto held = static_cast<uint32_t>(holders_[owner].slots.size());
  // An owner at its limit waits with count 0 and is answered with no buffer.
  const uint32_t space = kMaxHeld > held ? kMaxHeld - held : 0;
  waiting_.push_back({.owner = owner, .count = std::min(std::max(count, 1u), space)});
  Serve();
  return absl::OkStatus();
}

// Serves the waiting owners in turn: each gets at least one buffer, and up to an equal share of the
// free ones.
void StageLender::Serve() {
  while (!waiting_.empty() && (waiting_.front().count == 0 || !free_.empty())) {
    const size_t share = std::max<size_t>(free_.size() / waiting_.size(), 1);
    const Wish wish = waiting_.front();
    waiting_.pop_front();
    Holder& holder = holders_[wish.owner];
    Lent lent{.owner = wish.owner};
    for (size_t n = std::min<size_t>({wish.count, share, free_.size()}); n > 0; --n) {
      lent.slots.push_back(free_.back());
      holder.slots.insert(free_.back());
      free_.pop_back();
    }
    // It has buffers again, so it may be asked again to return some.
    holder.recalled = false;
    lent_.push_back(std::move(lent));
  }
  // Owners still wait: ask each holder once to return what it does not need.
  if (waiting_.empty()) return;
  for (auto& [owner, holder] : holders_) {
    if (holder.slots.empty() || std::exchange(holder.recalled, true)) continue;
    recalled_.push_back(owner);
  }
}

absl::Status StageLender::Back(Owner owner, std::span<const uint32_t> slots) {
  Holder& holder = holders_[owner];
  for (const uint32_t slot : slots) {
    if (holder.slots.erase(slot) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("it gives back staging slot ", slot, ", which it has not got"));
    }
    free_.push_back(slot);
  }
  Serve();
  return absl::OkStatus();
}

// The owner's session is gone. Buffers that are `busy` (a copy of this agent uses them) become free
// later, by Free.
void StageLender::Release(Owner owner, const std::set<uint32_t>& busy) {
  std::erase_if(waiting_, [owner](const Wish& wish) { return wish.owner == owner; });
  // Nobody is left to inform of these.
  std::erase_if(lent_, [owner](const Lent& lent) { return lent.owner == owner; });
  std::erase(recalled_, owner);
  const auto it = holders_.find(owner);
  if (it == holders_.end()) return;
  for (const uint32_t slot : it->second.slots) {
    if (!busy.contains(slot)) free_.push_back(slot);
  }
  holders_.erase(it);
  Serve();
}

void StageLender::Free(uint32_t slot) {
  free_.push_back(slot);
  Serve();
}

bool StageLender::Holds(Owner owner, uint32_t slot) const {
  const auto it = holders_.find(owner);
  return it != holders_.end() && it->second.slots.contains(slot);
}

bool StageLender::HoldsAny(Owner owner) const {
  const auto it = holders_.find(owner);
  return it != holders_.end() && !it->second.slots.empty();
}

std::vector<StageLender::Lent> StageLender::TakeLent() { return std::exchange(lent_, {}); }
std::vector<StageLender::Owner> StageLender::TakeRecalled() { return std::exchange(recalled_, {}); }

}  // namespace kvxfer
