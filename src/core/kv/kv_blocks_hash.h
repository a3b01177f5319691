// Hashes that stand for block ids, or for a request, where the list or the name would be too long.
// XXH3, 64 bits (https://github.com/Cyan4973/xxHash); not cryptographic.
//
// Thread-safety: pure.

#ifndef KVXFER_CORE_KV_KV_BLOCKS_HASH_H_
#define KVXFER_CORE_KV_KV_BLOCKS_HASH_H_

#include <cstdint>
#include <span>
#include <string_view>

namespace kvxfer {

// The ids, in this order, of the cache with this id (docs/wire-format.md).
uint64_t HashLeased(uint64_t cache_id, std::span<const uint32_t> ids);
// The ids, and which of their tokens, counted from the first token of the first of these blocks.
uint64_t HashBlocks(std::span<const uint32_t> ids, uint64_t first_token, uint64_t tokens);

// Identifies one request of one cache; never 0.
uint64_t HashRequest(std::string_view cache, std::string_view request);

}  // namespace kvxfer

#endif  // KVXFER_CORE_KV_KV_BLOCKS_HASH_H_
