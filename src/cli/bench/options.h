// The options of `kvxfer bench` on the command line.
#ifndef KVXFER_CLI_BENCH_OPTIONS_H_
#define KVXFER_CLI_BENCH_OPTIONS_H_

#include "src/cli/bench/plan.h"

namespace CLI {
class App;
}

namespace kvxfer::cli {

// Declares the options in groups. Where perftest or nixlbench have another name for the same thing,
// that name works too. Parsing refuses pairs that contradict each other. `options` must live as
// long as `command`.
void DeclareBenchOptions(CLI::App* command, BenchOptions& options);

// After parsing: stores in `options` which options were given where their values do not show it.
// Throws CLI::ValidationError if an option of one kind of run was given for another kind.
void NoteGivenOptions(const CLI::App* command, BenchOptions& options);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_OPTIONS_H_
