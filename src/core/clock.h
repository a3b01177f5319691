// The one clock of deadlines: CLOCK_MONOTONIC.
#ifndef KVXFER_CORE_CLOCK_H_
#define KVXFER_CORE_CLOCK_H_

#include <chrono>

#include "kvxfer/types.h"

namespace kvxfer {

using Time = std::chrono::time_point<std::chrono::steady_clock, Duration>;

inline Time Now() { return std::chrono::steady_clock::now(); }

}  // namespace kvxfer

#endif  // KVXFER_CORE_CLOCK_H_
