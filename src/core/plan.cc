#include "src/core/plan.h"

#include <algorithm>
#include <span>

namespace kvxfer {

// One slice being filled. Its last run is kept open here, to grow by blocks that continue it, and
// written down when the slice is full or the next block starts another.
class SliceCursor::Slice {
 public:
  Slice(const SliceLimits& limits, const RegionHolds& holds, std::vector<Run>& room)
      : holds_(holds),
        bytes_left_(std::max<uint64_t>(limits.max_bytes, 1)),
        runs_left_(std::max<uint64_t>(limits.max_runs, 1)),
        room_(room) {}

  const RegionHolds& holds() const { return holds_; }
  uint64_t bytes_left() const { return bytes_left_; }

  // Takes as much from the front of `piece` as fits, and returns how much: 0 when full.
  uint64_t Take(const Run& piece) {
    const uint64_t taken = std::min(piece.bytes, bytes_left_);
    const bool continues = open_.local + open_.bytes == piece.local &&
                           open_.remote + open_.bytes == piece.remote &&
                           open_.registration == piece.registration && open_.key == piece.key;
    if (continues && open_.bytes > 0) {
      open_.bytes += taken;
    } else {
      if (taken == 0 || runs_left_ == 0) return 0;
      Reserve(1);
      Close();
      open_ = piece;
      open_.bytes = taken;
      --runs_left_;
    }
    bytes_left_ -= taken;
    total_ += taken;
    return taken;
  }

  // Takes from the front of `count` whole blocks, whose bytes fit, and returns how many: fewer when
  // there is no run left. The open run is of the same pair.
  uint64_t TakeWhole(const BlockList::Pair& pair, const uint32_t* local_ids,
                     const uint32_t* remote_ids, uint64_t count) {
    const uint64_t bytes = pair.local.block_bytes;
    Reserve(std::min(count, runs_left_));
    Run* out = room_.data() + closed_;
    Run open = open_;
    uint64_t local_end = open.local + open.bytes;
    uint64_t remote_end = open.remote + open.bytes;
    uint64_t runs_left = runs_left_;
    uint64_t i = 0;
    for (; i < count; ++i) {
      const uint64_t local = pair.local.base + local_ids[i] * pair.local.stride;
      const uint64_t remote = pair.remote.base + remote_ids[i] * pair.remote.stride;
      if (local != local_end || remote != remote_end) {
        if (runs_left == 0) break;
        --runs_left;
        open.bytes = local_end - open.local;
        *out++ = open;
        open.local = local;
        open.remote = remote;
      }
      local_end = local + bytes;
      remote_end = remote + bytes;
    }
    open.bytes = local_end - open.local;
    open_ = open;
    runs_left_ = runs_left;
    closed_ = static_cast<size_t>(out - room_.data());
    bytes_left_ -= i * bytes;
    total_ += i * bytes;
    return i;
  }

  SliceRuns Finish() {
    Reserve(1);
    Close();
    return {.bytes = total_, .runs = std::span<const Run>(room_).first(closed_)};
  }

 private:
  // Room for so many runs to be closed.
  void Reserve(uint64_t runs) {
    if (room_.size() - closed_ < runs) room_.resize(closed_ + runs);
  }
  void Close() {
    if (open_.bytes > 0) room_[closed_++] = open_;
  }

