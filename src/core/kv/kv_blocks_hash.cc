#include "src/core/kv/kv_blocks_hash.h"

#include <xxhash.h>

#include <array>
#include <bit>

namespace kvxfer {

static_assert(std::endian::native == std::endian::little, "ids are hashed as they lie in memory");

uint64_t HashLeased(uint64_t cache_id, std::span<const uint32_t> ids) {
  return XXH3_64bits_withSeed(ids.data(), ids.size_bytes(), cache_id);
}

uint64_t HashBlocks(std::span<const uint32_t> ids, uint64_t first_token, uint64_t tokens) {
  const std::array<uint64_t, 2> which = {first_token, tokens};
  return XXH3_64bits_withSeed(ids.data(), ids.size_bytes(),
                              XXH3_64bits(which.data(), sizeof(which)));
}

uint64_t HashRequest(std::string_view cache, std::string_view request) {
  const uint64_t seed = XXH3_64bits(cache.data(), cache.size());
  // 0 means "no request" where the hash is used.
  return XXH3_64bits_withSeed(request.data(), request.size(), seed) | 1;
}

}  // namespace kvxfer
