// The command line of `kvxfer`: its subcommands and options, and the messages for what is wrong.
#ifndef KVXFER_CLI_COMMON_COMMAND_LINE_H_
#define KVXFER_CLI_COMMON_COMMAND_LINE_H_

#include <CLI/CLI.hpp>

#include "absl/status/statusor.h"
#include "src/cli/commands.h"

namespace kvxfer::cli {

// Declares every subcommand. Help shows the default of each option.
//
// Thread-safety: one thread. Parses once.
class CommandLine {
 public:
  CommandLine();
  CommandLine(const CommandLine&) = delete;
  CommandLine& operator=(const CommandLine&) = delete;

  // Returns what to do; the caller runs it while this object lives. For --help and --version, whose
  // text Parse has printed, and with the hidden --parse-only, that is nothing. InvalidArgument, in
  // one line, names the wrong word as it was typed, the word that was probably meant, and the help
  // to read.
  absl::StatusOr<Action> Parse(int argc, const char* const* argv);

  // For tests that go through all options.
  CLI::App& app() { return app_; }

 private:
  CLI::App app_;
  Action action_;
  bool parse_only_ = false;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_COMMAND_LINE_H_
