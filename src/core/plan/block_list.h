// The blocks of one transfer after checking, kept as compactly as they were given: ids and paged
// regions, or descriptors, never expanded (G7); between KV caches of unlike layouts, ids and what
// runs of bytes a block is made of. Read and Write look the same from here: `local` and `remote`.
//
// Thread-safety: immutable after construction, but for ReleaseIds.

#ifndef KVXFER_CORE_PLAN_BLOCK_LIST_H_
#define KVXFER_CORE_PLAN_BLOCK_LIST_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/core/plan/id_pool.h"
#include "src/core/plan/region_set.h"
#include "src/core/plan/region_table.h"

namespace kvxfer {

struct Block {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  uint32_t local_region = kNoRegion;   // index in the local RegionTable::regions()
  uint32_t remote_region = kNoRegion;  // index in the peer's
};

// Which side is written: its blocks must not overlap.
enum class Direction : uint8_t { kWrite, kRead };

// What moves of a block, where that is not one run: runs of equal length at even distances.
struct BlockRuns {
  static constexpr size_t kMaxDims = 4;
  struct Dim {
    uint64_t count = 0;
    uint64_t local_stride = 0;
    uint64_t remote_stride = 0;

    bool operator==(const Dim&) const = default;
  };

  uint64_t bytes = 0;  // of a run
  // At least one and at most kMaxDims, none of count 0; the last one is walked innermost.
  absl::InlinedVector<Dim, kMaxDims> dims{};

  bool operator==(const BlockRuns&) const = default;
};

class BlockList {
 public:
  // local[p] and remote[p] of the paged blocks, with the regions that hold them whole.
  // `block_bytes` of either: what moves of a block.
  struct Pair {
    PagedRegion local;
    PagedRegion remote;
    uint32_t local_region = kNoRegion;
    uint32_t remote_region = kNoRegion;
    uint32_t first_id = 0;  // of local_ids() and remote_ids()
    uint32_t id_count = 0;
    uint32_t runs = kOneRun;  // index in block_runs()
  };
  static constexpr uint32_t kOneRun = UINT32_MAX;

  // Checks everything that can be wrong with the arguments (see Agent::Write) against both
  // tables. Costs O(ids + pairs log pairs) unless destination regions interleave with unequal
  // strides (then O(blocks log pairs)); descriptors O(n), or O(n log n) unless sorted by
  // destination, times the look-up of a region. The ids are copied into one buffer of `pool`.
  static absl::StatusOr<BlockList> FromPaged(const PagedBlocks& blocks, Direction direction,
                                             const RegionTable& local, const RegionTable& remote,
                                             IdPool& pool);
  static absl::StatusOr<BlockList> FromDescriptors(const DescriptorBlocks& blocks,
                                                   Direction direction, const RegionTable& local,
                                                   const RegionTable& remote);
  // Between KV caches: kv_block_list.h.
  BlockList() = default;  // no blocks: a notification alone

  // Between KV caches: ids, over all pairs.
  uint64_t size() const { return size_; }
  uint64_t total_bytes() const { return total_bytes_; }

  // Nobody walks the blocks any more: gives the ids' memory back. Sizes and regions stay.
  void ReleaseIds(IdPool& pool) {
    id_count_ = 0;
    pool.Give(std::exchange(ids_, {}));
  }

  // Indices of the remote regions it touches, ascending, each once.
  std::span<const uint32_t> remote_regions() const { return remote_regions_; }
  std::span<const uint32_t> local_regions() const { return local_regions_; }

  // Pair by pair, each with its ids; or, without pairs, one descriptor after the other.
  std::span<const Pair> pairs() const { return pairs_; }
  std::span<const BlockRuns> block_runs() const { return block_runs_; }
  std::span<const uint32_t> local_ids() const { return {ids_.ids.get(), id_count_}; }
  std::span<const uint32_t> remote_ids() const { return {ids_.ids.get() + id_count_, id_count_}; }
  std::span<const Block> descriptors() const { return descriptors_; }

 private:
  friend class KvListBuilder;

  // Room for so many ids of either side: the local ones, then the remote ones.
  uint32_t* TakeIds(size_t count, IdPool& pool);
  absl::Status SetTotals();

  absl::InlinedVector<Pair, 1> pairs_;  // a small transfer allocates none
  std::vector<BlockRuns> block_runs_;
  IdBuffer ids_;         // the local ones, then as many remote ones
  size_t id_count_ = 0;  // of either side
  std::vector<Block> descriptors_;
  uint64_t size_ = 0;
  uint64_t total_bytes_ = 0;
  RegionIndices remote_regions_;
  RegionIndices local_regions_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_BLOCK_LIST_H_
