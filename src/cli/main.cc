// `kvxfer`: demo, serve, ping, bench, explain. docs/cli.md is the user's page.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <string>

#include "src/cli/commands.h"
#include "src/cli/exit_status.h"

namespace kvxfer::cli {
namespace {

// One line, whatever the message holds, so that logs and scripts can read it.
int Report(std::string message, ExitStatus status) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  std::fprintf(stderr, "kvxfer: %s\n", message.c_str());
  return static_cast<int>(status);
}

int Main(int argc, char** argv) {
  // A peer that goes away is an error of a call, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  CLI::App app{"Moves KV-cache blocks between LLM inference workers."};
  app.name("kvxfer");
  app.set_version_flag("--version", KVXFER_VERSION);
  app.require_subcommand(1);
  Action action;
  AddDemo(app, action);
  AddServe(app, action);
  AddPing(app, action);
  AddBench(app, action);
  AddExplain(app, action);
  AddDemoWorker(app, action);
  AddBenchWorker(app, action);
  // CLI11 reports by exception; it goes no further than here.
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help
    return Report(std::string(e.what()) + " (see kvxfer --help)", ExitStatus::kUsage);
  }
  const absl::Status status = action();
  std::fflush(stdout);
  if (status.ok()) return static_cast<int>(ExitStatus::kOk);
  return Report(std::string(status.message()), ExitStatusOf(status.code()));
}

}  // namespace
}  // namespace kvxfer::cli

int main(int argc, char** argv) { return kvxfer::cli::Main(argc, argv); }
