// Cuts a transfer into slices: ranges of its block list, each of which one op moves. Cutting is
// arithmetic: a slice costs O(pairs of regions that it touches), or O(descriptors), never O(ids).
// The exception is a backend of few pieces per op, kFewPieces.
//
// Specification, checked by property tests. For every block list, max_bytes and max_pieces: the
// slices, in order, cover each byte of each block exactly once; no slice exceeds max_bytes or
// max_pieces; equal limits give equal slices; a walk over a slice has at most BlockRange::pieces
// runs.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_PLAN_PLAN_H_
#define KVXFER_CORE_PLAN_PLAN_H_

#include <cstdint>

#include "kvxfer/block_range.h"

namespace kvxfer {

struct SliceLimits {
  uint64_t max_bytes = 0;   // per slice, > 0
  uint64_t max_pieces = 0;  // per slice, > 0; see BlockRange::pieces
  // Pieces that continue each other on both sides, one run, count as one. The ids are read for
  // that, so it is for backends of few pieces per op: adjacent blocks shall be one op where a
  // device takes one address per op. Where many pieces fit, they seldom end a slice.
  bool merged = false;
  // No piece is cut that fits into a slice of its own. For pairs only.
  bool whole_pieces = false;
};

// Backends of at most so many pieces per op get merged slices.
inline constexpr uint64_t kFewPieces = 16;

// Walks a block list once, from the front, one slice per call. It is a value: copy it to walk again
// from the same point (a lane is sent again in this way). Blocks without bytes are skipped.
class SliceCursor {
 public:
  SliceCursor() = default;
  explicit SliceCursor(const BlockView* blocks);  // borrowed, must not change meanwhile

  // True if no byte is left.
  bool done() const { return at_.pair == pairs_; }
  BlockRange Next(const SliceLimits& limits);

 private:
  struct Space;

  void Settle();
  void Step(uint64_t pieces);
  bool Fill(Space& space);
  bool FillPair(Space& space);
  bool FillIds(Space& space);
  bool FillDescriptors(Space& space);
  bool Take(const Block& rest, Space& space);

  const BlockView* blocks_ = nullptr;
  uint32_t pairs_ = 0;  // a list of descriptors counts as one pair
  // What the pair has that `at_` is in.
  uint64_t ids_ = 0;    // blocks
  uint64_t each_ = 1;   // pieces of a block
  uint64_t bytes_ = 0;  // of a piece
  BlockPosition at_{};  // the next byte
};

// The slice size for a transfer of `bytes` over `rails`: small enough that every rail gets some
// slices and that one transfer does not starve others, large enough to amortise the cost of an op.
// It is between `whole_op_bytes` and `max_op_bytes` (which wins if it is smaller), and never 0. A
// transfer below twice `whole_op_bytes` is one slice. For comparison: 64 KiB in Mooncake, 128 KiB
// in NIXL and aws-ofi-nccl.
uint64_t SliceBytes(uint64_t bytes, uint32_t rails, uint64_t max_op_bytes,
                    uint64_t whole_op_bytes = 64 * 1024);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_PLAN_H_
