// The blocks of one transfer after checking, kept as compactly as they were given: ids and paged
// regions, or descriptors, never expanded (G7). Read and Write look the same from here: `local`
// and `remote`.
//
// Thread-safety: immutable after construction.

#ifndef KVXFER_CORE_BLOCK_LIST_H_
#define KVXFER_CORE_BLOCK_LIST_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
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
  // destination, times the look-up of a region.
  static absl::StatusOr<BlockList> FromPaged(const PagedBlocks& blocks, Direction direction,
                                             const RegionTable& local, const RegionTable& remote);
  static absl::StatusOr<BlockList> FromDescriptors(const DescriptorBlocks& blocks,
                                                   Direction direction, const RegionTable& local,
                                                   const RegionTable& remote);
  BlockList() = default;  // no blocks: a notification alone

  uint64_t size() const { return size_; }
  uint64_t total_bytes() const { return total_bytes_; }
  Block At(uint64_t index) const;  // index < size()

  // Indices of the remote regions it touches, ascending, each once.
  const std::vector<uint32_t>& remote_regions() const { return remote_regions_; }
  const std::vector<uint32_t>& local_regions() const { return local_regions_; }

  // For walks without a division a block. Paged: block i is pair i / ids, id i % ids.
  // Descriptors: no pairs, and block i is descriptors()[i].
  std::span<const Pair> pairs() const { return pairs_; }
  std::span<const uint32_t> local_ids() const { return local_ids_; }
  std::span<const uint32_t> remote_ids() const { return remote_ids_; }
  std::span<const Block> descriptors() const { return descriptors_; }

 private:
  absl::Status SetTotals();

  std::vector<Pair> pairs_;
  std::vector<uint32_t> local_ids_;
  std::vector<uint32_t> remote_ids_;
  std::vector<Block> descriptors_;
  uint64_t size_ = 0;
  uint64_t total_bytes_ = 0;
  std::vector<uint32_t> remote_regions_;
  std::vector<uint32_t> local_regions_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BLOCK_LIST_H_
