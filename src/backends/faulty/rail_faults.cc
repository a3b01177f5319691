#include "src/backends/faulty/rail_faults.h"

#include <algorithm>

namespace kvxfer::faulty {
namespace {

constexpr double kBeginsDown = 0.25;
constexpr double kCompletionLost = 0.5;

// The agent numbers its transfers from 1, and the stager's child transfers from 2^62; so bit 63 is
// free.
constexpr uint64_t kMarker = uint64_t{1} << 63;
constexpr uint32_t kRailShift = 40;

}  // namespace

void RailFaults::Start(uint32_t rails, bool connecting, Time now) {
  if (!enabled()) return;
  rails_.resize(rails);
  if (!connecting) return;
  for (FaultyRail& rail : rails_) {
    if (!random_->Chance(kBeginsDown)) continue;
    rail.state = State::kReopening;
    rail.up_at = DrawUpTime(now);
  }
}

bool RailFaults::DrawFailure(uint32_t rail) {
  if (rail >= rails_.size() || !random_->Chance(options_.rail_down_probability)) return false;
  rails_[rail].state = State::kEnding;
  return true;
}

void RailFaults::OnForwarded(uint64_t op, uint32_t rail) {
  if (rail >= rails_.size()) return;
  inner_ops_[op] = rail;
  ++rails_[rail].inner_ops;
}

bool RailFaults::OnCompleted(uint64_t op) {
  const auto it = inner_ops_.find(op);
  if (it == inner_ops_.end()) return false;
  FaultyRail& rail = rails_[it->second];
  inner_ops_.erase(it);
  --rail.inner_ops;
  return rail.state == State::kEnding && random_->Chance(kCompletionLost);
}

std::optional<uint32_t> RailFaults::TakeDown() {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].state != State::kEnding || rails_[i].inner_ops > 0) continue;
    rails_[i].state = State::kDown;
    return i;
  }
  return std::nullopt;
}

void RailFaults::Reopen(uint32_t rail, Time now) {
  if (rail >= rails_.size() || rails_[rail].state != State::kDown) return;
  rails_[rail].state = State::kReopening;
  rails_[rail].up_at = DrawUpTime(now);
}

std::optional<uint32_t> RailFaults::TakeUp(Time now) {
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    if (rails_[i].state != State::kReopening || rails_[i].up_at > now) continue;
    rails_[i].state = State::kUp;
    return i;
  }
  return std::nullopt;
}

std::optional<Time> RailFaults::NextDue() const {
  std::optional<Time> due;
  for (const FaultyRail& rail : rails_) {
    if (rail.state == State::kEnding && rail.inner_ops == 0) return Time{};
    if (rail.state == State::kReopening) due = due ? std::min(*due, rail.up_at) : rail.up_at;
  }
  return due;
}

uint64_t RailFaults::NextMarker(uint32_t rail) {
  if (rail >= rails_.size()) rails_.resize(rail + 1);
  return kMarker | uint64_t{rail} << kRailShift | ++rails_[rail].fences;
}

std::optional<uint32_t> RailFaults::RailOfMarker(uint64_t transfer) {
  if ((transfer & kMarker) == 0) return std::nullopt;
  return static_cast<uint32_t>((transfer & ~kMarker) >> kRailShift);
}

Time RailFaults::DrawUpTime(Time now) {
  const auto longest = static_cast<uint64_t>(std::max<int64_t>(options_.rail_down_for.count(), 0));
  return now + Duration(random_->Below(longest + 1));
}

}  // namespace kvxfer::faulty
