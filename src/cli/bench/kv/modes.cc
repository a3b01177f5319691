#include "src/cli/bench/kv/modes.h"

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "src/cli/bench/kv/kv_case.h"
#include "src/cli/bench/kv/source.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/table.h"
#include "src/cli/common/units.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli::kv_bench {
namespace {

const std::vector<Mode>& Modes() {
  static const auto* const kModes =
      new std::vector{RateMode(), StreamingMode(), MigrationMode(), MemoryMode()};
  return *kModes;
}

constexpr Duration kDefaultRun = std::chrono::seconds(2);
// All layers of the largest model stay well within kPatience.
constexpr Duration kLongestLayer = std::chrono::milliseconds(100);

absl::Status CheckShape(const BenchOptions& o) {
  return FirstError({CheckKvSide(o.prefill), CheckKvSide(o.decode),
                     CheckRange("--block-tokens", o.block_tokens, 1, 4096),
                     CheckRange("--tokens", o.tokens.value_or(1), 1, 1u << 24)});
}

absl::Status CheckLoad(const BenchOptions& o, const Mode& mode) {
  const std::string measure = absl::StrCat("--measure ", mode.name);
  const auto no = [&](const char* option, const char* but) {
    return Invalid(measure, " takes no ", option, but);
  };
  if (o.tokens.value_or(kDefaultTokens) < mode.fewest_tokens) {
    return Invalid(measure, " needs --tokens of ", mode.fewest_tokens, " or more");
  }
  if (mode.iters == 0 && o.iters) return no("--iters", "; --duration sets its length");
  if (mode.iters > 0 && o.has_duration) return no("--duration", "; --iters sets its length");
  if (!mode.computes && o.has_layer_time) return no("--layer-time", "");
  if (o.layer_time > kLongestLayer) {
    return Invalid("--layer-time must be at most 100 ms");
  }
  if (absl::Status s = CheckRunTimes(o); !s.ok()) return s;
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

// Checks before the fork that the heads can be split and that host memory suffices. It does not ask
// CUDA, which does not survive a fork: allocating reports what a GPU lacks.
absl::Status CheckCases(const std::vector<Case>& cases, const Options& options) {
  for (const Case& one : cases) {
    const auto bytes = one.CacheBytes(options.mode->alone);
    if (!bytes.ok()) return Annotate(bytes.status(), one.Name());
    std::vector<MemoryNeed> needs = {{options.memory.here, bytes->prefill},
                                     {options.memory.there, bytes->decode}};
    std::erase_if(needs, [](const MemoryNeed& need) { return need.choice.cuda(); });
    absl::Status fits = CheckFits(needs, "fewer --tokens");
    if (!fits.ok()) return Annotate(fits, one.Name());
  }
  return absl::OkStatus();
}

// Measures one case after the other, each with its own agents. Prints the table as it goes, unless
// JSON was asked for; returns a list of the JSON of all outcomes.
absl::StatusOr<Json> EachCase(const std::vector<Case>& cases, const Options& options,
                              Channel& channel) {
  const Table table(options.mode->columns);
  const auto print = [&](const std::string& line) {
    if (options.json) return;
    std::puts(line.c_str());
    std::fflush(stdout);
  };
  Json rows = Json::array();
  for (size_t i = 0; i < cases.size(); ++i) {
    auto source = Source::Open(cases[i], i, channel, options);
    if (!source.ok()) return Annotate(source.status(), cases[i].Name());
    if (i == 0) print(options.title + "\n" + table.Header());
    absl::StatusOr<Outcome> outcome = options.mode->measure(*source, options);
    absl::Status status = outcome.status();
    if (status.ok()) status = source->Close();
    if (!status.ok()) return Annotate(status, cases[i].Name());
    print(table.Row(outcome->cells));
    rows.push_back(std::move(outcome->json));
  }
  return rows;
}

}  // namespace

std::vector<std::string> ModeNames() { return NamesOf(Modes()); }

absl::StatusOr<Options> OptionsOf(const BenchOptions& o) {
  if (absl::Status s = CheckShape(o); !s.ok()) return s;
  const auto& mode = *std::ranges::find(Modes(), o.measure, &Mode::name);
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

absl::Status Run(const BenchOptions& given) {
  const auto options = OptionsOf(given);
  if (!options.ok()) return options.status();
  const auto cases = CasesOf(*options);
  if (!cases.ok()) return cases.status();
  if (absl::Status s = CheckCases(*cases, *options); !s.ok()) return s;
  RaiseDescriptorLimit();
  auto target = TargetProcess::Start(*cases, *options);
  if (!target.ok()) return target.status();
  const auto rows = EachCase(*cases, *options, (*target)->channel());
  absl::Status status = rows.ok() ? (*target)->End() : rows.status();
  if (!status.ok()) return (*target)->Explain(status);
  if (!options->json) {
    std::puts("every byte of the first requests of each line verified");
    return status;
  }
  const Json document = {
      {"mode", options->mode->name}, {"backend", options->backend}, {"results", *rows}};
  std::puts(DumpJson(document, 2).c_str());
  return status;
}

}  // namespace kvxfer::cli::kv_bench
