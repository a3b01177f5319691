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
         .title = "requests layer by layer, while the next one is computed",
         .iters = 30,
         .unit = "rounds",
         .computes = true,
         .measure = MeasureStreaming},
    Mode{.name = "migration",
         .title = "requests that go on while they move, beside others",
         .iters = 30,
         .unit = "of each",
         .computes = true,
         .fewest_tokens = kMostMeanwhile + 1,
         .measure = MeasureMigration},
    // A thousand transfers of each model would take minutes, and show the same.
    Mode{.name = "kept",
         .title = "memory kept of requests that are over",
         .iters = 1000,
         .unit = "requests",
         .two_sizes = true,
         .measure = MeasureKept},
};

constexpr Duration kDefaultRun = std::chrono::seconds(2);
constexpr uint64_t kMaxRanks = 256;
// Of all layers it is well within kPatience.
constexpr Duration kLongestLayer = std::chrono::milliseconds(100);

std::vector<std::string> ModeNames() {
  std::vector<std::string> names;
  names.reserve(kModes.size());
  for (const Mode& mode : kModes) names.emplace_back(mode.name);
  return names;
}

absl::Status CheckShape(const BenchOptions& o) {
  for (const absl::Status& status : {CheckRange("--prefill-tp", *o.prefill_tp, 1, kMaxRanks),
                                     CheckRange("--decode-tp", *o.decode_tp, 1, kMaxRanks),
                                     CheckRange("--prefill-block", o.prefill_block, 1, 4096),
                                     CheckRange("--decode-block", o.decode_block, 1, 4096),
                                     CheckRange("--tokens", o.tokens.value_or(1), 1, 1u << 24),
                                     CheckOneOf("--layout-src", o.layout_src, {"NHD", "HND"}),
                                     CheckOneOf("--layout-dst", o.layout_dst, {"NHD", "HND"}),
                                     CheckOneOf("--measure", o.measure, ModeNames())}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status CheckLoad(const BenchOptions& o, const Mode& mode) {
  const std::string measure = absl::StrCat("--measure ", mode.name);
  const auto no = [&](const char* option, const char* but) {
    return absl::InvalidArgumentError(absl::StrCat(measure, " has no ", option, but));
  };
  if (o.tokens.value_or(kDefaultTokens) < mode.fewest_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(measure, " needs --tokens of ", mode.fewest_tokens, " or more"));
  }
  if (mode.iters == 0 && o.iters) return no("--iters", "; it lasts for --duration");
  if (mode.iters > 0 && o.has_duration) return no("--duration", "; it is counted by --iters");
  if (!mode.computes && o.has_layer_time) return no("--layer-time", "");
  if (o.layer_time > kLongestLayer) {
    return absl::InvalidArgumentError("--layer-time must be 100 ms at most");
  }
  if (o.has_duration && (o.duration <= Duration::zero() || o.duration > kLongestRun)) {
    return absl::InvalidArgumentError("--duration must be above zero and at most an hour");
  }
  return CheckRange("--iters", o.iters.value_or(1), 1, 10'000'000);
}

// Both instances are of this host.
std::string SameHostBackend(const MemorySides& memory) {
  return memory.here.cuda() && memory.there.cuda() ? "cuda_ipc" : "shm";
}

std::string TitleOf(const Options& options) {
  const Mode& mode = *options.mode;
  const std::string load = mode.iters > 0 ? absl::StrCat(options.iters, " ", mode.unit)
                                          : FormatFixed(Seconds(options.duration), 1) + " s";
  return absl::StrCat(mode.title, ", ", options.memory.Words(), " memory, ", options.backend, ", ",
                      options.tokens, " tokens a request, ", load);
}

}  // namespace

absl::StatusOr<Options> OptionsOf(const BenchOptions& o) {
  if (absl::Status s = CheckShape(o); !s.ok()) return s;
  const auto& mode = *std::ranges::find(kModes, o.measure, &Mode::name);
  if (absl::Status s = CheckLoad(o, mode); !s.ok()) return s;
  const auto memory = ParseMemorySides(o.memory);
  if (!memory.ok()) return memory.status();
  Options options{.mode = &mode,
                  .model = o.model,
                  .prefill_tp = static_cast<uint32_t>(*o.prefill_tp),
                  .decode_tp = static_cast<uint32_t>(*o.decode_tp),
                  .prefill_block = static_cast<uint32_t>(o.prefill_block),
                  .decode_block = static_cast<uint32_t>(o.decode_block),
                  .layout_src = o.layout_src,
                  .layout_dst = o.layout_dst,
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
