// One rank of the two instances of `kvxfer demo --prefill-tp N --decode-tp N`: its part of the
// model's KV cache and the layout in memory. Each layer has a region of K and one of V, or a fused
// one (kv_cache.h). A block is stored token by token (NHD) or head by head (HND).
//
// Thread-safety: plain values; functions without state.

#ifndef KVXFER_CLI_DEMO_SHARD_H_
#define KVXFER_CLI_DEMO_SHARD_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/options.h"
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

// What a decode rank receives from a prefill rank, as the library computes it.
struct DemoShare {
  uint32_t prefill = 0;  // ranks
  uint32_t decode = 0;
  KvHeads heads{};  // of the model
  // In one request: the number of runs that are contiguous on both sides, and the most common
  // length.
  uint64_t runs = 0;
  uint64_t run_bytes = 0;
};

// In the order of decode ranks, and then of heads.
absl::StatusOr<std::vector<DemoShare>> SharesOf(std::span<const DemoShard> prefill,
                                                std::span<const DemoShard> decode);

// The content of a rank's memory. The content of a request depends on the request, the layer, K or
// V, the token, the head of the model and the position in the head. Blocks that no request uses
// have content that says so. This class computes the place of each head's bytes from the order of
// the axes, without the library code that the demo shows.
//
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

// The run of two instances: each rank is a process, and Agent::WriteBlocks moves the KV caches of
// some requests between them. This process assigns the blocks of both sides, as a scheduler does,
// and moves no data.
struct DemoGroupRun {
  std::vector<DemoShard> prefill{};
  std::vector<DemoShard> decode{};
  std::vector<DemoShare> shares{};
  std::vector<std::string> paths{};   // of each share: ChosenPath after the run
  std::vector<std::string> errors{};  // of each request: the first error found; empty: verified
  std::vector<uint64_t> verified{};   // number of requests, by decode rank
  // By decode rank: the sum over all rounds, from posting to the last notification.
  std::vector<double> wire_seconds{};
  double seconds = 0;      // with making and checking content
  double cpu_seconds = 0;  // of all processes
  absl::Status guards{};   // of guard zones and of blocks that no request uses

  size_t CountVerified() const;
  uint64_t bytes() const;  // into all decode ranks
};

// An error means that the run broke off. Wrong bytes are reported in the result.
absl::StatusOr<DemoGroupRun> RunDemoGroup(const DemoConfig& config, const KvSide& prefill,
                                          const KvSide& decode);

void PrintGroupTable(const DemoGroupRun& run);
void PrintGroupJson(const DemoGroupRun& run);
// DataLoss names the first thing that is wrong.
absl::Status OutcomeOf(const DemoGroupRun& run);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_SHARD_H_
