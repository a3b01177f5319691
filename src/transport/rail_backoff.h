// How long a backend waits before it tries to build a failed rail again: soon at first, then less
// and less often. A rail that was up before is never tried so rarely that a restored path stays
// unused for long.
//
// Thread-safety: functions without state.
#ifndef KVXFER_TRANSPORT_RAIL_BACKOFF_H_
#define KVXFER_TRANSPORT_RAIL_BACKOFF_H_

#include <algorithm>
#include <chrono>
#include <cstdint>

#include "kvxfer/types.h"

namespace kvxfer {

inline constexpr Duration kFirstRailBackoff = std::chrono::milliseconds(20);
inline constexpr Duration kMaxRailBackoff = std::chrono::milliseconds(500);
// For a rail that was never up: the two ends may have no path between them.
inline constexpr Duration kHopelessRailBackoff = std::chrono::seconds(5);

// The pause after `failures` consecutive failed attempts; 0: after the rail itself went down.
inline Duration RailBackoff(uint32_t failures, bool was_up) {
  return std::min<Duration>(kFirstRailBackoff * (1 << std::min(failures, 10u)),
                            was_up ? kMaxRailBackoff : kHopelessRailBackoff);
}

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_RAIL_BACKOFF_H_
