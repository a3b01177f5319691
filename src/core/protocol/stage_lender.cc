#include "src/core/protocol/stage_lender.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {

void StageLender::SetBuffers(uint32_t buffers) {
  for (uint32_t buffer = buffers; buffer > 0; --buffer) free_.push_back(buffer - 1);
  Serve();
}

absl::Status StageLender::Ask(SessionId session_id, uint32_t count) {
  const auto same = [session_id](const Wish& wish) { return wish.session_id == session_id; };
  if (std::ranges::any_of(waiting_, same)) {
    return absl::FailedPreconditionError("it asks for staging buffers while it waits for some");
  }
  const auto held = static_cast<uint32_t>(holders_[session_id].buffers.size());
  // A session at its limit waits with count 0 and is answered with no buffer.
  const uint32_t space = kMaxHeld > held ? kMaxHeld - held : 0;
  waiting_.push_back({.session_id = session_id, .count = std::min(std::max(count, 1u), space)});
  Serve();
  return absl::OkStatus();
}

// Serves the waiting sessions in turn: each gets at least one buffer, and up to an equal share of
// the free ones.
void StageLender::Serve() {
  while (!waiting_.empty() && (waiting_.front().count == 0 || !free_.empty())) {
    const size_t share = std::max<size_t>(free_.size() / waiting_.size(), 1);
    const Wish wish = waiting_.front();
    waiting_.pop_front();
    Holder& holder = holders_[wish.session_id];
    Lent lent{.session_id = wish.session_id};
    for (size_t n = std::min<size_t>({wish.count, share, free_.size()}); n > 0; --n) {
      lent.buffers.push_back(free_.back());
      holder.buffers.insert(free_.back());
      free_.pop_back();
    }
    // It has buffers again, so it may be asked again to return some.
    holder.recalled = false;
    lent_.push_back(std::move(lent));
  }
  // Owners still wait: ask each holder once to return what it does not need.
  if (waiting_.empty()) return;
  for (auto& [session_id, holder] : holders_) {
    if (holder.buffers.empty() || std::exchange(holder.recalled, true)) continue;
    recalled_.push_back(session_id);
  }
}

absl::Status StageLender::Back(SessionId session_id, std::span<const uint32_t> buffers) {
  Holder& holder = holders_[session_id];
  for (const uint32_t buffer : buffers) {
    if (holder.buffers.erase(buffer) == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("it gives back staging buffer ", buffer, ", which it has not got"));
    }
    free_.push_back(buffer);
  }
  Serve();
  return absl::OkStatus();
}

// The session is gone. Buffers that are `busy` (a copy of this agent uses them) become
// free later, by Free.
void StageLender::Release(SessionId session_id, const std::set<uint32_t>& busy) {
  std::erase_if(waiting_, [session_id](const Wish& wish) { return wish.session_id == session_id; });
  // Nobody is left to inform of these.
  std::erase_if(lent_, [session_id](const Lent& lent) { return lent.session_id == session_id; });
  std::erase(recalled_, session_id);
  const auto it = holders_.find(session_id);
  if (it == holders_.end()) return;
  for (const uint32_t buffer : it->second.buffers) {
    if (!busy.contains(buffer)) free_.push_back(buffer);
  }
  holders_.erase(it);
  Serve();
}

void StageLender::Free(uint32_t buffer) {
  free_.push_back(buffer);
  Serve();
}

bool StageLender::Holds(SessionId session_id, uint32_t buffer) const {
  const auto it = holders_.find(session_id);
  return it != holders_.end() && it->second.buffers.contains(buffer);
}

bool StageLender::HoldsAny(SessionId session_id) const {
  const auto it = holders_.find(session_id);
  return it != holders_.end() && !it->second.buffers.empty();
}

std::vector<StageLender::Lent> StageLender::TakeLent() { return std::exchange(lent_, {}); }
std::vector<StageLender::SessionId> StageLender::TakeRecalled() {
  return std::exchange(recalled_, {});
}

}  // namespace kvxfer
