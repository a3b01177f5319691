// One rank of the two instances of `kvxfer demo --prefill-tp N --decode-tp N`: its part of the
// model's KV cache and the layout in memory. Each layer has a region of K and one of V, or a fused
// one (kv_cache.h). A block is stored token by token (NHD) or head by head (HND).
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
  DemoConfig config;  // with tp and block_tokens of the side and cache_bytes of the rank
  std::string side{};
  std::string layout{};
  uint32_t rank = 0;

  std::string name() const { return side + " rank " + std::to_string(rank); }
  bool head_by_head() const { return layout == "HND"; }
  // The heads of the model that the rank has.
  uint32_t first_head() const;
  uint32_t heads() const;
  uint64_t head_bytes() const;  // of one head and token in one region
  // The bytes of one request on this rank, without the unused end of its last block.
  uint64_t request_bytes() const;
};

// All ranks of a side, which share `config.cache_bytes`. InvalidArgument: a parameter makes no
// sense, the heads cannot be split over the ranks, or not even one request fits.
absl::StatusOr<std::vector<DemoShard>> ShardsOf(const DemoConfig& config, const KvSide& side);

// As many blocks as the requests need and as fit, and some more that no request uses.
absl::StatusOr<KvCacheShape> CacheShapeOf(const DemoShard& shard);
absl::StatusOr<KvLayout> LayoutOf(const DemoShard& shard, const KvCacheShape& shape);

Json ToJson(const DemoShard& shard);
absl::StatusOr<DemoShard> DemoShardFromJson(const Json& json);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_SHARD_H_
