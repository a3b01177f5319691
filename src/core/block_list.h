// The blocks of one transfer after checking, kept as compactly as they were given: ids and paged
// regions, or descriptors, never expanded (G7). Read and Write look the same from here: `local`
// and `remote`.
//
// Thread-safety: immutable after construction, but for ReleaseIds.

#ifndef KVXFER_CORE_BLOCK_LIST_H_
#define KVXFER_CORE_BLOCK_LIST_H_

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/core/id_pool.h"
#include "src/core/region_table.h"

namespace kvxfer {

// The region of a block without bytes: it is looked up in no table.
inline constexpr uint32_t kNoRegion = UINT32_MAX;

struct Block {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint64_t bytes = 0;
  uint32_t local_region = kNoRegion;   // index in the local RegionTable::regions()
  uint32_t remote_region = kNoRegion;  // index in the peer's
};

// Which side is written: its blocks must not overlap.
enum class Direction : uint8_t { kWrite, kRead };

class BlockList {
 public:
  // local[p] and remote[p] of the paged blocks, with the regions that hold them whole.
  struct Pair {
    PagedRegion local;
    PagedRegion remote;
    uint32_t local_region = kNoRegion;
    uint32_t remote_region = kNoRegion;
  };

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
  BlockList() = default;  // no blocks: a notification alone

  uint64_t size() const { return size_; }
  uint64_t total_bytes() const { return total_bytes_; }
  Block At(uint64_t index) const;  // index < size()

  // Nobody walks the blocks any more: gives the ids' memory back. Sizes and regions stay.
  void ReleaseIds(IdPool& pool) { pool.Give(std::exchange(ids_, {})); }

  // Indices of the remote regions it touches, ascending, each once.
  std::span<const uint32_t> remote_regions() const { return remote_regions_; }
  std::span<const uint32_t> local_regions() const { return local_regions_; }

  // For walks without a division a block. Paged: block i is pair i / ids, id i % ids.
  // Descriptors: no pairs, and block i is descriptors()[i].
  std::span<const Pair> pairs() const { return pairs_; }
  std::span<const uint32_t> local_ids() const { return {ids_.ids.get(), id_count_}; }
  std::span<const uint32_t> remote_ids() const { return {ids_.ids.get() + id_count_, id_count_}; }
  std::span<const Block> descriptors() const { return descriptors_; }

 private:
  absl::Status SetTotals();

  // A small transfer allocates for neither its regions nor its pairs.
  using Regions = absl::InlinedVector<uint32_t, 2>;
  class RegionSet;

  absl::InlinedVector<Pair, 1> pairs_;
  IdBuffer ids_;         // the local ones, then as many remote ones
  size_t id_count_ = 0;  // of either side
  std::vector<Block> descriptors_;
  uint64_t size_ = 0;
  uint64_t total_bytes_ = 0;
  Regions remote_regions_;
  Regions local_regions_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BLOCK_LIST_H_
