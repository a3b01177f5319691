#include "src/cli/bench/kv/run.h"

#include <cstdio>
#include <memory>
#include <vector>

#include "src/cli/bench/kv/kv_case.h"
#include "src/cli/bench/kv/modes.h"
#include "src/cli/bench/kv/target.h"
#include "src/cli/common/cache_memory.h"
#include "src/cli/common/process.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli::kv_bench {
namespace {

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

}  // namespace

absl::Status Run(const BenchOptions& given) {
  const auto options = OptionsOf(given);
  if (!options.ok()) return options.status();
  const auto cases = CasesOf(*options);
  if (!cases.ok()) return cases.status();
  if (absl::Status s = CheckCases(*cases, *options); !s.ok()) return s;
  RaiseDescriptorLimit();
  auto target = TargetProcess::Start(*cases, *options);
  if (!target.ok()) return target.status();
  const auto rows = options->mode->measure(*cases, *options, (*target)->channel());
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
