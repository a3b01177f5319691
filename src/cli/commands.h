// The subcommands of `kvxfer`. Each Add function declares the options of one subcommand on `app`.
// Parsing that subcommand stores what it has to do in `action`.
#ifndef KVXFER_CLI_COMMANDS_H_
#define KVXFER_CLI_COMMANDS_H_

#include <functional>

#include "absl/status/status.h"

namespace CLI {
class App;
}

namespace kvxfer::cli {

using Action = std::function<absl::Status()>;

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

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMANDS_H_
