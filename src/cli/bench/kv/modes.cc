#include "src/cli/bench/kv/modes.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "src/cli/common/options.h"
#include "src/cli/common/units.h"

namespace kvxfer::cli::kv_bench {
namespace {

constexpr std::array kModes = {
    Mode{.name = "rate",
         .title = "requests beside a plain write of the same runs",
         .alone = true,
         .measure = MeasureRate},
    Mode{.name = "streaming",
         .title = "requests layer by layer, while the next layer is computed",
         .iters = 30,
         .unit = "rounds",
         .computes = true,
         .measure = MeasureStreaming},
    Mode{.name = "migration",
         .title = "requests that go on while they move, beside other requests",
         .iters = 30,
         .unit = "requests of each model",
         .computes = true,
         .fewest_tokens = kMostMeanwhile + 1,
         .measure = MeasureMigration},
    // One model: a thousand requests of each model would take minutes and show the same.
    Mode{.name = "memory",
         .title = "memory retained after requests have ended",
         .iters = 1000,
         .unit = "requests",
         .two_sizes = true,
         .measure = MeasureRetainedMemory},
};

constexpr Duration kDefaultRun = std::chrono::seconds(2);
// All layers of the largest model stay well within kPatience.
constexpr Duration kLongestLayer = std::chrono::milliseconds(100);

absl::Status CheckShape(const BenchOptions& o) {
  for (const absl::Status& status : {CheckKvSide(o.prefill), CheckKvSide(o.decode),
                                     CheckRange("--block-tokens", o.block_tokens, 1, 4096),
                                     CheckRange("--tokens", o.tokens.value_or(1), 1, 1u << 24)}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckLoad(const BenchOptions& o, const Mode& mode) {
  const std::string measure = absl::StrCat("--measure ", mode.name);
  const auto no = [&](const char* option, const char* but) {
    return absl::InvalidArgumentError(absl::StrCat(measure, " takes no ", option, but));
  };
  if (o.tokens.value_or(kDefaultTokens) < mode.fewest_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(measure, " needs --tokens of ", mode.fewest_tokens, " or more"));
  }
  if (mode.iters == 0 && o.iters) return no("--iters", "; --duration sets its length");
  if (mode.iters > 0 && o.has_duration) return no("--duration", "; --iters sets its length");
  if (!mode.computes && o.has_layer_time) return no("--layer-time", "");
  if (o.layer_time > kLongestLayer) {
    return absl::InvalidArgumentError("--layer-time must be at most 100 ms");
  }
  if (o.has_duration && (o.duration <= Duration::zero() || o.duration > kLongestRun)) {
    return absl::InvalidArgumentError("--duration must be above zero and at most an hour");
  }
  return CheckRange("--iters", o.iters.value_or(1), 1, 10'000'000);
}

// Both instances run on this host.
std::string SameHostBackend(const MemorySides& memory) {
  return memory.here.cuda() && memory.there.cuda() ? "cuda_ipc" : "shm";
}

std::string TitleOf(const Options& options) {
  const Mode& mode = *options.mode;
  const std::string load = mode.iters > 0 ? absl::StrCat(options.iters, " ", mode.unit)
                                          : FormatDuration(options.duration, " ");
  return absl::StrCat(mode.title, ", ", options.memory.Words(), ", ", options.backend, ", ",
                      options.tokens, " tokens a request, ", load);
}

KvSide WithBlockTokens(KvSide side, uint64_t block_tokens) {
  side.block_tokens = side.block_tokens.value_or(block_tokens);
  return side;
}

}  // namespace

std::vector<std::string> ModeNames() {
  std::vector<std::string> names;
  names.reserve(kModes.size());
  for (const Mode& mode : kModes) names.emplace_back(mode.name);
  return names;
}

absl::StatusOr<Options> OptionsOf(const BenchOptions& o) {
  if (absl::Status s = CheckShape(o); !s.ok()) return s;
  const auto& mode = *std::ranges::find(kModes, o.measure, &Mode::name);
  if (absl::Status s = CheckLoad(o, mode); !s.ok()) return s;
  const auto memory = ParseMemorySides(o.memory);
  if (!memory.ok()) return memory.status();
  Options options{.mode = &mode,
                  .model = o.model,
                  .prefill = WithBlockTokens(o.prefill, o.block_tokens),
                  .decode = WithBlockTokens(o.decode, o.block_tokens),
                  .tokens = o.tokens.value_or(kDefaultTokens),
                  .backend = o.backend.empty() ? SameHostBackend(*memory) : o.backend,
                  .memory = *memory,
                  .duration = o.has_duration ? o.duration : kDefaultRun,
                  .layer_time = o.layer_time,
                  .iters = static_cast<uint32_t>(o.iters.value_or(mode.iters)),
                  .json = o.json};
  options.title = TitleOf(options);
  return options;
}

}  // namespace kvxfer::cli::kv_bench
