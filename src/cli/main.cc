// `kvxfer`: demo, serve, ping, bench, explain, topo, doctor, backends; docs/cli.md is for users.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>

#include "kvxfer/log.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/exit_status.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::cli {
namespace {

// One line, whatever the message holds, so that logs and scripts can read it.
int Report(std::string message, ExitStatus status) {
  // The library's lines of what led to this come first.
  FlushLog(std::chrono::milliseconds(200));
  std::replace(message.begin(), message.end(), '\n', ' ');
  // A server's words may be in it.
  constexpr size_t kMaxBytes = 16 * 1024;
  std::fprintf(stderr, "kvxfer: %s\n", Printable(message, kMaxBytes).c_str());
  return static_cast<int>(status);
}

// A full disk or a closed pipe shows only here: a caller must not take the rest for the whole.
absl::Status FlushOutput() {
  if (std::fflush(stdout) != 0) {
    return absl::DataLossError(ErrnoText("the output could not be written", errno));
  }
  if (std::ferror(stdout) != 0) return absl::DataLossError("the output was not written whole");
  return absl::OkStatus();
}

// Parsing only chooses the action; it runs after, where no exception of CLI11 is under way.
int Main(int argc, char** argv) {
  // A peer that goes away is an error of a call, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  CommandLine line;
  const absl::StatusOr<Action> action = line.Parse(argc, argv);
  if (!action.ok()) return Report(std::string(action.status().message()), ExitStatus::kUsage);
  absl::Status status = (*action)();
  status.Update(FlushOutput());
  if (status.ok()) return static_cast<int>(ExitStatus::kOk);
  return Report(std::string(status.message()), ExitStatusOf(status.code()));
}

}  // namespace
}  // namespace kvxfer::cli

int main(int argc, char** argv) { return kvxfer::cli::Main(argc, argv); }
