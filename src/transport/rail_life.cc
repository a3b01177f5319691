#include "src/transport/rail_life.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvxfer {
namespace {

// After this many passing failures of this host a rail counts as exhausted.
constexpr uint32_t kPassingFailures = 3;
// A life that carried nothing has cost its transfers seconds, so it counts as several failed
// attempts.
constexpr uint32_t kInVainFailures = 3;

}  // namespace

Duration RailBackoff(uint32_t failures, bool was_up) {
  return std::min<Duration>(kFirstRailBackoff * (1 << std::min(failures, 10u)),
                            was_up ? kMaxRailBackoff : kHopelessRailBackoff);
}

std::string RailLife::NotInUse() const {
  if (up()) return {};
  return absl::StrCat(" (not in use", why_.ok() ? "" : ": ", why_.message(), ")");
}

bool RailLife::Due(Time now) {
  if (!deadline_ || *deadline_ > now) return false;
  deadline_.reset();
  return true;
}

void RailLife::Attempt() {
  assert(state_ == State::kWaiting);
  if (std::exchange(round_over_, false)) {
    bad_.clear();
    pair_ = Choose().value_or(planned_);
  }
  ++number_;
  state_ = State::kMaking;
  deadline_.reset();
}

void RailLife::Step(State next, Time now, std::optional<Duration> limit) {
  assert(attempting() && next >= state_ && next < State::kUp);
  state_ = next;
  began_ = now;
  deadline_.reset();
  if (limit) deadline_ = now + *limit;
}

void RailLife::Answered(Time now) {
  round_trip_ = std::max<Duration>(now - began_, std::chrono::nanoseconds(1));
}

void RailLife::Up() {
  assert(attempting());
  state_ = State::kUp;
  was_up_ = true;
  failures_ = 0;
  // Once the planned pair works, earlier silence is no longer worth reporting.
  if (pair_ == planned_) bad_.clear();
  why_ = absl::OkStatus();
  deadline_.reset();
}

void RailLife::Drain(absl::Status why, Time until) {
  assert(up());
  state_ = State::kDraining;
  why_ = std::move(why);
  deadline_ = until;
}

void RailLife::End(absl::Status why, Carried carried) {
  if (up() || draining()) Count(carried);
  state_ = State::kDown;
  why_ = std::move(why);
  deadline_.reset();
}

// A rail that came up is not proven to work: a path may drop large packets only. Silence counts
// from the second time, because a rail may be cut before anything has arrived.
void RailLife::Count(Carried carried) {
  const bool unheard = carried == Carried::kUnheard;
  const bool again = std::exchange(unheard_, unheard) && unheard;
  if (carried == Carried::kData) in_vain_ = 0;
  if (carried == Carried::kNothing || again) ++in_vain_;
}

bool RailLife::Retry(Time now, Blame blame) {
  assert(state_ == State::kDown);
  state_ = State::kWaiting;
  if (blame == Blame::kPair && !was_up_) {
    bad_.push_back(pair_);
    round_trip_ = {};
    if (const std::optional<RailPair> other = Choose()) {
      pair_ = *other;
      deadline_ = now;
      return true;
    }
    round_over_ = true;
  }
  exhausted_ = exhausted_ || blame != Blame::kPassing || failures_ >= kPassingFailures;
  deadline_ = now + RailBackoff(failures_++, was_up_);
  return false;
}

bool RailLife::Reopen(Time now) {
  if (state_ != State::kDown) return false;
  state_ = State::kWaiting;
  failures_ = 0;
  deadline_ = now + RailBackoff(in_vain_ * kInVainFailures, was_up_ && in_vain_ == 0);
  return true;
}

void RailLife::Hurry(Time now) {
  if (state_ == State::kWaiting) deadline_ = now;
}

}  // namespace kvxfer
