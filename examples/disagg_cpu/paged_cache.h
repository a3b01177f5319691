// The paged KV cache of one worker: the heads of its tensor-parallel rank, in blocks of some
// tokens, in the layout that its instance has chosen, as the caches of inference servers are.
// Registering it with kvxfer says that layout in the words of torch: axes, shape, strides.
//
// Thread-safety: none.

#ifndef KVXFER_EXAMPLES_DISAGG_CPU_PAGED_CACHE_H_
#define KVXFER_EXAMPLES_DISAGG_CPU_PAGED_CACHE_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "examples/disagg_cpu/model.h"
#include "kvxfer/agent.h"

namespace disagg {

// Peers know the cache of every worker by this name.
inline constexpr char kCacheName[] = "kv";

struct CacheSpec {
  std::string axes{};  // of the tensor of one layer, outermost first, as in kvxfer::KvTensor
  uint32_t blocks = 0;
  uint32_t block_tokens = 0;
};

class PagedCache {
 public:
  // `fingerprint`: that of the model's weights.
  static absl::StatusOr<PagedCache> Create(const CacheSpec& spec, uint32_t tp_rank,
                                           uint32_t tp_size, uint64_t fingerprint);

  // The cache must outlive the agent, or where it is deregistered that.
  absl::Status Register(kvxfer::Agent& agent) const;

  kvxfer::KvHeads heads() const { return heads_; }
  uint32_t block_tokens() const { return spec_.block_tokens; }

  // Where a token of a block has its K, and its V; `head` of the model.
  float* KeyAt(uint32_t layer, uint32_t head, uint32_t block, uint32_t token) const;
  float* ValueAt(uint32_t layer, uint32_t head, uint32_t block, uint32_t token) const;

  // Turns the sign of all that is in a block.
  void Spoil(uint32_t block) const;

 private:
  // In floats.
  struct Strides {
    uint64_t layer = 0;
    uint64_t block = 0;
    uint64_t token = 0;
    uint64_t head = 0;
    uint64_t value = 0;  // from K to V
  };

  CacheSpec spec_;
  kvxfer::KvModel model_;
  kvxfer::KvShard shard_;
  kvxfer::KvHeads heads_;
  kvxfer::KvTensor tensor_;  // of a layer
  Strides strides_;
  kvxfer::HostBuffer memory_;
};

// One request in it: `blocks` is its block table.
class PagedRequest final : public KvStore {
 public:
  PagedRequest(const PagedCache& cache, std::span<const uint32_t> blocks)
      : cache_(cache), blocks_(blocks) {}

  uint32_t capacity() const {
    return static_cast<uint32_t>(blocks_.size()) * cache_.block_tokens();
  }

  float* Key(uint32_t layer, uint32_t head, uint32_t position) override {
    return cache_.KeyAt(layer, head, blocks_[position / cache_.block_tokens()],
                        position % cache_.block_tokens());
  }
  float* Value(uint32_t layer, uint32_t head, uint32_t position) override {
    return cache_.ValueAt(layer, head, blocks_[position / cache_.block_tokens()],
                          position % cache_.block_tokens());
  }

 private:
  const PagedCache& cache_;
  const std::span<const uint32_t> blocks_;
};

}  // namespace disagg

#endif  // KVXFER_EXAMPLES_DISAGG_CPU_PAGED_CACHE_H_
