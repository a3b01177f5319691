// The worker processes of `demo`, `bench` and `ping`: another run of this program, or a fork of
// this process. A channel connects each one to its parent.
#ifndef KVXFER_CLI_COMMON_PROCESS_H_
#define KVXFER_CLI_COMMON_PROCESS_H_

#include <sys/types.h>

#include <array>
#include <functional>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "src/cli/common/channel.h"

namespace kvxfer::cli {

// The descriptor of the child's end of the channel.
inline constexpr int kChannelFd = 3;

// The two ends of a channel, which exec closes.
absl::StatusOr<std::array<UniqueFd, 2>> ChannelEnds();

// Thread-safety: one thread at a time. The destructor kills a child that still runs.
class WorkerProcess {
 public:
  // Runs `kvxfer <subcommand>`. Errors call the process `role`, e.g. "the decode process".
  static absl::StatusOr<WorkerProcess> Start(const std::string& subcommand,
                                             const std::string& role);
  // Forks this process, which must not have threads or agents yet, and runs `serve` in the child.
  // The child ends when `serve` returns, with exit status 0 if the result is OK. It shares the
  // parent's stdout and stderr and must not write to them.
  static absl::StatusOr<WorkerProcess> Fork(const std::string& role,
                                            const std::function<absl::Status(Channel)>& serve);
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;
  ~WorkerProcess();

  Channel& channel() { return channel_; }
  pid_t pid() const { return pid_; }
  // OK while the process runs; then Unavailable, with the way it ended.
  absl::Status CheckAlive();
  // Waits for the process to end. OK: its exit status was 0.
  absl::Status Join(Duration timeout);

 private:
  WorkerProcess(pid_t pid, Channel channel, std::string role)
      : pid_(pid), channel_(std::move(channel)), role_(std::move(role)) {}
  absl::Status Ended(int wait_status);

  pid_t pid_ = -1;  // -1: reaped
  Channel channel_;
  std::string role_;
};

// How one of these processes has ended; OK: all of them run. A killed process closes its sockets
// before waitpid can report it, so that this looks for 200 ms.
absl::Status FindEnded(std::span<WorkerProcess* const> workers);

// In the child: returns its end of the channel. From then on the child dies with its parent.
// FailedPrecondition: the program was not started by WorkerProcess::Start.
absl::StatusOr<Channel> ChannelToParent();

// Raises the soft limit of descriptors to the hard one, for runs with many agents or regions.
void RaiseDescriptorLimit();

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_PROCESS_H_
