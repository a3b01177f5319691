// What stands for block ids, or for a request, where the list or the name itself would be too long.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_KV_BLOCKS_HASH_H_
#define KVXFER_CORE_KV_KV_BLOCKS_HASH_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace kvxfer {

// Of the ids in this order, in the cache of this id (docs/wire-format.md).
uint64_t HashLeased(uint64_t cache_id, std::span<const uint32_t> ids);
// Of the ids, and which of their tokens, counted through from the first of these blocks on.
uint64_t HashBlocks(std::span<const uint32_t> ids, uint64_t first_token, uint64_t tokens);

// Names what belongs to one request of one cache; never 0.
uint64_t HashRequest(std::string_view cache, std::string_view request);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_BLOCKS_HASH_H_
