// `kvxfer bench --prefill-tp N --decode-tp N`: KV caches of real models between two instances.
// docs/cli.md and docs/performance.md describe the figures.
#ifndef KVXFER_CLI_BENCH_KV_RUN_H_
#define KVXFER_CLI_BENCH_KV_RUN_H_

#include "absl/status/status.h"
#include "src/cli/bench/plan.h"

namespace kvxfer::cli::kv_bench {

// Runs everything and prints the results. This process must not have threads or agents yet.
absl::Status Run(const BenchOptions& given);

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_RUN_H_
