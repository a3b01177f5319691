// How often a backend tries to build a rail that failed: soon, then less and less often, and, where
// it was up before, never so seldom that a path which is there again stays unused for long.
#ifndef KVXFER_TRANSPORT_RAIL_BACKOFF_H_
#define KVXFER_TRANSPORT_RAIL_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kvxfer/types.h"

namespace kvxfer {

inline constexpr Duration kFirstRailBackoff = std::chrono::milliseconds(20);
inline constexpr Duration kMaxRailBackoff = std::chrono::milliseconds(500);
// Of a rail that never was up: two ends that perhaps have no path between them.
inline constexpr Duration kHopelessRailBackoff = std::chrono::seconds(5);

// The pause after `failures` attempts in a row that failed; 0: after the rail's own end.
inline Duration RailBackoff(uint32_t failures, bool was_up) {
  return std::min<Duration>(kFirstRailBackoff * (1 << std::min(failures, 10u)),
                            was_up ? kMaxRailBackoff : kHopelessRailBackoff);
}

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_RAIL_BACKOFF_H_
