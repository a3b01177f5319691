// The other processes of `demo` and `bench`: this program once more, or a copy of this process,
// joined by a channel.
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

// Where the child finds its end of the channel.
inline constexpr int kChannelFd = 3;

// The two ends of a channel, closed on exec.
absl::StatusOr<std::array<UniqueFd, 2>> ChannelEnds();

// Thread-safety: one thread at a time. A child that still runs is killed by the destructor.
class WorkerProcess {
 public:
  // Runs `kvxfer <subcommand>`. `role` is what errors call it, e.g. "the decode process".
  static absl::StatusOr<WorkerProcess> Start(const std::string& subcommand,
                                             const std::string& role);
  // Runs `serve` in a copy of this process, which must have neither threads nor agents yet; its end
  // is that of the copy, with exit status 0 when it is OK. It has the parent's stdout and stderr,
  // and is to leave them alone.
  static absl::StatusOr<WorkerProcess> Fork(const std::string& role,
                                            const std::function<absl::Status(Channel)>& serve);
  WorkerProcess(WorkerProcess&& other) noexcept;
  WorkerProcess& operator=(WorkerProcess&& other) noexcept;
  ~WorkerProcess();

  Channel& channel() { return channel_; }
  pid_t pid() const { return pid_; }
  // Unavailable, with how it ended, once the process is no more; OK while it runs.
  absl::Status CheckAlive();
  // Waits for the end; OK when that was exit status 0.
  absl::Status Join(Duration timeout);

 private:
  WorkerProcess(pid_t pid, Channel channel, std::string role)
      : pid_(pid), channel_(std::move(channel)), role_(std::move(role)) {}
  absl::Status Ended(int wait_status);

  pid_t pid_ = -1;  // -1: reaped
  Channel channel_;
  std::string role_;
};

// How one of these has ended; OK: all run. A process that was killed closes its sockets before it
// can be waited for, so it looks for 200 ms.
absl::Status FindEnded(std::span<WorkerProcess* const> workers);

// In the child: its end of the channel; from now on the child dies with its parent.
// FailedPrecondition when the program was not started by Start.
absl::StatusOr<Channel> ChannelToParent();

// Many agents, or many regions, need many descriptors: raises the soft limit to the hard one.
void RaiseDescriptorLimit();

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_PROCESS_H_
