// Cuts the slices of a block list by their numbers, each time in the same way.
//
// Thread-safety: none; a plain value.

#ifndef KVXFER_CORE_PLAN_SLICE_WALK_H_
#define KVXFER_CORE_PLAN_SLICE_WALK_H_

#include <cstdint>
#include <vector>

#include "src/core/plan/plan.h"

namespace kvxfer {

class SliceWalk {
 public:
  SliceWalk() = default;
  explicit SliceWalk(const BlockList* blocks) : blocks_(blocks), cursor_(blocks) {}

  // A step of bounded length towards slice number `slice`. True: it is cut, into `runs`, in `room`.
  // Slices in ascending order cost one walk; `limits` are the same in every call.
  bool StepTo(uint32_t slice, const SliceLimits& limits, const RegionHolds& holds,
              std::vector<Run>& room, SliceRuns* runs);
  // The slice that was cut last is the last one there is.
  bool done() const { return cursor_.done(); }

 private:
  const BlockList* blocks_ = nullptr;
  SliceCursor cursor_;
  uint32_t at_ = 0;  // number of the slice that the cursor cuts next
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_SLICE_WALK_H_
