// `kvxfer bench --prefill-tp --decode-tp`: KV caches between instances of unlike tensor
// parallelism, of real models. docs/performance.md says what the figures are.
#ifndef KVXFER_CLI_BENCH_KV_RUN_H_
#define KVXFER_CLI_BENCH_KV_RUN_H_

#include "absl/status/status.h"
#include "src/cli/bench/plan.h"

namespace kvxfer::cli::kv_bench {

// The whole run, with what it prints. This process must have neither threads nor agents yet.
absl::Status Run(const BenchOptions& given);

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_RUN_H_
