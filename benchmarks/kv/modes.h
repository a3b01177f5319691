// What the program measures, a mode each: prints a table as it goes, and returns its rows.
//
// Thread-safety: none.
#ifndef KVXFER_BENCHMARKS_KV_MODES_H_
#define KVXFER_BENCHMARKS_KV_MODES_H_

#include <vector>

#include "absl/status/statusor.h"
#include "benchmarks/kv/kv_case.h"
#include "src/cli/channel.h"
#include "src/cli/json_util.h"

namespace kvxfer::kv_bench {

// A request between instances of unlike tensor parallelism beside a plain Write of the same runs.
absl::StatusOr<cli::Json> MeasureThroughput(const std::vector<Case>& cases, const Options& options,
                                            cli::Channel& channel);
// Layer by layer, while the next one is computed.
absl::StatusOr<cli::Json> MeasureStreaming(const std::vector<Case>& cases, const Options& options,
                                           cli::Channel& channel);
// A request that goes on while it moves, alone and beside others.
absl::StatusOr<cli::Json> MeasureMigration(const std::vector<Case>& cases, const Options& options,
                                           cli::Channel& channel);
// What of a thousand requests is still in memory.
absl::StatusOr<cli::Json> MeasureMemory(const std::vector<Case>& cases, const Options& options,
                                        cli::Channel& channel);

}  // namespace kvxfer::kv_bench

#endif  // KVXFER_BENCHMARKS_KV_MODES_H_
