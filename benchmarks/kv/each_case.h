// What the modes have in common: a case after the other, each with agents of its own.
//
// Thread-safety: none.
#ifndef KVXFER_BENCHMARKS_KV_EACH_CASE_H_
#define KVXFER_BENCHMARKS_KV_EACH_CASE_H_

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "benchmarks/kv/kv_case.h"
#include "benchmarks/kv/source.h"
#include "src/cli/table.h"
#include "src/core/strings.h"

namespace kvxfer::kv_bench {

// measure(source) returns the row of a table, or an error. `alone`: as Source::Open.
template <typename Measure>
absl::Status EachCase(const std::vector<Case>& cases, bool alone, const Options& options,
                      cli::Channel& channel, const cli::Table& table, Measure measure) {
  std::printf("%s\n", table.Header().c_str());
  for (size_t i = 0; i < cases.size(); ++i) {
    auto source = Source::Open(cases[i], i, alone, channel, options);
    if (!source.ok()) return Annotate(source.status(), cases[i].Name());
    const absl::StatusOr<std::vector<std::string>> cells = measure(*source);
    absl::Status status = cells.status();
    if (status.ok()) status = source->Close();
    if (!status.ok()) return Annotate(status, cases[i].Name());
    std::printf("%s\n", table.Row(*cells).c_str());
    std::fflush(stdout);
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::kv_bench

#endif  // KVXFER_BENCHMARKS_KV_EACH_CASE_H_
