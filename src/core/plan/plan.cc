#include "src/core/plan/plan.h"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

namespace kvxfer {

// One slice while it is filled. Its last run stays open in `open_` and grows by blocks that
// continue it. The run is written to `space_` when the slice is full or the next block starts
// another run.
class SliceCursor::Slice {
 public:
  Slice(const SliceLimits& limits, const RegionHolds& holds, std::vector<Run>& space)
      : holds_(holds),
        bytes_left_(std::max<uint64_t>(limits.max_bytes, 1)),
        runs_left_(std::max<uint64_t>(limits.max_runs, 1)),
        space_(space) {}

  // The piece of a pair at these addresses, with the pair's registration and key.
  Run At(const BlockList::Pair& pair, uint64_t local, uint64_t remote, uint64_t bytes) const {
    return {.local = local,
            .remote = remote,
            .bytes = bytes,
            .registration = holds_.local[pair.local_region],
            .key = holds_.remote[pair.remote_region]};
  }
  const RegionHolds& holds() const { return holds_; }
  uint64_t bytes_left() const { return bytes_left_; }

  // Takes as many bytes from the front of `piece` as fit and returns the number: 0 when full.
  uint64_t Take(const Run& piece) {
    const uint64_t taken = std::min(piece.bytes, bytes_left_);
    const bool continues = open_.local + open_.bytes == piece.local &&
                           open_.remote + open_.bytes == piece.remote &&
                           open_.registration == piece.registration && open_.key == piece.key;
    if (continues && open_.bytes > 0) {
      open_.bytes += taken;
    } else {
      // A new run needs a free entry; a continued run does not.
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

  // Takes whole runs of `bytes` each from the front of `count` runs and returns how many: fewer
  // than `count` if the slice has no run left. place(i) returns the {local, remote} start of run i.
  // Requires that all `count` runs fit in bytes, and that the open run belongs to the same pair of
  // regions.
  template <typename Place>
  uint64_t TakeWhole(uint64_t bytes, uint64_t count, Place place) {
    // Local copies of the members: the compiler keeps them in registers, which it cannot do for
    // members because `*out` might alias them.
    Reserve(std::min(count, runs_left_));
    Run* out = space_.data() + closed_;
    Run open = open_;
    uint64_t local_end = open.local + open.bytes;
    uint64_t remote_end = open.remote + open.bytes;
    uint64_t runs_left = runs_left_;
    uint64_t i = 0;
    for (; i < count; ++i) {
      const auto [local, remote] = place(i);
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
    closed_ = static_cast<size_t>(out - space_.data());
    bytes_left_ -= i * bytes;
    total_ += i * bytes;
    return i;
  }

  SliceRuns Finish() {
    Reserve(1);
    Close();
    return {.bytes = total_, .runs = std::span<const Run>(space_).first(closed_)};
  }

 private:
  // Ensures that `runs` more runs can be written to space_.
  void Reserve(uint64_t runs) {
    if (space_.size() - closed_ < runs) space_.resize(closed_ + runs);
  }
  void Close() {
    if (open_.bytes > 0) space_[closed_++] = open_;
  }

  const RegionHolds holds_;
  uint64_t bytes_left_;
  uint64_t runs_left_;
  uint64_t total_ = 0;
  Run open_;
  std::vector<Run>& space_;
  size_t closed_ = 0;  // runs written to space_ so far
};

SliceCursor::SliceCursor(const BlockList* blocks) : blocks_(blocks) {
  if (blocks == nullptr || blocks->size() == 0) return;
  pairs_ = blocks->pairs().empty() ? 1 : blocks->pairs().size();
  Settle();
}

// Moves on to the next block that has bytes, so that done() is exact.
void SliceCursor::Settle() {
  const std::span<const BlockList::Pair> pairs = blocks_->pairs();
  const std::span<const Block> descriptors = blocks_->descriptors();
  for (; pair_ < pairs_; ++pair_, id_ = 0) {
    if (pairs.empty()) {
      ids_ = descriptors.size();
      while (id_ < ids_ && descriptors[id_].bytes == 0) ++id_;
    } else {
      ids_ = pairs[pair_].local.block_bytes == 0 ? 0 : pairs[pair_].id_count;
    }
    if (id_ < ids_) return;
  }
}

SliceRuns SliceCursor::Next(const SliceLimits& limits, const RegionHolds& holds,
                            std::vector<Run>& space) {
  if (done()) return {};
  Slice slice(limits, holds, space);
  const bool paged = !blocks_->pairs().empty();
  while (!done()) {
    const bool through = !paged ? FillDescriptors(slice)
                         : blocks_->pairs()[pair_].runs == BlockList::kOneRun ? FillPaged(slice)
                                                                              : FillRuns(slice);
    if (!through) break;
    Settle();
  }
  if (!done()) Settle();
  return slice.Finish();
}

// Adds blocks of the current pair to the slice; false if the slice is full before the pair ends.
// This is FillRuns for one run per block, separate for speed: benchmarks/micro/callgrind checks its
// cost.
bool SliceCursor::FillPaged(Slice& slice) {
  const BlockList::Pair& pair = blocks_->pairs()[pair_];
  const uint32_t* const local_ids = blocks_->local_ids().data() + pair.first_id;
  const uint32_t* const remote_ids = blocks_->remote_ids().data() + pair.first_id;
  const uint64_t block_bytes = pair.local.block_bytes;
  const auto place = [&](uint64_t id) {
    return std::pair(pair.local.base + local_ids[id] * pair.local.stride,
                     pair.remote.base + remote_ids[id] * pair.remote.stride);
  };
  // Take handles the first block of a slice or pair, which may start in the middle, and the block
  // that fits only in part. TakeWhole handles the whole blocks between them.
  while (id_ < ids_) {
    const auto [local, remote] = place(id_);
    const uint64_t wanted = block_bytes - offset_;
    const uint64_t taken = slice.Take(slice.At(pair, local + offset_, remote + offset_, wanted));
    if (taken < wanted) {
      offset_ += taken;
      return false;
    }
    offset_ = 0;
    ++id_;
    const uint64_t whole = std::min(ids_ - id_, slice.bytes_left() / block_bytes);
    id_ += slice.TakeWhole(block_bytes, whole,
                           [&, from = id_](uint64_t i) { return place(from + i); });
  }
  return true;
}

// Iterates over the runs of a pair, block by block, starting with run `run` of block `id`.
class SliceCursor::RunWalk {
 public:
  RunWalk(const BlockList& blocks, const BlockList::Pair& pair, uint64_t id, uint64_t run)
      : pair_(pair),
        local_ids_(blocks.local_ids().data() + pair.first_id),
        remote_ids_(blocks.remote_ids().data() + pair.first_id),
        runs_(blocks.block_runs()[pair.runs]),
        rows_(runs_.dims.size() - 1),
        inner_(runs_.dims[rows_]),
        id_(id) {
    Begin();
    left_ = inner_.count - 1 - run % inner_.count;
    local_ += run % inner_.count * inner_.local_stride;
    remote_ += run % inner_.count * inner_.remote_stride;
    uint64_t row = run / inner_.count;
    // `row` is a mixed-radix number: its digits are the positions in the outer dims.
    for (size_t i = rows_; i-- > 0; row /= runs_.dims[i].count) {
      at_[i] = row % runs_.dims[i].count;
      local_ += at_[i] * runs_.dims[i].local_stride;
      remote_ += at_[i] * runs_.dims[i].remote_stride;
    }
  }

  std::pair<uint64_t, uint64_t> place() const { return {local_, remote_}; }
  // Requires that the present run is not the last one of the pair.
  void Next() {
    if (left_ > 0) {
      --left_;
      local_ += inner_.local_stride;
      remote_ += inner_.remote_stride;
    } else {
      NextRow();
    }
  }

 private:
  void Begin() {
    local_ = pair_.local.base + local_ids_[id_] * pair_.local.stride;
    remote_ = pair_.remote.base + remote_ids_[id_] * pair_.remote.stride;
  }

  void NextRow() {
    left_ = inner_.count - 1;
    local_ -= left_ * inner_.local_stride;
    remote_ -= left_ * inner_.remote_stride;
    for (size_t i = rows_; i-- > 0;) {
      const BlockRuns::Dim& dim = runs_.dims[i];
      if (++at_[i] < dim.count) {
        local_ += dim.local_stride;
        remote_ += dim.remote_stride;
        return;
      }
      at_[i] = 0;
      local_ -= (dim.count - 1) * dim.local_stride;
      remote_ -= (dim.count - 1) * dim.remote_stride;
    }
    ++id_;
    Begin();
  }

  const BlockList::Pair& pair_;
  const uint32_t* const local_ids_;
  const uint32_t* const remote_ids_;
  const BlockRuns& runs_;
  const size_t rows_;  // number of dims outside the innermost one
  const BlockRuns::Dim inner_;
  uint64_t id_;
  uint64_t left_ = 0;  // runs left in the present row
  uint64_t local_ = 0;
  uint64_t remote_ = 0;
  std::array<uint64_t, BlockRuns::kMaxDims> at_{};  // position in each outer dim
};

// FillPaged for blocks of several runs. Rows and blocks may be short, so whole runs are taken
// across row and block boundaries.
bool SliceCursor::FillRuns(Slice& slice) {
  const BlockList::Pair& pair = blocks_->pairs()[pair_];
  const BlockRuns& runs = blocks_->block_runs()[pair.runs];
  uint64_t each = 1;  // runs per block
  for (const BlockRuns::Dim& dim : runs.dims) each *= dim.count;
  RunWalk walk(*blocks_, pair, id_, run_);
  for (;; walk.Next()) {
    const auto [local, remote] = walk.place();
    const uint64_t wanted = runs.bytes - offset_;
    const uint64_t taken = slice.Take(slice.At(pair, local + offset_, remote + offset_, wanted));
    if (taken < wanted) {
      offset_ += taken;
      return false;
    }
    offset_ = 0;
    const uint64_t left = (ids_ - id_) * each - run_ - 1;
    const uint64_t whole = std::min(left, slice.bytes_left() / runs.bytes);
    const uint64_t more = slice.TakeWhole(runs.bytes, whole, [&walk](uint64_t) {
      walk.Next();
      return walk.place();
    });
    run_ += 1 + more;
    id_ += run_ / each;
    run_ %= each;
    if (more == left) return true;
    if (more < whole) return false;  // no run is left in the slice, and `walk` is one step ahead
  }
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
  // A few slices per rail, so that a temporarily slower rail gets fewer of them.
  constexpr uint64_t kSlicesPerRail = 4;
  const uint64_t wanted = kSlicesPerRail * std::max<uint32_t>(rails, 1);
  // Rounded down: a last slice far below 64 KiB would cost an op and gain nothing.
  const uint64_t slices = std::clamp<uint64_t>(bytes / kSmallest, 1, wanted);
  const uint64_t even = bytes / slices + (bytes % slices != 0 ? 1 : 0);
  const uint64_t limit = std::max<uint64_t>(max_op_bytes, 1);
  if (even >= limit) return limit;
  const uint64_t aligned = (even / kCacheLine + (even % kCacheLine != 0 ? 1 : 0)) * kCacheLine;
  return std::min(std::max(aligned, kSmallest), limit);
}

}  // namespace kvxfer
