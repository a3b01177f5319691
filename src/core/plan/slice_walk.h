// Cuts the slices of a block list by number, each time with the same result.
//
// Thread-safety: none; a plain value.

#ifndef KVXFER_CORE_PLAN_SLICE_WALK_H_
#define KVXFER_CORE_PLAN_SLICE_WALK_H_

#include <cstdint>

#include "src/core/plan/plan.h"

namespace kvxfer {

class SliceWalk {
 public:
  SliceWalk() = default;
  explicit SliceWalk(const BlockView* blocks) : blocks_(blocks), cursor_(blocks) {}

  // Makes a step of bounded length towards slice number `slice`. True: `*range` is that slice.
  // Slices in ascending order cost one walk; a lower number starts again from the front. `limits`
  // must be the same in every call.
  bool StepTo(uint32_t slice, const SliceLimits& limits, BlockRange* range);
  // True if the slice that was cut last is the last one of the transfer.
  bool done() const { return cursor_.done(); }

 private:
  const BlockView* blocks_ = nullptr;
  SliceCursor cursor_;
  uint32_t at_ = 0;  // number of the slice that the cursor cuts next
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_SLICE_WALK_H_
