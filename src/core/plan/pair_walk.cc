#include "src/core/plan/pair_walk.h"

#include <algorithm>

namespace kvxfer {
namespace {

uint64_t SaturatingSum(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}
// The distance from the first of `count` things to the last one.
uint64_t Distance(uint64_t count, uint64_t stride) {
  uint64_t distance = 0;
  if (count == 0 || __builtin_mul_overflow(count - 1, stride, &distance)) return UINT64_MAX;
  return distance;
}

}  // namespace

PairExtent ExtentOf(const BlockView& view, const BlockPair& pair) {
  PairExtent extent{.local = Distance(pair.local.count, pair.local.stride),
                    .remote = Distance(pair.remote.count, pair.remote.stride)};
  uint64_t bytes = pair.local.block_bytes;
  if (pair.pieces != BlockPair::kOnePiece) {
    const BlockPieces& pieces = view.block_pieces[pair.pieces];
    bytes = pieces.bytes;
    for (const BlockPieces::Dim& dim : pieces.used_dims()) {
      extent.local = SaturatingSum(extent.local, Distance(dim.count, dim.local_stride));
      extent.remote = SaturatingSum(extent.remote, Distance(dim.count, dim.remote_stride));
    }
  }
  extent.local = SaturatingSum(extent.local, bytes);
  extent.remote = SaturatingSum(extent.remote, bytes);
  return extent;
}

PairWalk::PairWalk(const BlockRange& range) : range_(range) { Step(); }

BlockRange PairWalk::range() const {
  // Blocks and pieces without bytes have no runs, and each run has one byte at least.
  BlockRange range = range_;
  range.bytes = bytes_;
  return range;
}

void PairWalk::Next() {
  range_.bytes -= bytes_;
  BlockPosition& at = range_.first;
  if (pair_ != nullptr) {
    at.id += blocks_;
  } else {
    ++at.id;
    at.piece = 0;
    at.offset = 0;
  }
  Step();
}

// `range_.first` is the first byte of the step, or behind the last block of a pair.
void PairWalk::Step() {
  pair_ = nullptr;
  blocks_ = 0;
  bytes_ = range_.bytes;
  if (bytes_ == 0 || range_.view->pairs.empty()) return;
  const BlockView& view = *range_.view;
  BlockPosition& at = range_.first;
  const BlockPair* pair = view.pairs.data() + at.pair;
  uint64_t each = BlockBytes(view, *pair);
  while (at.id >= pair->id_count || each == 0) {
    ++pair;
    at = {.pair = at.pair + 1};
    each = BlockBytes(view, *pair);
  }
  if (at.piece > 0 || at.offset > 0) {
    const uint64_t piece =
        pair->pieces == BlockPair::kOnePiece ? 0 : view.block_pieces[pair->pieces].bytes;
    bytes_ = std::min(bytes_, each - at.piece * piece - at.offset);
    return;
  }
  if (bytes_ < each) return;
  pair_ = pair;
  // Mostly all that is left of the pair.
  blocks_ = pair->id_count - at.id;
  if (blocks_ * each <= bytes_) {
    bytes_ = blocks_ * each;
    return;
  }
  blocks_ = static_cast<uint32_t>(bytes_ / each);
  bytes_ = blocks_ * each;
}

}  // namespace kvxfer
