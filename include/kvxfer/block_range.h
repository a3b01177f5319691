// What one op moves: a range of the blocks of a transfer. Blocks stay arithmetic (a base, a stride
// and ids), until the code that moves the bytes walks them as runs.
//
//   BlockView    the checked block list of a transfer, as plain data
//   BlockRange   a part of it: where it begins, and how many bytes
//   RunWalk      walks a range as runs
//
// A piece is a block, one of the equal parts that a block consists of, or a descriptor: bytes that
// lie together on both sides. Adjacent pieces make one run.
//
// Lifetime: a view and all that it points to stay valid and unchanged until Poll has returned the
// completion of every op that names it.
// Thread-safety: plain values.
//
// Example (copies a range of a write whose remote addresses are mapped here):
//   for (kvxfer::RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
//     const kvxfer::Run& run = walk.run();
//     auto* to = reinterpret_cast<void*>(run.remote);
//     std::memcpy(to, reinterpret_cast<const void*>(run.local), run.bytes);
//   }

#ifndef KVXFER_BLOCK_RANGE_H_
#define KVXFER_BLOCK_RANGE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kvxfer/memory.h"

#define KVXFER_INLINE [[gnu::always_inline]] inline

namespace kvxfer {

class Registration;
class RemoteKey;

// Bytes that lie together on both sides. Each address is virtual, in the address space of the
// memory's owner. The agent has already checked both ends against their regions and rights.
struct Run {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  const Registration* registration = nullptr;
  const RemoteKey* key = nullptr;
};

// The bytes of a block that move, if they are not one piece: pieces of equal length at regular
// strides.
struct BlockPieces {
  static constexpr size_t kMaxDims = 4;
  struct Dim {
    uint64_t count = 0;
    uint64_t local_stride = 0;
    uint64_t remote_stride = 0;

    bool operator==(const Dim&) const = default;
  };

  uint64_t bytes = 0;  // of one piece
  // The first dim_count, 1 to kMaxDims, are in use. Their counts are above 0; the last of them is
  // the innermost loop.
  std::array<Dim, kMaxDims> dims{};
  uint32_t dim_count = 0;

  std::span<const Dim> used_dims() const { return std::span(dims).first(dim_count); }

  // How many pieces one block has.
  uint64_t count() const {
    uint64_t pieces = 1;
    for (const Dim& dim : used_dims()) pieces *= dim.count;
    return pieces;
  }
  bool operator==(const BlockPieces&) const = default;
};

// Blocks of one pair of paged regions: block local_ids[first_id + i] of `local` belongs to block
// remote_ids[first_id + i] of `remote`, for i < id_count. Both have the same `block_bytes`: the
// bytes of a block that move.
struct BlockPair {
  static constexpr uint32_t kOnePiece = UINT32_MAX;

  PagedRegion local;
  PagedRegion remote;
  uint32_t local_region = UINT32_MAX;   // index in BlockView::registrations
  uint32_t remote_region = UINT32_MAX;  // index in BlockView::keys
  uint32_t first_id = 0;                // index in BlockView::local_ids and remote_ids
  uint32_t id_count = 0;
  uint32_t pieces = kOnePiece;  // index in BlockView::block_pieces
};

// One block that is given by its addresses.
struct Block {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  uint32_t local_region = UINT32_MAX;   // index in BlockView::registrations
  uint32_t remote_region = UINT32_MAX;  // index in BlockView::keys
};

// Ids of one side that are in GPU memory, where no CPU can read them.
struct DeviceIdList {
  uint64_t at = 0;               // the GPU's address of the first; 0: they are not
  uint32_t region = UINT32_MAX;  // index in BlockView::registrations: in which they lie
};

// The checked block list of one transfer. Blocks are ordered pair by pair, each with its ids;
// without pairs, by descriptor. The agent has checked ids, addresses and rights.
struct BlockView {
  std::span<const BlockPair> pairs{};
  std::span<const BlockPieces> block_pieces{};
  const uint32_t* local_ids = nullptr;
  const uint32_t* remote_ids = nullptr;
  // In place of local_ids or remote_ids, only for a backend that takes them
  // (Capabilities::device_ids). They are not checked, and no RunWalk can walk the blocks.
  DeviceIdList local_device_ids{};
  DeviceIdList remote_device_ids{};
  std::span<const Block> descriptors{};
  // What the backend calls each region. Only those that the blocks touch need an entry.
  std::span<const Registration* const> registrations{};
  std::span<const RemoteKey* const> keys{};

