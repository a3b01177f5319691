// The content of a rank's memory in `kvxfer demo`. The content of a request depends on the request,
// the layer, K or V, the token, the head of the model and the position in the head. Blocks that no
// request uses have content that says so. This file computes the place of each head's bytes from
// the order of the axes, without the library code that the demo shows.
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

  // Marks blocks as used by no request. An error of this and the next functions that is not
  // DataLoss comes from the CUDA driver.
  absl::Status Clear(std::span<const uint32_t> ids) const;
  // DataLoss names the first place that was written.
  absl::Status CheckClear(std::span<const uint32_t> ids) const;

  // `ids` are the request's blocks in order. Marks the space after the request's last token as
  // unused.
  absl::Status Fill(uint32_t request, std::span<const uint32_t> ids) const;
  // Checks that every byte of its tokens is the request's, and that the space after its last token
  // is marked as unused. DataLoss names layer, token and head of the first wrong byte.
  absl::Status Check(uint32_t request, std::span<const uint32_t> ids) const;

 private:
  // One head of one token, in K, in V or in a fused region.
  struct Place {
    uint32_t piece;
    uint32_t id;
    size_t index;   // of the block in the request
    uint64_t slot;  // of the token in the block
    uint32_t head;  // among those of the rank
  };

  // Calls visit(Place, its bytes) in the order of addresses of each piece, until a call returns an
  // error.
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
