#include "src/core/plan/slice_walk.h"

namespace kvxfer {
namespace {

// Slices that one step may skip; bounds the time of one call.
constexpr uint32_t kSlicesAStep = 16;

}  // namespace

bool SliceWalk::StepTo(uint32_t slice, const SliceLimits& limits, const RegionHolds& holds,
                       std::vector<Run>& space, SliceRuns* runs) {
  if (slice < at_) *this = SliceWalk(blocks_);
  for (uint32_t steps = 0; steps < kSlicesAStep; ++steps) {
    *runs = cursor_.Next(limits, holds, space);
    if (at_++ == slice) return true;
  }
  return false;
}

}  // namespace kvxfer