  bool ids_on_gpu() const { return local_device_ids.at != 0 || remote_device_ids.at != 0; }
};

// Where the blocks of one pair are.
class PairAddresses {
 public:
  PairAddresses() = default;
  PairAddresses(const BlockView& view, const BlockPair& pair)
      : local_ids_(view.local_ids + pair.first_id),
        remote_ids_(view.remote_ids + pair.first_id),
        local_base_(pair.local.base),
        local_stride_(pair.local.stride),
        remote_base_(pair.remote.base),
        remote_stride_(pair.remote.stride) {}

  // Block `id`, counted from the pair's first one.
  uint64_t local(uint32_t id) const { return local_base_ + local_ids_[id] * local_stride_; }
  uint64_t remote(uint32_t id) const { return remote_base_ + remote_ids_[id] * remote_stride_; }

 private:
  const uint32_t* local_ids_ = nullptr;
  const uint32_t* remote_ids_ = nullptr;
  uint64_t local_base_ = 0;
  uint64_t local_stride_ = 0;
  uint64_t remote_base_ = 0;
  uint64_t remote_stride_ = 0;
};

// A place in a block list.
struct BlockPosition {
  uint32_t pair = 0;    // index in BlockView::pairs; 0 in a list of descriptors
  uint32_t id = 0;      // index in the pair, or in BlockView::descriptors
  uint64_t piece = 0;   // the block's piece, if it has several
  uint64_t offset = 0;  // bytes of that piece that lie before this place

  bool operator==(const BlockPosition&) const = default;
};

// Some bytes of a block list, in its order.
struct BlockRange {
  const BlockView* view = nullptr;  // null: no bytes
  BlockPosition first{};            // of the first byte; ignored without bytes
  uint64_t bytes = 0;
  uint32_t pieces = 0;  // at least the number of runs that a walk has; 0: no bytes
};

// Walks a range run by run. Pieces that are adjacent on both sides, with the same registration and
// key, are merged; blocks without bytes are skipped. No run crosses a region.
//
// Every block passes through Next, so its usual way is compiled into the caller's loop and keeps
// its state in registers. What is rare (another pair, or another row of a block's pieces) works on
// a copy of the walk, because the compiler keeps nothing in registers whose address leaves a
// function.
class RunWalk {
 public:
  RunWalk() = default;  // done
  KVXFER_INLINE explicit RunWalk(const BlockRange& range)
      : view_(range.view), left_(range.bytes), pair_(range.first.pair), id_(range.first.id) {
    if (left_ == 0) return;
    RunWalk entered = *this;
    entered.Enter(range.first.piece);
    *this = entered;
    TakePiece(range.first.offset);
  }

  bool done() const { return run_.bytes == 0; }
  // The present run, or what Take has left of it.
  const Run& run() const { return run_; }
  // Bytes from here to the end of the range.
  uint64_t left() const { return run_.bytes + left_; }

  // Goes to the next run.
  KVXFER_INLINE void Next() {
    if (left_ == 0) {
      run_.bytes = 0;
      return;
    }
    TakePiece(0);
  }

  // Takes `bytes` <= run().bytes off the front of the present run; goes on if nothing is left of
  // it.
  KVXFER_INLINE void Take(uint64_t bytes) {
    run_.local += bytes;
    run_.remote += bytes;
    run_.bytes -= bytes;
    if (run_.bytes == 0) Next();
  }

  // The beginning of the next run; bytes 0: there is none. For a prefetch.
  Run Ahead() const {
    if (left_ == 0) return {};
    return {.local = local_,
            .remote = remote_,
            .bytes = std::min(piece_bytes_, left_),
            .registration = registration_,
            .key = key_};
  }

 private:
  enum class Shape : uint8_t { kPaged, kPieces, kDescriptors };

  // Begins a run with the present piece, without its first `skipped` bytes, and merges what
  // follows.
  KVXFER_INLINE void TakePiece(uint64_t skipped) {
    run_ = {.local = local_ + skipped,
            .remote = remote_ + skipped,
            .bytes = std::min(piece_bytes_ - skipped, left_),
            .registration = registration_,
            .key = key_};
    left_ -= run_.bytes;
    if (left_ == 0) return;
    Step();
    while (Continues()) {
      const uint64_t more = std::min(piece_bytes_, left_);
      run_.bytes += more;
      left_ -= more;
      if (left_ == 0) return;
      Step();
    }
  }

  bool Continues() const {
    return local_ == run_.local + run_.bytes && remote_ == run_.remote + run_.bytes &&
           registration_ == run_.registration && key_ == run_.key;
  }

