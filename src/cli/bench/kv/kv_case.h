// A measured case: the KV cache of a model, a prefill and a decode instance, and which ranks of the
// two exchange data.
//
// Thread-safety: plain values; pure functions.

#ifndef KVXFER_CLI_BENCH_KV_KV_CASE_H_
#define KVXFER_CLI_BENCH_KV_KV_CASE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "kvxfer/kv_layout.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/common/cache_memory.h"

namespace kvxfer::cli::kv_bench {

// One of the two instances.
struct Instance {
  std::string role{};  // "prefill" or "decode"
  uint32_t tp = 1;
  uint32_t block_tokens = 16;
  std::string order{};  // "NHD" or "HND"
  uint64_t seed = 0;    // for the order of a request's blocks
};

struct Case {
  std::string model{};
  kvxfer::KvModel kv{};
  Instance prefill{};
  Instance decode{};
  uint64_t tokens = 0;

  std::string Name() const;
  // The fields that every result has, and the first cells of its row: model, tensor parallelism.
  Outcome Row() const;
  // A request uses every block of a cache.
  uint32_t BlocksOf(const Instance& instance) const;
  std::vector<uint32_t> IdsOf(const Instance& instance) const;
  // One tensor for each layer: [2, blocks, tokens, heads, size], or with heads before tokens; for a
  // fused cache [blocks, tokens, size].
  absl::StatusOr<KvLayout> LayoutOf(const Instance& instance, uint32_t rank, uint32_t blocks) const;
  // The cache bytes of all ranks that take part; with `alone`, of prefill only rank 0.
  // InvalidArgument: the model's heads cannot be split over the ranks.
  struct Bytes {
    uint64_t prefill = 0;
    uint64_t decode = 0;
  };
  absl::StatusOr<Bytes> CacheBytes(bool alone) const;
};

// InvalidArgument, NotFound: an option is wrong.
absl::StatusOr<std::vector<Case>> CasesOf(const Options& options);

// The heads that one prefill rank sends to one decode rank.
struct Share {
  uint32_t prefill = 0;
  uint32_t decode = 0;
  KvHeads heads{};
};

// All shares for the decode ranks that receive heads from prefill rank 0; its own shares come
// first.
absl::StatusOr<std::vector<Share>> SharesOf(const Case& one);

// The shares of prefill rank 0.
std::vector<Share> OwnShares(const std::vector<Share>& shares);
// The prefill ranks, and the decode ranks, in `shares`: ascending, each once.
std::vector<uint32_t> PrefillRanks(const std::vector<Share>& shares);
std::vector<uint32_t> DecodeRanks(const std::vector<Share>& shares);

inline constexpr const char* kCacheName = "kv";

// The addresses of the tensors of a cache, which follow each other from `base` on.
std::vector<uint64_t> TensorsAt(const KvLayout& layout, uint64_t base);
// The bytes of all tensors.
uint64_t CacheBytes(const KvLayout& layout);

// One rank of an instance: its part of the KV cache, with content that identifies its place, and
// the agent that moves it. Thread-safety: none. Peers write the memory as long as the agent lives.
class Rank {
 public:
  // `live`: the rank takes part in requests. Other ranks only have to exist for the group, and get
  // a single block.
  static absl::StatusOr<Rank> Create(const Case& one, const Instance& instance, uint32_t rank,
                                     bool live, const Options& options);

  Agent& agent() const { return *agent_; }
  const KvLayout& layout() const { return layout_; }
  uint64_t base() const { return memory_.base(); }

  // Writes the content of all tokens of the request into its blocks. Nothing else may use them
  // meanwhile.
  absl::Status Fill() const;
  absl::Status Clear() const;
  // DataLoss names the first layer, token and head whose content differs from what Fill writes on a
  // rank that has these heads.
  absl::Status Check(KvHeads heads) const;

 private:
  Rank(const KvLayout& layout, CacheMemory memory, std::vector<uint32_t> ids, uint64_t tokens)
      : layout_(layout), memory_(std::move(memory)), ids_(std::move(ids)), tokens_(tokens) {}
  // Calls visit(bytes of one head and token of one part, first word of its content) until a call
  // returns false. DataLoss names that place.
  template <typename Visit>
  absl::Status ForEach(KvHeads heads, Touch touch, Visit visit) const;
  template <typename Visit>
  absl::Status ForEachOfLayer(KvHeads heads, uint32_t layer, std::byte* memory, Visit visit) const;

  KvLayout layout_;
  CacheMemory memory_;  // outlives the agent
  std::vector<uint32_t> ids_;
  uint64_t tokens_ = 0;
  std::unique_ptr<Agent> agent_;
};

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_KV_CASE_H_
