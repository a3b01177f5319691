// `kvxfer bench --prefill-tp N --decode-tp N`: KV caches of real models between two instances. The
// values of --measure, each a mode, and the options of a run. docs/cli.md and docs/performance.md
// describe the figures.
//
// Thread-safety: none.

#ifndef KVXFER_CLI_BENCH_KV_MODES_H_
#define KVXFER_CLI_BENCH_KV_MODES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/cli/bench/plan.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/options.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli::kv_bench {

// The names of all modes.
std::vector<std::string> ModeNames();

// The most tokens that a request gets while it moves.
inline constexpr uint64_t kMostMeanwhile = 128;

struct Case;
struct Options;
class Source;

// The result of a case.
using Outcome = ReportRow;

struct Mode {
  const char* name = "";   // value of --measure, also in JSON
  const char* title = "";  // of the table
  uint32_t iters = 0;      // default of --iters; 0: the mode runs for --duration
  const char* unit = "";   // what iters counts
  bool computes = false;   // simulates the computation of a layer or token for --layer-time
  bool alone = false;      // only rank 0 of prefill sends
  uint64_t fewest_tokens = 1;
  bool two_sizes = false;    // measures one model with a quarter of the tokens and with all of them
  const char* columns = "";  // of the table
  absl::StatusOr<Outcome> (*measure)(const Source& source, const Options& options) = nullptr;
};

// Requests between two instances, in turn with a plain Write of the same runs.
Mode RateMode();
// Requests layer by layer, while the next layer is computed.
Mode StreamingMode();
// A request that goes on while it moves, while other requests move too.
Mode MigrationMode();
// Memory that both processes retain after requests have ended.
Mode MemoryMode();

struct Options {
  const Mode* mode = nullptr;
  std::string model{};  // empty: every known model
  KvSide prefill{};     // block_tokens is set
  KvSide decode{};
  uint64_t tokens = 0;
  std::string backend{};
  MemorySides memory{};
  Duration duration{};    // of a case, if the mode has no iters
  Duration layer_time{};  // to compute a layer or a token
  uint32_t iters = 0;
  bool json = false;
  std::string title{};  // of the table

  // Loopback only joins agents of one process.
  bool one_process() const { return backend.ends_with("loopback"); }
};

// InvalidArgument names the option that makes no sense.
absl::StatusOr<Options> OptionsOf(const BenchOptions& o);

// Runs everything and prints the results. This process must not have threads or agents yet.
absl::Status Run(const BenchOptions& given);

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_MODES_H_
