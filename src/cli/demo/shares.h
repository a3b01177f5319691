// Which rank of `kvxfer demo` gets what from which, as the library has it.
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
  // Of one request: pieces that are contiguous on both sides, and what most of them have.
  uint64_t runs = 0;
  uint64_t run_bytes = 0;
};

// By decode rank, and then by head.
absl::StatusOr<std::vector<DemoShare>> SharesOf(std::span<const DemoShard> prefill,
                                                std::span<const DemoShard> decode);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_DEMO_SHARES_H_
