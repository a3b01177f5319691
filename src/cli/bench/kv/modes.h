// What is measured, a mode each, and the options of a run.
//
// Thread-safety: none.
#ifndef KVXFER_CLI_BENCH_KV_MODES_H_
#define KVXFER_CLI_BENCH_KV_MODES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/plan.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/memory_choice.h"

namespace kvxfer::cli::kv_bench {

struct Case;
struct Options;

// Tokens that come while a request moves, at most.
inline constexpr uint64_t kMostMeanwhile = 128;

// One row of the table in modes.cc is all that makes a mode known.
struct Mode {
  const char* name = "";   // of --measure, and in JSON
  const char* title = "";  // of the table
  uint32_t iters = 0;      // without --iters; 0: it goes on for --duration
  const char* unit = "";   // of iters
  bool computes = false;   // a layer, or a token, for --layer-time
  bool alone = false;      // only rank 0 of prefill gives
  uint64_t fewest_tokens = 1;
  bool two_sizes = false;  // of one model: a quarter of the tokens, and all of them
  // Prints rows of a table as it goes, unless it is JSON that is asked for, and returns them.
  absl::StatusOr<Json> (*measure)(const std::vector<Case>& cases, const Options& options,
                                  Channel& channel) = nullptr;
};

struct Options {
  const Mode* mode = nullptr;
  std::string model{};  // empty: all that are known
  uint32_t prefill_tp = 1;
  uint32_t decode_tp = 1;
  uint32_t prefill_block = 16;  // tokens
  uint32_t decode_block = 16;
  std::string layout_src{};
  std::string layout_dst{};
  uint64_t tokens = 0;
  std::string backend{};
  MemorySides memory{};
  Duration duration{};    // of a case, where the mode has no iters
  Duration layer_time{};  // of computing a layer or a token
  uint32_t iters = 0;
  bool json = false;
  std::string title{};  // of the table

  // Agents of two processes do not see each other there.
  bool one_process() const { return backend.ends_with("loopback"); }
};

// InvalidArgument names the option that makes no sense.
absl::StatusOr<Options> OptionsOf(const BenchOptions& o);

// A request between instances of unlike tensor parallelism beside a plain Write of the same runs.
absl::StatusOr<Json> MeasureRate(const std::vector<Case>& cases, const Options& options,
                                 Channel& channel);
// Layer by layer, while the next one is computed.
absl::StatusOr<Json> MeasureStreaming(const std::vector<Case>& cases, const Options& options,
                                      Channel& channel);
// A request that goes on while it moves, beside others.
absl::StatusOr<Json> MeasureMigration(const std::vector<Case>& cases, const Options& options,
                                      Channel& channel);
// What of a thousand requests is still in memory.
absl::StatusOr<Json> MeasureKept(const std::vector<Case>& cases, const Options& options,
                                 Channel& channel);

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_MODES_H_
