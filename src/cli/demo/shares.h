// Which rank of `kvxfer demo` receives which heads from which rank, as the library computes it.
#ifndef KVXFER_CLI_DEMO_SHARES_H_
#define KVXFER_CLI_DEMO_SHARES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/kv_layout.h"
#include "src/cli/demo/shard.h"

namespace kvxfer::cli {

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

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_SHARES_H_
