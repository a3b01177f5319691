// Walks the range of an op pair by pair, for who can move the blocks of a pair by their ids. Whole
// blocks of a pair come together; what is only a part of a block, and descriptors, come as ranges
// to be walked run by run.
//
// Specification, checked by property tests against RunWalk: the steps, in order, cover each byte of
// the range once. A step costs O(1), whatever the number of blocks.
//
// Thread-safety: none; a plain value.
//
// Example:
//   for (PairWalk walk(op.blocks); !walk.done(); walk.Next()) {
//     if (walk.pair() != nullptr) {
//       AddBlocks(*walk.pair(), walk.first_id(), walk.blocks());
//     } else {
//       for (RunWalk runs(walk.range()); !runs.done(); runs.Next()) Add(runs.run());
//     }
//   }

#ifndef KVXFER_CORE_PLAN_PAIR_WALK_H_
#define KVXFER_CORE_PLAN_PAIR_WALK_H_

#include <cstdint>

#include "kvxfer/block_range.h"

namespace kvxfer {

// The bytes of a block of `pair` that move.
inline uint64_t BlockBytes(const BlockView& view, const BlockPair& pair) {
  if (pair.pieces == BlockPair::kOnePiece) return pair.local.block_bytes;
  const BlockPieces& pieces = view.block_pieces[pair.pieces];
  return pieces.bytes * pieces.count();
}

class PairWalk {
 public:
  explicit PairWalk(const BlockRange& range);

  bool done() const { return bytes_ == 0; }
  void Next();

  // Not null: the step is whole blocks first_id() to first_id() + blocks() - 1 of this pair,
  // counted from the pair's first one.
  const BlockPair* pair() const { return pair_; }
  uint32_t first_id() const { return range_.first.id; }
  uint32_t blocks() const { return blocks_; }
  // The same step as a range of runs, whatever it is.
  BlockRange range() const;

 private:
  void Step();

  BlockRange range_;    // what is left, this step included
  uint64_t bytes_ = 0;  // of this step; 0: the walk is over
  const BlockPair* pair_ = nullptr;
  uint32_t blocks_ = 0;
};

// From a pair's block 0 to the end of the last byte that any of its ids can name, on either side.
// UINT64_MAX: beyond the address space.
struct PairExtent {
  uint64_t local = 0;
  uint64_t remote = 0;
};
PairExtent ExtentOf(const BlockView& view, const BlockPair& pair);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_PAIR_WALK_H_
