// Time is CLOCK_MONOTONIC everywhere. All deadlines use it.
#ifndef KVXFER_CORE_BASE_CLOCK_H_
#define KVXFER_CORE_BASE_CLOCK_H_

#include <chrono>
#include <optional>

#include "kvxfer/types.h"

namespace kvxfer {

using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline Time Now() { return std::chrono::steady_clock::now(); }

// The earlier of two deadlines; nullopt means no deadline.
inline std::optional<Time> Earlier(std::optional<Time> a, std::optional<Time> b) {
  return !a || (b && *b < *a) ? b : a;
}

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_CLOCK_H_
