// Cuts a transfer into slices, and expands one slice at a time into coalesced runs. This is the
// loop that every block goes through: no look-up, no allocation, no call a block.
//
// Specification, held by property tests: for every block list, max_bytes and max_runs, the runs of
// all slices in order cover each byte of each block exactly once and pair the same bytes; no slice
// exceeds max_bytes or max_runs; no run crosses a region; runs that are adjacent on both sides,
// in the same pair of regions and the same slice, are one.
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

// What a backend calls the regions of a transfer, by their index in the tables that the block list
// was checked against; asked for those only that the list touches.
struct RegionHolds {
  std::span<const Registration* const> local{};
  std::span<const RemoteKey* const> remote{};
};

struct SliceLimits {
  uint64_t max_bytes = 0;  // of one slice, > 0
  uint64_t max_runs = 0;   // of one slice, > 0
};

// The runs of one slice, at the front of a vector that is used again: what lies behind them is of
// earlier slices.
struct SliceRuns {
  uint64_t bytes = 0;  // 0 only when the walk is done
  std::span<const Run> runs{};
};

// Walks a block list once, from the front, a slice a call. A value: copy it to walk again from
// here (that is how a lane is sent again). Blocks without bytes are passed over.
class SliceCursor {
 public:
  SliceCursor() = default;
  explicit SliceCursor(const BlockList* blocks);  // borrowed, must not change meanwhile

  // No byte is left.
  bool done() const { return pair_ == pairs_; }
  // The next slice, in `room`, which is overwritten from the front and grows when it is short.
  SliceRuns Next(const SliceLimits& limits, const RegionHolds& holds, std::vector<Run>& room);

 private:
  class Slice;
  class RunWalk;

  void Settle();
  bool FillPaged(Slice& slice);
  bool FillRuns(Slice& slice);
  bool FillDescriptors(Slice& slice);

  const BlockList* blocks_ = nullptr;
  uint64_t pairs_ = 0;   // a list of descriptors counts as one pair
  uint64_t ids_ = 0;     // blocks of the pair
  uint64_t pair_ = 0;    // next block: its pair,
  uint64_t id_ = 0;      // its place in the pair,
  uint64_t run_ = 0;     // its run, where it is of several,
  uint64_t offset_ = 0;  // and the bytes of that already given out
};

// Slice size for a transfer of `bytes` over `rails`: small enough that every rail gets a share and
// that one transfer does not starve others, large enough that the cost of an op is spread.
// From 64 KiB up to `max_op_bytes` (which wins when it is less); a transfer below 128 KiB is one
// slice (the thresholds of others are 64 KiB, Mooncake, and 128 KiB, NIXL and aws-ofi-nccl). Never
// 0.
uint64_t SliceBytes(uint64_t bytes, uint32_t rails, uint64_t max_op_bytes);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_PLAN_H_
