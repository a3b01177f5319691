// Traces of requests in the format that is published for KV caches: one JSON object on each line,
//   {"timestamp": ms, "input_length": tokens, "output_length": tokens, "hash_ids": [...]}
// Each hash id stands for 512 tokens of the prompt and all tokens before them. So requests with the
// same leading ids have the same leading KV blocks.
#ifndef KVXFER_CLI_BENCH_KV_TRACE_H_
#define KVXFER_CLI_BENCH_KV_TRACE_H_

#include <condition_variable>
#include <cstdint>
#include <list>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/loop.h"
#include "src/cli/common/kv_cache.h"

namespace kvxfer::cli {

inline constexpr uint64_t kTokensPerHash = 512;

struct TraceRequest {
  int64_t arrival_ns = 0;  // since the first of the trace
  uint64_t tokens = 0;
  std::vector<uint64_t> hash_ids{};

  uint64_t blocks(uint64_t block_tokens) const {
    return (tokens + block_tokens - 1) / block_tokens;
  }
};

// At most `limit` requests; 0: all. NotFound: there is no such file. InvalidArgument names the
// wrong line. Messages call the text `name`.
absl::StatusOr<std::vector<TraceRequest>> LoadKvTrace(const std::string& path, uint64_t limit);
absl::StatusOr<std::vector<TraceRequest>> ParseKvTrace(std::string_view name, std::string_view text,
                                                       uint64_t limit);

// Records which blocks of a decode worker's cache hold which hash ids. When blocks are needed, it
// evicts ids that are not in use, least recently used first.
class PrefixCache {
 public:
  PrefixCache(uint32_t blocks, uint64_t block_tokens, uint64_t seed);

  // The blocks of one request while it moves.
  struct Placement {
    std::vector<uint32_t> blocks{};   // to be written, in the order of the prompt
    uint64_t hit_tokens = 0;          // leading tokens that are in the cache, or on their way
    std::vector<uint64_t> pinned{};   // hash ids
    std::vector<uint32_t> unnamed{};  // those of `blocks` that are freed afterwards
  };
  // Nothing while requests that move leave too few blocks.
  std::optional<Placement> Place(const TraceRequest& request);
  void Release(const Placement& placement);

 private:
  struct Entry {
    std::vector<uint32_t> blocks;
    uint32_t pins = 0;
    std::list<uint64_t>::iterator idle;  // in idle_, where pins is 0
  };
  void Pin(Entry& entry);
  bool EvictFor(size_t blocks);

  const uint64_t block_tokens_;
  BlockAllocator free_;
  std::unordered_map<uint64_t, Entry> entries_;
  std::list<uint64_t> idle_;  // least recently used first
  size_t idle_blocks_ = 0;
};

struct TraceSpec {
  std::vector<TraceRequest> requests{};
  uint64_t block_tokens = 16;
  uint32_t cache_blocks = 0;  // of each side
  double speedup = 1;         // divides the times between arrivals
  uint64_t seed = 1;
};

// The requests of a trace when they arrive, without the blocks that the target's cache has.
class TraceSource : public RequestSource {
 public:
  // Begins at loop.start_ns and, if loop.duration is not zero, ends after it. The spans and the
  // spec must outlive this object.
  TraceSource(const TraceSpec& spec, const LoopSpec& loop, std::span<const PagedRegion> local,
              std::span<const PagedRegion> remote, size_t streams);
  std::optional<Request> Next(size_t stream) override;
  void Done(size_t stream) override;

  // For use after the run.
  uint64_t tokens() const { return tokens_; }
  uint64_t hit_tokens() const { return hit_tokens_; }

 private:
  struct Held {
    PrefixCache::Placement placement;
    std::vector<uint32_t> local;
  };

  const TraceSpec& spec_;
  const LoopSpec loop_;
  const std::span<const PagedRegion> local_;
  const std::span<const PagedRegion> remote_;
  std::mutex
      turn_;  // held to take the next request, so that requests keep their order; before mutex_
  size_t next_ = 0;
  std::mutex mutex_;  // guards all members below
  std::condition_variable released_;
  PrefixCache target_;
  BlockAllocator source_;
  std::vector<Held> held_;  // by stream
  uint64_t tokens_ = 0;
  uint64_t hit_tokens_ = 0;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_KV_TRACE_H_
