// Exact checks that no byte of a destination is written twice by one transfer.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_PLAN_BLOCK_OVERLAP_H_
#define KVXFER_CORE_PLAN_BLOCK_OVERLAP_H_

#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"
#include "kvxfer/memory.h"
#include "src/core/plan/block_list.h"

namespace kvxfer {

// InvalidArgument when an id occurs twice in `ids`, the largest of which is `highest`. `side`
// ("local", "remote") goes into messages, and the place of ids[0] among the caller's, `first`.
// O(ids), or O(ids log ids) where ids are few and far apart. Works in memory that the thread keeps,
// at most 2 MiB: a thread that calls it again allocates nothing, unless an id is above 8 million.
absl::Status CheckIdsDistinct(std::string_view side, std::span<const uint32_t> ids,
                              uint32_t highest, uint64_t first = 0);

// InvalidArgument when blocks `ids` of two of `regions` overlap. Requires distinct ids inside
// every region, and regions whose extents do not overflow. Zero-byte blocks overlap nothing.
absl::Status CheckPagedDisjoint(std::string_view side, std::span<const PagedRegion> regions,
                                std::span<const uint32_t> ids);

// InvalidArgument when two destination ranges overlap; `direction` says which side that is.
absl::Status CheckDescriptorsDisjoint(Direction direction, std::span<const Block> blocks);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_BLOCK_OVERLAP_H_
