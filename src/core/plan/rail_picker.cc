#include "src/core/plan/rail_picker.h"

#include <algorithm>

namespace kvxfer {
namespace {

constexpr double kWeight = 0.25;  // weight of a new sample
// A shorter sample measures how often completions are polled rather than the rail.
constexpr Duration kShortest = std::chrono::microseconds(20);

}  // namespace

RailPicker::RailPicker(std::span<const RailInfo> rails) {
  rails_.resize(std::min<size_t>(rails.size(), kMaxRails));
  for (size_t i = 0; i < rails_.size(); ++i) {
    rails_[i].speed = std::max(rails[i].bytes_per_second, 0.0);
  }
}

uint32_t RailPicker::Pick(uint64_t bytes, uint64_t usable,
                          std::span<const uint32_t> distances) const {
  uint32_t best = kNoRail;
  double best_cost = 0;
  double highest = 0;
  for (const Rail& rail : rails_) highest = std::max(highest, rail.speed);
  if (highest <= 0) highest = 1;  // if no rail's speed is known, only the ratio matters
  for (uint32_t i = 0; i < rails_.size(); ++i) {
    const Rail& rail = rails_[i];
    if ((usable >> i & 1) == 0) continue;
    const double factor = i < distances.size() ? 1.0 + distances[i] : 1.0;
    const double cost = static_cast<double>(rail.in_flight + bytes) * factor /
                        (rail.speed > 0 ? rail.speed : highest);
    if (best == kNoRail || cost < best_cost) {
      best = i;
      best_cost = cost;
    }
  }
  return best;
}

void RailPicker::OnPosted(uint32_t rail_index, uint64_t bytes, Time now) {
  Rail& rail = rails_[rail_index];
  if (rail.in_flight == 0) rail.since = now;
  rail.in_flight += bytes;
}

void RailPicker::OnCompleted(uint32_t rail_index, uint64_t bytes, Time now, bool measured) {
  Rail& rail = rails_[rail_index];
  rail.in_flight -= bytes;
  // The op did not go all the way, so its time says nothing about the rail.
  if (!measured) {
    rail.sampled = 0;
    rail.busy = {};
    rail.since = now;
    return;
  }
  rail.sampled += bytes;
  rail.busy += now - rail.since;
  rail.since = now;
  rail.ran_empty |= rail.in_flight == 0;
  if (rail.sampled < kSample || rail.busy < kShortest) return;
  const double speed =
      static_cast<double>(rail.sampled) / std::chrono::duration<double>(rail.busy).count();
  // A sample in which the rail ran empty is a lower bound of its speed, so it only raises the
  // estimate.
  if (!rail.measured) {
    rail.measured = true;
    rail.speed = rail.ran_empty ? std::max(rail.speed, speed) : speed;
  } else if (!rail.ran_empty || speed > rail.speed) {
    rail.speed += kWeight * (speed - rail.speed);
  }
  rail.sampled = 0;
  rail.busy = {};
  rail.ran_empty = rail.in_flight == 0;
}

}  // namespace kvxfer
