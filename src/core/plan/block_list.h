// The blocks of one transfer after checking. They are kept as compactly as they were given, as ids
// and paged regions or as descriptors, and are never expanded (G7). Between KV caches with
// different layouts, the list also has the pieces that each block consists of. Reads and
// Writes have the same form here: `local` and `remote`.
//
// Thread-safety: immutable after construction, except for ReleaseIds.

#ifndef KVXFER_CORE_PLAN_BLOCK_LIST_H_
#define KVXFER_CORE_PLAN_BLOCK_LIST_H_

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/block_range.h"
#include "kvxfer/memory.h"
#include "src/core/plan/id_pool.h"
#include "src/core/plan/region_set.h"
#include "src/core/plan/region_table.h"

namespace kvxfer {

// The direction of a transfer. It decides which side is written; the blocks there must not overlap.
enum class Direction : uint8_t { kWrite, kRead };

class BlockList {
 public:
  // Checks the arguments (see Agent::Write for the errors) against both region tables.
  // Cost of FromPaged: O(ids + pairs log pairs); O(blocks log pairs) if destination regions
  // interleave with unequal strides. Cost of FromDescriptors: O(n), or O(n log n) if the
  // destinations are neither sorted nor equal blocks on a grid; plus the look-up of regions.
  // FromPaged copies the ids, into one buffer of `pool` unless they are few.
  static absl::StatusOr<BlockList> FromPaged(const PagedBlocks& blocks, Direction direction,
                                             const RegionTable& local, const RegionTable& remote,
                                             IdPool& pool);
  static absl::StatusOr<BlockList> FromDescriptors(const DescriptorBlocks& blocks,
                                                   Direction direction, const RegionTable& local,
                                                   const RegionTable& remote);
  // Lists between KV caches are built by ListKvBlocks and KvLayerLists (kv_block_list.h).
  BlockList() = default;  // no blocks: a notification alone

  // Number of blocks. Between KV caches: the number of ids, summed over all pairs.
  uint64_t size() const { return size_; }
  uint64_t total_bytes() const { return total_bytes_; }

  // Returns the ids' memory to `pool`, or lets go of it if other lists share it. The caller must
  // not walk the blocks after this; sizes and region indices stay valid.
  void ReleaseIds(IdPool& pool) {
    id_count_ = 0;
    shared_ids_.reset();
    if (ids_.ids != nullptr) pool.Give(std::exchange(ids_, {}));
  }

  // Indices of the regions that the transfer touches, ascending, each once.
  std::span<const uint32_t> remote_regions() const { return remote_regions_; }
  std::span<const uint32_t> local_regions() const { return local_regions_; }

  // The blocks as backends see them, as long as the list is neither moved nor destroyed. The two
  // arrays are borrowed; they have one entry for each region of the tables that the list was
  // checked against.
  BlockView View(std::span<const Registration* const> registrations,
                 std::span<const RemoteKey* const> keys) const {
    return {.pairs = pairs_,
            .block_pieces = block_pieces_,
            .local_ids = ids(),
            .remote_ids = ids() + id_count_,
            .local_device_ids = local_device_ids_,
            .remote_device_ids = remote_device_ids_,
            .descriptors = descriptors_,
            .registrations = registrations,
            .keys = keys};
  }

  // Some of the ids are in GPU memory; the ones of that side below say nothing.
  bool ids_on_gpu() const { return local_device_ids_.at != 0 || remote_device_ids_.at != 0; }
  std::span<const BlockPair> pairs() const { return pairs_; }
  std::span<const uint32_t> local_ids() const { return {ids(), id_count_}; }
  std::span<const uint32_t> remote_ids() const { return {ids() + id_count_, id_count_}; }
  std::span<const BlockPieces> block_pieces() const { return block_pieces_; }
  std::span<const Block> descriptors() const { return descriptors_; }

 private:
  friend class KvListBuilder;

  // shared_ptr: the lists of all layers of a request share one copy of its ids, and any of them may
  // be the last one that is walked.
  using SharedIds = std::shared_ptr<const uint32_t[]>;

  // So many ids of each side fit into the list itself and need no buffer of the pool.
  static constexpr size_t kFewIds = 8;

  absl::Status FillPaged(const PagedBlocks& blocks, Direction direction, const RegionTable& local,
                         const RegionTable& remote, IdPool& pool);
  absl::Status FillDescriptors(const DescriptorBlocks& blocks, Direction direction,
                               const RegionTable& local, const RegionTable& remote);
  // Takes memory for `count` ids of each side: first the local ids, then the remote ids.
  uint32_t* TakeIds(size_t count, IdPool& pool);
  // Uses ids in memory that other lists use too, in the same order.
  void ShareIds(SharedIds ids, size_t count) {
    shared_ids_ = std::move(ids);
    id_count_ = count;
  }
  const uint32_t* ids() const {
    if (shared_ids_) return shared_ids_.get();
    return ids_.ids ? ids_.ids.get() : few_ids_.data();
  }
  absl::Status SetTotals();

  // Inline: a small transfer allocates nothing.
  absl::InlinedVector<BlockPair, 1> pairs_;
  std::vector<BlockPieces> block_pieces_;
  // One of them has id_count_ local ids, then id_count_ remote ids.
  std::array<uint32_t, 2 * kFewIds> few_ids_{};
  IdBuffer ids_;
  SharedIds shared_ids_;
  size_t id_count_ = 0;  // per side
  DeviceIdList local_device_ids_;
  DeviceIdList remote_device_ids_;
  absl::InlinedVector<Block, 1> descriptors_;
  uint64_t size_ = 0;
  uint64_t total_bytes_ = 0;
  RegionIndices remote_regions_;
  RegionIndices local_regions_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_BLOCK_LIST_H_
