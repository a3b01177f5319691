// The options of `kvxfer bench` on the command line.
#ifndef KVXFER_CLI_BENCH_OPTIONS_H_
#define KVXFER_CLI_BENCH_OPTIONS_H_

#include "src/cli/bench/plan.h"

namespace CLI {
class App;
}

namespace kvxfer::cli {

// Declares them in groups; names that perftest and nixlbench have for the same thing are theirs.
// Pairs that contradict each other are refused while parsing. `options` lives as long as `command`.
void DeclareBenchOptions(CLI::App* command, BenchOptions& options);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_OPTIONS_H_
