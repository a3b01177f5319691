// The `kvxfer` program. docs/cli.md describes it for users.

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>

#include "kvxfer/log.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/exit_status.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::cli {
namespace {

// Prints one line, whatever `message` contains, so that logs and scripts can read it.
int Report(std::string message, ExitStatus status) {
  // Log lines of the library that led to this come first.
  FlushLog(std::chrono::milliseconds(200));
  std::replace(message.begin(), message.end(), '\n', ' ');
  // The message may quote a server, which is not trusted.
  constexpr size_t kMaxBytes = 16 * 1024;
  std::fprintf(stderr, "kvxfer: %s\n", Printable(message, kMaxBytes).c_str());
  return static_cast<int>(status);
}

// Only flushing reveals a full disk or a closed pipe: a caller must not take part of the output for
// all of it.
absl::Status FlushOutput() {
  if (std::fflush(stdout) != 0) {
    return absl::DataLossError(ErrnoText("the output could not be written", errno));
  }
  if (std::ferror(stdout) != 0) return absl::DataLossError("the output was not written completely");
  return absl::OkStatus();
}

// Parsing only chooses the action. The action runs afterwards, outside of CLI11's exceptions.
int Main(int argc, char** argv) {
  // A lost peer makes a call fail; it must not end the process.
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
