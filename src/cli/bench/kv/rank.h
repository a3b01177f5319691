// One rank of an instance: its part of the KV cache, with content that says where it belongs, and
// the agent that moves it.
//
// Thread-safety: none; peers write the memory between the agent's making and its end.
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

// Where the tensors of a cache begin whose memory begins at `base`: one behind the other.
std::vector<uint64_t> TensorsAt(const KvLayout& layout, uint64_t base);
// Of all of them.
uint64_t CacheBytes(const KvLayout& layout);

class Rank {
 public:
  // `live`: it takes part in requests. Of others a group needs that they exist: they have a block.
  static absl::StatusOr<Rank> Create(const Case& one, const Instance& instance, uint32_t rank,
                                     bool live, const Options& options);

  Agent& agent() const { return *agent_; }
  const KvLayout& layout() const { return layout_; }
  uint64_t base() const { return memory_.base(); }

  // The content of all tokens of the request, in its blocks; while nobody else is at them.
  absl::Status Fill() const;
  absl::Status Clear() const;
  // DataLoss names the first layer, token and head with other content than Fill of a rank that has
  // them gives.
  absl::Status Check(KvHeads heads) const;

 private:
  Rank(const KvLayout& layout, CacheMemory memory, std::vector<uint32_t> ids, uint64_t tokens)
      : layout_(layout), memory_(std::move(memory)), ids_(std::move(ids)), tokens_(tokens) {}
  // visit(bytes of one head and token of one part, what is first of its content) until it returns
  // false; DataLoss names where that was.
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