  const RegionHolds holds_;
  uint64_t bytes_left_;
  uint64_t runs_left_;
  uint64_t total_ = 0;
  Run open_;
  std::vector<Run>& room_;
  size_t closed_ = 0;  // runs at the front of room_
};

SliceCursor::SliceCursor(const BlockList* blocks) : blocks_(blocks) {
  if (blocks == nullptr || blocks->size() == 0) return;
  const bool paged = !blocks->pairs().empty();
  pairs_ = paged ? blocks->pairs().size() : 1;
  ids_ = paged ? blocks->local_ids().size() : blocks->descriptors().size();
  Settle();
}

// Moves on to the next block that has bytes, so that done() is exact.
void SliceCursor::Settle() {
  const std::span<const BlockList::Pair> pairs = blocks_->pairs();
  const std::span<const Block> descriptors = blocks_->descriptors();
  while (pair_ < pairs_) {
    if (pairs.empty()) {
      while (id_ < ids_ && descriptors[id_].bytes == 0) ++id_;
    } else if (pairs[pair_].local.block_bytes == 0) {
      id_ = ids_;
    }
    if (id_ < ids_) return;
    id_ = 0;
    ++pair_;
  }
}

SliceRuns SliceCursor::Next(const SliceLimits& limits, const RegionHolds& holds,
                            std::vector<Run>& room) {
  if (done()) return {};
  Slice slice(limits, holds, room);
  const bool paged = !blocks_->pairs().empty();
  while (!done()) {
    const bool full = paged ? !FillPaged(slice) : !FillDescriptors(slice);
    if (full) break;
    Settle();
  }
  if (!done()) Settle();
  return slice.Finish();
}

// Takes blocks of the current pair; false when the slice is full before the pair is through.
bool SliceCursor::FillPaged(Slice& slice) {
  const BlockList::Pair& pair = blocks_->pairs()[pair_];
  const uint32_t* const local_ids = blocks_->local_ids().data();
  const uint32_t* const remote_ids = blocks_->remote_ids().data();
  const uint64_t block_bytes = pair.local.block_bytes;
  // The first block of a slice or of a pair, and the one that fits in part, go by themselves.
  while (id_ < ids_) {
    const uint64_t wanted = block_bytes - offset_;
    const uint64_t taken =
        slice.Take({.local = pair.local.base + local_ids[id_] * pair.local.stride + offset_,
                    .remote = pair.remote.base + remote_ids[id_] * pair.remote.stride + offset_,
                    .bytes = wanted,
                    .registration = slice.holds().local[pair.local_region],
                    .key = slice.holds().remote[pair.remote_region]});
    if (taken < wanted) {
      offset_ += taken;
      return false;
    }
    offset_ = 0;
    ++id_;
    const uint64_t whole = std::min(ids_ - id_, slice.bytes_left() / block_bytes);
    id_ += slice.TakeWhole(pair, local_ids + id_, remote_ids + id_, whole);
  }
  return true;
}

// The same for descriptors.
bool SliceCursor::FillDescriptors(Slice& slice) {
  const std::span<const Block> blocks = blocks_->descriptors();
  for (; id_ < ids_; ++id_, offset_ = 0) {
    const Block& block = blocks[id_];
    if (block.bytes == 0) continue;
    const uint64_t wanted = block.bytes - offset_;
    const uint64_t taken = slice.Take({.local = block.local + offset_,
                                       .remote = block.remote + offset_,
                                       .bytes = wanted,
                                       .registration = slice.holds().local[block.local_region],
                                       .key = slice.holds().remote[block.remote_region]});
    if (taken < wanted) {
      offset_ += taken;
      return false;
    }
  }
  return true;
}

uint64_t SliceBytes(uint64_t bytes, uint32_t rails, uint64_t max_op_bytes) {
  constexpr uint64_t kSmallest = 64 * 1024;
  constexpr uint64_t kCacheLine = 64;
  // A few slices a rail, so that a rail that is slower for a moment gets fewer of them.
  constexpr uint64_t kSlicesPerRail = 4;
  const uint64_t wanted = kSlicesPerRail * std::max<uint32_t>(rails, 1);
  // Rounded down: a tail far below 64 KiB would cost an op and win nothing.
  const uint64_t slices = std::clamp<uint64_t>(bytes / kSmallest, 1, wanted);
  const uint64_t even = bytes / slices + (bytes % slices != 0 ? 1 : 0);
  const uint64_t limit = std::max<uint64_t>(max_op_bytes, 1);
  if (even >= limit) return limit;
  const uint64_t aligned = (even / kCacheLine + (even % kCacheLine != 0 ? 1 : 0)) * kCacheLine;
  return std::min(std::max(aligned, kSmallest), limit);
}

}  // namespace kvxfer
