#include "src/core/plan/slice_walk.h"

namespace kvxfer {
namespace {

// Slices that one step may skip; bounds the time of one call.
constexpr uint32_t kSlicesAStep = 16;

}  // namespace

bool SliceWalk::StepTo(uint32_t slice, const SliceLimits& limits, BlockRange* range) {
  if (slice < at_) *this = SliceWalk(blocks_);
  for (uint32_t steps = 0; steps < kSlicesAStep; ++steps) {
    *range = cursor_.Next(limits);
    if (at_++ == slice) return true;
  }
  return false;
}

}  // namespace kvxfer
