// What the options of `kvxfer bench` ask for, checked: configurations, load, processes.
#ifndef KVXFER_CLI_BENCH_PLAN_H_
#define KVXFER_CLI_BENCH_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/drive.h"
#include "src/cli/bench/kv_trace.h"
#include "src/cli/bench/loop.h"
#include "src/cli/bench/workers.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/options.h"

namespace kvxfer::cli {

inline constexpr uint64_t kDefaultTokens = 2048;

// The options as given. An empty optional was not given.
struct BenchOptions {
  std::vector<std::string> servers{};  // empty: worker processes are the targets
  std::string backend{};
  std::string listen{};
  std::string op = "write";
  std::string memory = "mapped";
  std::vector<uint64_t> block_sizes{};  // empty: a range that depends on the workload
  uint64_t start_block_size = 0;        // 0: not given
  uint64_t max_block_size = 0;
  uint64_t total = uint64_t{256} << 20;

  std::string model{};
  std::optional<uint64_t> tokens{};
  uint64_t tp = 1;
  uint64_t block_tokens = 16;
  std::string trace{};
  uint64_t cache_bytes = uint64_t{1} << 30;
  double speedup = 1;

  bool latency = false;
  std::string answer = "write";  // of a round trip; or "message"
  bool bidirectional = false;
  std::optional<uint64_t> peers{};
  std::string scheme = "manytoone";
  std::optional<uint64_t> threads{};

  std::optional<uint64_t> iters{};
  std::optional<uint64_t> requests{};
  Duration duration{};
  bool has_duration = false;
  std::optional<uint64_t> warmup{};
  std::string rate{};
  std::string arrivals = "constant";

  // Two instances: src/cli/bench/kv measures KV caches between their ranks.
  bool instances = false;
  KvSide prefill{.name = "prefill"};
  KvSide decode{.name = "decode"};
  std::string measure = "rate";
  Duration layer_time = std::chrono::milliseconds(1);
  bool has_layer_time = false;

  uint64_t seed = 1;
  Duration timeout = std::chrono::seconds(60);
  std::optional<uint64_t> timeline{};
  bool json = false;
  bool csv = false;
};

// Declares the options in groups. Where perftest or nixlbench have another name for the same thing,
// that name works too. Parsing refuses pairs that contradict each other. `options` must live as
// long as `command`.
void DeclareBenchOptions(CLI::App* command, BenchOptions& options);
// After parsing: stores in `options` which options were given where their values do not show it.
// Throws CLI::ValidationError if an option of one kind of run was given for another kind.
void NoteGivenOptions(const CLI::App* command, BenchOptions& options);

// Whether --duration and --timeout are above zero and at most an hour.
absl::Status CheckRunTimes(const BenchOptions& options);

// "2000" is requests a second; "50%" is a share of what a closed loop reaches.
struct Rate {
  double per_second = 0;
  double percent = 0;
};
absl::StatusOr<Rate> ParseRate(std::string_view text);

enum class Workload { kRaw, kLatency, kKv, kTrace };
const char* ToString(Workload workload);

struct BenchPlan {
  Workload workload = Workload::kRaw;
  BenchWorkersSpec workers{};
  std::vector<BenchCase> cases{};  // without targets
  LoopSpec loop{};                 // of all initiators; the rate is in `rate`
  std::optional<Rate> rate{};
  uint64_t warmup = 0;  // requests of all streams, before
  std::string model{};  // of kKv and kTrace
  uint64_t tokens = 0;  // of kKv: of a request
  uint64_t tp = 1;
  std::optional<TraceSpec> trace{};

  uint64_t peers() const { return static_cast<uint64_t>(workers.initiators) * workers.targets; }
  // What all initiators take, and all targets; those of servers are not of this host.
  std::vector<MemoryNeed> needs(const BenchCase& bench) const;
};

// For a run without two instances. InvalidArgument or NotFound names the option that makes no sense
// and says what would.
absl::StatusOr<BenchPlan> MakePlan(const BenchOptions& options);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_PLAN_H_
