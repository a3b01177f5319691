// The command line of `kvxfer`: what may be typed, and what is said of what may not.
#ifndef KVXFER_CLI_COMMON_COMMAND_LINE_H_
#define KVXFER_CLI_COMMON_COMMAND_LINE_H_

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "src/cli/commands.h"

namespace kvxfer::cli {

// Declares every subcommand, with the default of each option in its help.
//
// Thread-safety: one thread. Parses once.
class CommandLine {
 public:
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // What to do, which for --help and --version is nothing more: their text is printed by then.
  // InvalidArgument, in one line: the word that is wrong, as it was typed, and the help that tells
  // what would be right. The action keeps what it needs.
  absl::StatusOr<Action> Parse(int argc, const char* const* argv);

  // For tests that go through all options.
  CLI::App& app() { return app_; }

 private:
  CLI::App app_;
  Action action_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_COMMAND_LINE_H_
