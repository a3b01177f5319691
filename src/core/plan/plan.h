// Cuts a transfer into slices and expands one slice at a time into coalesced runs. Every block
// passes through this loop, so per block it makes no look-up, no allocation and no call.
//
// Specification, checked by property tests. For every block list, max_bytes and max_runs: the runs
// of all slices, in order, cover each byte of each block exactly once and pair the same bytes; no
// slice exceeds max_bytes or max_runs; no run crosses a region; runs of one slice that are adjacent
// on both sides, in the same pair of regions, are merged.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_PLAN_PLAN_H_
#define KVXFER_CORE_PLAN_PLAN_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvxfer/backend.h"
#include "src/core/plan/block_list.h"

namespace kvxfer {

// The backend's registration or key for each region of a transfer, indexed as in the region tables
// that the block list was checked against. Only the regions that the list touches need an entry.
struct RegionHolds {
  std::span<const Registration* const> local{};
  std::span<const RemoteKey* const> remote{};
};

struct SliceLimits {
  uint64_t max_bytes = 0;  // per slice, > 0
  uint64_t max_runs = 0;   // per slice, > 0
};

// The runs of one slice. They lie at the front of a vector that is reused; what follows them there
// is left over from earlier slices.
struct SliceRuns {
  uint64_t bytes = 0;  // 0 only when no byte is left
  std::span<const Run> runs{};
};

// Walks a block list once, from the front, one slice per call. It is a value: copy it to walk again
// from the same point (a lane is sent again in this way). Blocks without bytes are skipped.
class SliceCursor {
 public:
  SliceCursor() = default;
  explicit SliceCursor(const BlockList* blocks);  // borrowed, must not change meanwhile

  // True if no byte is left.
  bool done() const { return pair_ == pairs_; }
  // Returns the next slice. The runs are written into `room` from the front; `room` grows if
  // needed.
  SliceRuns Next(const SliceLimits& limits, const RegionHolds& holds, std::vector<Run>& space);

 private:
  class Slice;
  class RunWalk;

  void Settle();
  bool FillPaged(Slice& slice);
  bool FillRuns(Slice& slice);
  bool FillDescriptors(Slice& slice);

  const BlockList* blocks_ = nullptr;
  uint64_t pairs_ = 0;   // a list of descriptors counts as one pair
  uint64_t ids_ = 0;     // blocks in the pair
  uint64_t pair_ = 0;    // the next block: its pair,
  uint64_t id_ = 0;      // its index in the pair,
  uint64_t run_ = 0;     // its run, if it has several,
  uint64_t offset_ = 0;  // and the bytes of that run already taken
};

// The slice size for a transfer of `bytes` over `rails`: small enough that every rail gets some
// slices and that one transfer does not starve others, large enough to amortise the cost of an op.
// It is between 64 KiB and `max_op_bytes` (which wins if it is smaller), and never 0. A transfer
// below 128 KiB is one slice; for comparison, the thresholds of Mooncake (64 KiB), and NIXL and
// aws-ofi-nccl (128 KiB).
uint64_t SliceBytes(uint64_t bytes, uint32_t rails, uint64_t max_op_bytes);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_PLAN_H_
