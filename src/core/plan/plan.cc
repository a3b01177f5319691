#include "src/core/plan/plan.h"

#include <algorithm>
#include <limits>

namespace kvxfer {

// What is free in a slice while it is filled.
struct SliceCursor::Space {
  // Takes a piece: a whole block, a piece of one, or a part of it. Returns the bytes that fit.
  uint64_t Take(const Block& piece) {
    if (bytes == 0 || (!Continues(piece) && pieces == 0)) return 0;
    const uint64_t taken = std::min(piece.bytes, bytes);
    if (!Continues(piece)) --pieces;
    bytes -= taken;
    last = piece;
    last.bytes = taken;
    return taken;
  }
  // Whether the piece belongs to the run before it.
  bool Continues(const Block& piece) const {
    return merged && last.bytes > 0 && piece.local == last.local + last.bytes &&
           piece.remote == last.remote + last.bytes && piece.local_region == last.local_region &&
           piece.remote_region == last.remote_region;
  }

  bool empty() const { return bytes == max_bytes; }

  uint64_t bytes;
  uint64_t pieces;
  const uint64_t max_bytes;
  const bool merged;
  const bool whole;
  Block last{};  // the piece before, if `merged`
};

SliceCursor::SliceCursor(const BlockView* blocks) : blocks_(blocks) {
  if (blocks->pairs.empty() && blocks->descriptors.empty()) return;
  pairs_ = std::max<uint32_t>(static_cast<uint32_t>(blocks->pairs.size()), 1);
  Settle();
}

// Moves on to the next block that has bytes, so that done() is exact.
void SliceCursor::Settle() {
  if (blocks_->pairs.empty()) {
    ids_ = blocks_->descriptors.size();
    while (at_.id < ids_ && blocks_->descriptors[at_.id].bytes == 0) ++at_.id;
    if (at_.id == ids_) at_.pair = pairs_;
    return;
  }
  for (; at_.pair < pairs_; ++at_.pair, at_.id = 0) {
    const BlockPair& pair = blocks_->pairs[at_.pair];
    ids_ = pair.local.block_bytes == 0 ? 0 : pair.id_count;
    if (at_.id == ids_) continue;
    const bool one = pair.pieces == BlockPair::kOnePiece;
    each_ = one ? 1 : blocks_->block_pieces[pair.pieces].count();
    bytes_ = one ? pair.local.block_bytes : blocks_->block_pieces[pair.pieces].bytes;
    return;
  }
}

BlockRange SliceCursor::Next(const SliceLimits& limits) {
  BlockRange slice{.view = blocks_, .first = at_};
  if (done()) return slice;
  constexpr uint64_t kMostPieces = std::numeric_limits<uint32_t>::max();
  const Space all{.bytes = std::max<uint64_t>(limits.max_bytes, 1),
                  .pieces = std::clamp<uint64_t>(limits.max_pieces, 1, kMostPieces),
                  .max_bytes = std::max<uint64_t>(limits.max_bytes, 1),
                  .merged = limits.merged,
                  .whole = limits.whole_pieces};
  Space left = all;
  while (!done()) {
    if (!Fill(left)) break;
    Settle();
  }
  slice.bytes = all.bytes - left.bytes;
  slice.pieces = static_cast<uint32_t>(all.pieces - left.pieces);
  return slice;
}

// Adds what is left of the present pair to the slice; false if the slice is full before.
bool SliceCursor::Fill(Space& space) {
  if (blocks_->pairs.empty()) return FillDescriptors(space);
  const bool one_piece = blocks_->pairs[at_.pair].pieces == BlockPair::kOnePiece;
  return space.merged && one_piece ? FillIds(space) : FillPair(space);
}

// Goes on by whole pieces, within the pair.
void SliceCursor::Step(uint64_t pieces) {
  at_.offset = 0;
  at_.piece += pieces;
  at_.id += static_cast<uint32_t>(at_.piece / each_);
  at_.piece %= each_;
}

bool SliceCursor::FillPair(Space& space) {
  space.last.bytes = 0;
  if (at_.offset > 0) {
    // The rest of a piece whose first part is in the slice before.
    const uint64_t taken = std::min(bytes_ - at_.offset, space.bytes);
    if (taken == 0 || space.pieces == 0) return false;
    space.bytes -= taken;
    --space.pieces;
    at_.offset += taken;
    if (at_.offset < bytes_) return false;
    Step(1);
  }
  const uint64_t left = (ids_ - at_.id) * each_ - at_.piece;
  const uint64_t whole = std::min({left, space.bytes / bytes_, space.pieces});
  space.bytes -= whole * bytes_;
  space.pieces -= whole;
  Step(whole);
  if (whole == left) return true;
  // The piece that fits only in part.
  if (space.pieces > 0 && space.bytes > 0 && !(space.whole && !space.empty())) {
    at_.offset = space.bytes;
    space.bytes = 0;
    --space.pieces;
  }
  return false;
}

// Fill, block by block, for merged slices. Each block is one piece.
bool SliceCursor::FillIds(Space& space) {
  const BlockPair& pair = blocks_->pairs[at_.pair];
  const PairAddresses blocks(*blocks_, pair);
  for (; at_.id < ids_; ++at_.id, at_.offset = 0) {
    const Block rest{.local = blocks.local(at_.id) + at_.offset,
                     .remote = blocks.remote(at_.id) + at_.offset,
                     .bytes = bytes_ - at_.offset,
                     .local_region = pair.local_region,
                     .remote_region = pair.remote_region};
    if (!Take(rest, space)) return false;
  }
  return true;
}

// The same for descriptors.
bool SliceCursor::FillDescriptors(Space& space) {
  for (; at_.id < ids_; ++at_.id, at_.offset = 0) {
    Block rest = blocks_->descriptors[at_.id];
    rest.local += at_.offset;
    rest.remote += at_.offset;
    rest.bytes -= at_.offset;
    if (rest.bytes > 0 && !Take(rest, space)) return false;
  }
  return true;
}

// False: not all of `rest` fits; what fits is taken.
bool SliceCursor::Take(const Block& rest, Space& space) {
  const uint64_t taken = space.Take(rest);
  if (taken == rest.bytes) return true;
  at_.offset += taken;
  return false;
}

uint64_t SliceBytes(uint64_t bytes, uint32_t rails, uint64_t max_op_bytes,
                    uint64_t whole_op_bytes) {
  const uint64_t smallest = std::max<uint64_t>(whole_op_bytes, 1);
  constexpr uint64_t kCacheLine = 64;
  // A few slices per rail, so that a temporarily slower rail gets fewer of them.
  constexpr uint64_t kSlicesPerRail = 4;
  const uint64_t wanted = kSlicesPerRail * std::max<uint32_t>(rails, 1);
  // Rounded down: a last slice far below that would cost an op and gain nothing.
  const uint64_t slices = std::clamp<uint64_t>(bytes / smallest, 1, wanted);
  const uint64_t even = bytes / slices + (bytes % slices != 0 ? 1 : 0);
  const uint64_t limit = std::max<uint64_t>(max_op_bytes, 1);
  if (even >= limit) return limit;
  const uint64_t aligned = (even / kCacheLine + (even % kCacheLine != 0 ? 1 : 0)) * kCacheLine;
  return std::min(std::max(aligned, smallest), limit);
}

}  // namespace kvxfer
