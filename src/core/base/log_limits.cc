#include "src/core/base/log_limits.h"

#include <algorithm>
#include <utility>

namespace kvxfer {

LogLimits::Place& LogLimits::PlaceOf(uint64_t cause) {
  // Addresses of literals lie close together: the product's upper bits spread them.
  const auto first = static_cast<size_t>((cause * 0x9E3779B97F4A7C15u) >> 56) % kCauses;
  for (size_t i = 0; i < kCauses; ++i) {
    Place& place = places_[(first + i) % kCauses];
    if (place.cause == 0) place.cause = cause;
    if (place.cause == cause) return place;
  }
  return places_[first];
}

LogLimits::Answer LogLimits::Ask(uint64_t cause, Time now) {
  Place& place = PlaceOf(cause);
  const Time next = std::max(place.next, now);
  if (next - now > (kBurst - 1) * kEvery) {
    ++place.suppressed;
    return {};
  }
  place.next = next + kEvery;
  return {.admitted = true, .suppressed = std::exchange(place.suppressed, 0)};
}

}  // namespace kvxfer
