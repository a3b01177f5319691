// One rank of the two instances of `kvxfer demo --prefill-tp N --decode-tp N`: which part of the
// model's cache it has, and how that lies in its memory. For every layer a region of K and one of
// V, or a fused one (kv_cache.h); within a block token by token (NHD) or head by head (HND).
//
// Thread-safety: plain values; functions without state.
#ifndef KVXFER_CLI_DEMO_SHARD_H_
#define KVXFER_CLI_DEMO_SHARD_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/cli/common/shared_options.h"
#include "src/cli/demo/demo.h"

namespace kvxfer::cli {

struct DemoShard {
  DemoConfig config;  // tp and block_tokens are those of the side, cache_bytes is the rank's
  std::string side{};
  std::string layout{};
  uint32_t rank = 0;

  std::string name() const { return side + " rank " + std::to_string(rank); }
  bool head_by_head() const { return layout == "HND"; }
  // Of the model's.
  uint32_t first_head() const;
  uint32_t heads() const;
  uint64_t head_bytes() const;  // of one head and token, in one region
  // Of the model, here, for the tokens of one request.
  uint64_t request_bytes() const;
};

// Every rank of a side; they share `config.cache_bytes`. InvalidArgument: a parameter makes no
// sense, heads do not divide, or not even one request fits.
absl::StatusOr<std::vector<DemoShard>> ShardsOf(const DemoConfig& config, const KvSide& side);

// As many blocks as requests need, as far as they fit, and some that no request gets.
absl::StatusOr<KvCacheShape> CacheShapeOf(const DemoShard& shard);
absl::StatusOr<KvLayout> LayoutOf(const DemoShard& shard, const KvCacheShape& shape);

Json ToJson(const DemoShard& shard);
absl::StatusOr<DemoShard> DemoShardFromJson(const Json& json);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_SHARD_H_
