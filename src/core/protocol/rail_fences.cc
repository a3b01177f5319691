#include "src/core/protocol/rail_fences.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "src/core/plan/rail_picker.h"
#include "src/core/protocol/transitions.h"

namespace kvxfer {
namespace {

// How an op ends that its rail took along.
bool EndsAsItsRail(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsAborted(status) || absl::IsCancelled(status);
}

}  // namespace

RailFences::RailFences(std::span<const RailInfo> rails, Duration answer_within, Time now)
    : answer_within_(answer_within) {
  rails_.resize(std::min<size_t>(rails.size(), RailPicker::kMaxRails));
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    const uint64_t bit = uint64_t{1} << rail;
    all_ |= bit;
    if (rails[rail].up) {
      rails_[rail].state = State::kUp;
      up_ |= bit;
    } else {
      rails_[rail].since = now;
      rails_[rail].why = absl::UnavailableError("not up yet");
    }
  }
}

bool RailFences::Apply(uint32_t rail, Event event) {
  if (rail >= rails_.size()) return false;
  State& state = rails_[rail].state;
  const State* const to = NextState(kTransitions, state, event);
  if (to == nullptr) return false;
  state = *to;
  const uint64_t bit = uint64_t{1} << rail;
  up_ = state == State::kUp ? up_ | bit : up_ & ~bit;
  return true;
}

std::string RailFences::WhyNone() const {
  std::string why;
  if (up_ != 0) return why;
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    absl::StrAppend(&why, why.empty() ? "; no rail is up: " : "; ", "rail ", rail, ": ",
                    rails_[rail].why.message());
  }
  return why;
}

void RailFences::OnCompleted(uint32_t rail, Time now) {
  Rail& one = rails_[rail];
  --one.ops;
  if (one.state == State::kSuspected && one.ops == 0) one.until = now + kExplainWithin;
}

bool RailFences::OnFailed(uint32_t rail, const absl::Status& why, Time now) {
  if (!EndsAsItsRail(why)) return false;
  if (!Apply(rail, Event::kOpFailed)) {
    return rail < rails_.size() && rails_[rail].state == State::kSuspected;
  }
  Rail& one = rails_[rail];
  one.since = now;
  one.until = one.ops == 0 ? now + kExplainWithin : Time::max();
  one.why = why;
  return true;
}

bool RailFences::OnDown(uint32_t rail, const absl::Status& why, Time now) {
  if (!Apply(rail, Event::kDown)) return false;
  rails_[rail].since = now;
  rails_[rail].why = why;
  return true;
}

absl::Status RailFences::OnFenced(uint32_t rail) {
  if (Apply(rail, Event::kFenced)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("it fenced rail ", rail, ", which it was not asked to"));
}

absl::StatusOr<bool> RailFences::OnUp(uint32_t rail) {
  // The rails that were learnt at connect may have included what this says.
  if (rail >= rails_.size() || up(rail)) return false;
  if (Apply(rail, Event::kUp)) return true;
  return absl::InternalError(
      absl::StrCat("the backend says that rail ", rail, " is up, which it was not asked to build"));
}

std::optional<uint32_t> RailFences::NextDue() const {
  if (all_up()) return std::nullopt;
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    if (rails_[rail].state == State::kFenceDue) return rail;
  }
  return std::nullopt;
}

// How long a rail may stay as it is.
Time RailFences::Limit(const Rail& rail) const {
  switch (rail.state) {
    case State::kSuspected:
      return rail.until;
    case State::kFenceDue:
    case State::kFencing:
      return rail.since + answer_within_;
    case State::kUp:
    case State::kReopening:
      break;
  }
  return Time::max();
}

RailFences::Expired RailFences::OnTime(Time now) {
  Expired expired;
  if (all_up()) return expired;
  for (uint32_t rail = 0; rail < rails_.size(); ++rail) {
    if (Limit(rails_[rail]) > now) continue;
    if (Apply(rail, Event::kFailedAlone)) {
      expired.cleared.push_back(rail);
      continue;
    }
    expired.close = absl::UnavailableError(absl::StrCat(
        "the peer did not make rail ", rail, " quiet, which failed: ", rails_[rail].why.message()));
    break;
  }
  return expired;
}

Time RailFences::next() const {
  Time next = Time::max();
  if (all_up()) return next;
  for (const Rail& rail : rails_) next = std::min(next, Limit(rail));
  return next;
}

}  // namespace kvxfer