  // Goes to the next piece. There is one: bytes are left.
  KVXFER_INLINE void Step() {
    if (shape_ == Shape::kDescriptors) {
      ++id_;
      return EnterDescriptor();
    }
    if (shape_ == Shape::kPaged && ++id_ < ids_) return Place();
    if (row_left_ > 0) {
      --row_left_;
      local_ += row_.local_stride;
      remote_ += row_.remote_stride;
      return;
    }
    RunWalk stepped = *this;
    stepped.StepFar();
    *this = stepped;
  }

  void Place() {
    local_ = blocks_.local(id_);
    remote_ = blocks_.remote(id_);
  }

  // Places the walk at piece `piece` of block `id_` of pair `pair_`, or at descriptor `id_`.
  [[gnu::noinline]] void Enter(uint64_t piece) {
    if (view_->pairs.empty()) {
      shape_ = Shape::kDescriptors;
      return EnterDescriptor();
    }
    const BlockPair& pair = view_->pairs[pair_];
    ids_ = pair.id_count;
    blocks_ = PairAddresses(*view_, pair);
    registration_ = view_->registrations[pair.local_region];
    key_ = view_->keys[pair.remote_region];
    Place();
    if (pair.pieces == BlockPair::kOnePiece) {
      shape_ = Shape::kPaged;
      piece_bytes_ = pair.local.block_bytes;
      row_left_ = 0;
    } else {
      shape_ = Shape::kPieces;
      pieces_ = &view_->block_pieces[pair.pieces];
      piece_bytes_ = pieces_->bytes;
      EnterPiece(piece);
    }
  }

  KVXFER_INLINE void EnterDescriptor() {
    while (view_->descriptors[id_].bytes == 0) ++id_;
    const Block& block = view_->descriptors[id_];
    local_ = block.local;
    remote_ = block.remote;
    piece_bytes_ = block.bytes;
    registration_ = view_->registrations[block.local_region];
    key_ = view_->keys[block.remote_region];
  }

  void EnterPiece(uint64_t piece) {
    // `piece` is a mixed-radix number: its digits are the positions in the dims.
    for (size_t i = pieces_->dim_count; i-- > 0; piece /= pieces_->dims[i].count) {
      at_[i] = piece % pieces_->dims[i].count;
      local_ += at_[i] * pieces_->dims[i].local_stride;
      remote_ += at_[i] * pieces_->dims[i].remote_stride;
    }
    row_ = pieces_->dims[pieces_->dim_count - 1];
    row_left_ = row_.count - 1 - at_[pieces_->dim_count - 1];
  }

  // Goes on behind the last piece of a row: to the next row, block or pair.
  [[gnu::noinline]] void StepFar() {
    if (shape_ == Shape::kPieces) {
      if (StepRow()) return;
      if (++id_ < ids_) return Place();
    }
    do {
      ++pair_;
    } while (view_->pairs[pair_].id_count == 0 || view_->pairs[pair_].local.block_bytes == 0);
    id_ = 0;
    Enter(0);
  }

  // False: the block has no further row.
  bool StepRow() {
    row_left_ = row_.count - 1;
    local_ -= row_left_ * row_.local_stride;
    remote_ -= row_left_ * row_.remote_stride;
    for (size_t i = pieces_->dim_count - 1; i-- > 0;) {
      const BlockPieces::Dim& dim = pieces_->dims[i];
      if (++at_[i] < dim.count) {
        local_ += dim.local_stride;
        remote_ += dim.remote_stride;
        return true;
      }
      at_[i] = 0;
      local_ -= (dim.count - 1) * dim.local_stride;
      remote_ -= (dim.count - 1) * dim.remote_stride;
    }
    return false;
  }

  const BlockView* view_ = nullptr;
  uint64_t left_ = 0;  // bytes behind run_
  Run run_{};
  // The piece behind run_.
  uint64_t local_ = 0;
  uint64_t remote_ = 0;
  uint64_t piece_bytes_ = 0;  // its bytes
  const Registration* registration_ = nullptr;
  const RemoteKey* key_ = nullptr;
  Shape shape_ = Shape::kPaged;
  uint32_t pair_ = 0;
  uint32_t id_ = 0;
  uint32_t ids_ = 0;  // of the pair
  PairAddresses blocks_;
  // In blocks of several pieces: the innermost dim, how many pieces of the present row are behind
  // this one, and the position in the other dims.
  const BlockPieces* pieces_ = nullptr;
  BlockPieces::Dim row_{};
  uint64_t row_left_ = 0;
  std::array<uint64_t, BlockPieces::kMaxDims> at_{};
};

#undef KVXFER_INLINE

}  // namespace kvxfer

#endif  // KVXFER_BLOCK_RANGE_H_
