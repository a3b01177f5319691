// What is in the memory of a rank of `kvxfer demo`: the content of requests, made from request,
// layer, K or V, token and head of the model and position in it; and where no request is, content
// that says so. Where a head's bytes lie is worked out here, from the order of the axes, and by
// nothing of what is shown.
#ifndef KVXFER_CLI_DEMO_CONTENT_H_
#define KVXFER_CLI_DEMO_CONTENT_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/demo/shard.h"

namespace kvxfer::cli {

// The cache and shard outlive it. Thread-safety: none.
class DemoContent {
 public:
  DemoContent(const KvCache& cache, const DemoShard& shard) : cache_(cache), shard_(shard) {}

  // Makes blocks those of no request. An error, of any of these: of the GPU's driver.
  absl::Status Clear(std::span<const uint32_t> ids) const;
  // DataLoss names the first place that was written.
  absl::Status CheckClear(std::span<const uint32_t> ids) const;

  // `ids` are the blocks of the request, in order; what is behind its last token becomes clear.
  absl::Status Fill(uint32_t request, std::span<const uint32_t> ids) const;
  // Every byte of its tokens is the request's, and what is behind them in the last block is clear.
  // DataLoss names layer, token and head of the first wrong byte.
  absl::Status Check(uint32_t request, std::span<const uint32_t> ids) const;

 private:
  // One head of one token of K, V or what they are fused to.
  struct Place {
    uint32_t piece;
    uint32_t id;
    size_t index;   // of the block in the request
    uint64_t slot;  // of the token in the block
    uint32_t head;  // of the rank's
  };

  // Calls visit(Place, its bytes), in the order of addresses of each piece, until one is an error.
  template <typename Visit>
  absl::Status Walk(std::span<const uint32_t> ids, Touch touch, const Visit& visit) const;
  template <typename Visit>
  absl::Status WalkBlock(Place place, std::span<std::byte> block, const Visit& visit) const;
  uint64_t TokenOf(const Place& place) const;
  uint64_t ClearSeed(const Place& place) const;
  uint64_t RequestSeed(uint32_t request, const Place& place) const;
  std::string Describe(const Place& place) const;

  const KvCache& cache_;
  const DemoShard& shard_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_CONTENT_H_
