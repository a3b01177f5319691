// One complete configuration of `kvxfer bench`: what each initiator does. It is sent to the
// processes of the initiators.
#ifndef KVXFER_CLI_BENCH_CASE_H_
#define KVXFER_CLI_BENCH_CASE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/memory_choice.h"
#include "src/cli/common/scatter.h"

namespace kvxfer::cli {

struct BenchCase {
  std::vector<std::string> targets{};  // host:port of the services that each initiator uses
  std::string backend{};
  std::string listen{};
  MemorySides memory{};
  bool write = true;
  bool latency = false;        // measures round trips of `block_bytes` in place of transfers
  bool bidirectional = false;  // the targets move as much back at the same time
  uint64_t threads = 1;        // streams to each target
  uint64_t pieces = 1;         // regions of a cache
  uint64_t block_bytes = 0;
  uint64_t request_blocks = 0;  // ids in one request; for a trace, in the request that is verified
  uint64_t cache_blocks = 0;    // for a trace, the blocks of both caches; 0: as many as are moved
  uint64_t seed = 1;
  Duration timeout = std::chrono::seconds(60);

  uint64_t streams() const { return targets.size() * threads; }
  // The blocks of one target that one direction uses.
  uint64_t target_share() const { return threads * request_blocks; }
  // The caches of an initiator and of a target. In a bidirectional run, each direction has its own
  // half, so that no block is read and written at once.
  KvCacheShape initiator_shape() const {
    return Shape(targets.size() * target_share(), memory.here);
  }
  KvCacheShape target_shape() const { return Shape(target_share(), memory.there); }

 private:
  KvCacheShape Shape(uint64_t share, const MemoryChoice& of_side) const;
};

// Checks for overflows only; the code that uses a field checks the rest.
absl::Status CheckCase(const BenchCase& c);
Json ToJson(const BenchCase& bench);
absl::StatusOr<BenchCase> BenchCaseFromJson(const Json& json);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_CASE_H_
