// Runs one case after the other, each with its own agents; all modes use this.
//
// Thread-safety: none.
#ifndef KVXFER_CLI_BENCH_KV_EACH_CASE_H_
#define KVXFER_CLI_BENCH_KV_EACH_CASE_H_

#include <cstdio>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/kv/kv_case.h"
#include "src/cli/bench/kv/source.h"
#include "src/cli/common/table.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli::kv_bench {

// The result of a case.
struct Outcome {
  std::vector<std::string> cells{};  // of its row in the table
  Json json{};
};

// measure(source) returns an Outcome or an error. Prints the table unless JSON was asked for;
// returns a list of the JSON of all outcomes.
template <typename Measure>
absl::StatusOr<Json> EachCase(const std::vector<Case>& cases, const Options& options,
                              Channel& channel, const Table& table, Measure measure) {
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
    absl::StatusOr<Outcome> outcome = measure(*source);
    absl::Status status = outcome.status();
    if (status.ok()) status = source->Close();
    if (!status.ok()) return Annotate(status, cases[i].Name());
    print(table.Row(outcome->cells));
    rows.push_back(std::move(outcome->json));
  }
  return rows;
}

}  // namespace kvxfer::cli::kv_bench

#endif  // KVXFER_CLI_BENCH_KV_EACH_CASE_H_
