// One rank of an instance: its part of the KV cache, with content that identifies its place, and
// the agent that moves it.
//
// Thread-safety: none. Peers write the memory as long as the agent lives.
#ifndef KVXFER_CLI_BENCH_KV_RANK_H_
#define KVXFER_CLI_BENCH_KV_RANK_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/bench/kv/kv_case.h"
#include "src/cli/common/cache_memory.h"

namespace kvxfer::cli::kv_bench {

inline constexpr const char* kCacheName = "kv";

// The addresses of the tensors of a cache, which follow each other from `base` on.
std::vector<uint64_t> TensorsAt(const KvLayout& layout, uint64_t base);
// The bytes of all tensors.
uint64_t CacheBytes(const KvLayout& layout);

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

#endif  // KVXFER_CLI_BENCH_KV_RANK_H_
