// Exact checks that one transfer writes no byte of its destination twice.
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

// InvalidArgument: an id occurs twice in `ids`. No id exceeds `bound`, which should be little above
// the highest. Messages name the `side` ("local", "remote") and the positions in the caller's list,
// where ids[0] has position `first`.
// O(ids), or O(ids log ids) if there are few ids that are far apart. Uses at most 2.3 MiB of memory
// that the thread keeps: repeated calls allocate nothing unless an id is above 8 million or there
// are more than 262,144 ids to sort.
absl::Status CheckIdsDistinct(std::string_view side, std::span<const uint32_t> ids, uint32_t bound,
                              uint64_t first = 0);

// InvalidArgument: two blocks of different `regions` overlap; `ids` names the blocks of each.
// Requires distinct ids, and regions whose extents do not overflow. Zero-byte blocks overlap
// nothing.
absl::Status CheckPagedDisjoint(std::string_view side, std::span<const PagedRegion> regions,
                                std::span<const uint32_t> ids);

// The same whatever the ids are. InvalidArgument: two of the regions' extents overlap, unless they
// have one stride and their blocks take turns.
absl::Status CheckRegionsDisjoint(std::string_view side, std::span<const PagedRegion> regions);

// InvalidArgument: two destination ranges overlap. `direction` says which side is the destination.
absl::Status CheckDescriptorsDisjoint(Direction direction, std::span<const Block> blocks);

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_BLOCK_OVERLAP_H_
