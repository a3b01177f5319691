#include "src/core/base/log_limits.h"

#include <utility>

namespace kvxfer {

LogLimits::Place& LogLimits::PlaceOf(uint64_t cause) {
  // Format strings lie close together in memory. A Fibonacci hash (multiply by 2^64 / golden ratio,
  // keep the upper bits) spreads their addresses over the table.
  const auto first = static_cast<size_t>((cause * 0x9E3779B97F4A7C15u) >> 56) % kCauses;
  for (size_t i = 0; i < kCauses; ++i) {
    Place& place = places_[(first + i) % kCauses];
    if (place.cause == 0) place.cause = cause;
    if (place.cause == cause) return place;
  }
  // The table is full: this cause shares the entry, and so the limit, of another.
  return places_[first];
}

LogLimits::Answer LogLimits::Ask(uint64_t cause, Time now) {
  Place& place = PlaceOf(cause);
  if (!place.limit.Take(now, kBurst, kEvery)) {
    ++place.suppressed;
    return {};
  }
  return {.admitted = true, .suppressed = std::exchange(place.suppressed, 0)};
}

}  // namespace kvxfer
