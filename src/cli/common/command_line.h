// The command line of `kvxfer`: its subcommands and options, and the messages for what is wrong.

#ifndef KVXFER_CLI_COMMON_COMMAND_LINE_H_
#define KVXFER_CLI_COMMON_COMMAND_LINE_H_

#include <CLI/CLI.hpp>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace kvxfer::cli {

// The subcommands of `kvxfer`. Each Add function declares the options of one subcommand on `app`.
// Parsing that subcommand stores what it has to do in `action`.
using Action = std::function<absl::Status()>;

// Adds one subcommand; parsing it stores `run`.
CLI::App* AddCommand(CLI::App& app, Action& action, const std::string& name,
                     const std::string& help, Action run);

void AddDemo(CLI::App& app, Action& action);
void AddServe(CLI::App& app, Action& action);
void AddPing(CLI::App& app, Action& action);
void AddBench(CLI::App& app, Action& action);
void AddExplain(CLI::App& app, Action& action);
void AddTopo(CLI::App& app, Action& action);
void AddDoctor(CLI::App& app, Action& action);
void AddBackends(CLI::App& app, Action& action);
// The actions of these two read `app`, which must live as long as they do.
void AddCompletion(CLI::App& app, Action& action);
void AddMan(CLI::App& app, Action& action);

// Hidden: the worker processes that `demo`, `bench` and `ping` start. They are connected to the
// program by a channel on kChannelFd.
void AddDemoWorker(CLI::App& app, Action& action);
void AddDemoRank(CLI::App& app, Action& action);
void AddBenchWorker(CLI::App& app, Action& action);

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
