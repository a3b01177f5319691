// Messages between two `kvxfer` processes that set up a run: metadata, commands and results, never
// blocks. And the worker processes of `demo`, `bench` and `ping`: another run of this program, or a
// fork of this process. A channel connects each one to its parent.

#ifndef KVXFER_CLI_COMMON_CHANNEL_H_
#define KVXFER_CLI_COMMON_CHANNEL_H_

#include <sys/types.h>

#include <array>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/cli/common/json_util.h"

namespace kvxfer::cli {

// Longest message; the metadata of hundreds of regions fits several times.
inline constexpr uint32_t kMaxChannelMessage = 1u << 20;

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~UniqueFd();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

// One end. Each message is a little-endian u32 length and a JSON object. Thread-safety: one thread
// at a time.
class Channel {
 public:
  Channel() = default;
  // `socket` is a connected stream socket. Errors call the other side `peer`.
  Channel(UniqueFd socket, std::string peer) : socket_(std::move(socket)), peer_(std::move(peer)) {}

  // DeadlineExceeded: the other side reads nothing for `timeout`. Unavailable: it is gone.
  absl::Status Send(const Json& message, Duration timeout = std::chrono::seconds(10));
  // DeadlineExceeded: no whole message within `timeout`. Unavailable: the channel is closed, or the
  // other side is some other program, which sends no such messages. After an error the channel
  // cannot be used any longer.
  absl::StatusOr<Json> Receive(Duration timeout);
  // Like Receive, but returns a message of ErrorAnswer as the error that it carries.
  absl::StatusOr<Json> ReceiveAnswer(Duration timeout);
  // Send, then ReceiveAnswer.
  absl::StatusOr<Json> Call(const Json& message, Duration timeout);

  // Whether Receive would find a message, or find that the other side has closed.
  bool Readable() const;
  // Whether a short message could be sent without waiting, or would fail at once.
  bool Writable() const;
  // Whether the other side has closed (or died).
  bool Closed() const;
  // Wakes a thread that waits in Receive, which then finds the channel closed. Any thread may call
  // this.
  void Shutdown();
  int fd() const { return socket_.get(); }
  const std::string& peer() const { return peer_; }

 private:
  absl::Status Transfer(char* bytes, size_t size, int16_t events, Duration timeout);

  UniqueFd socket_;
  std::string peer_;
};

// The message that makes ReceiveAnswer on the other side return `status`.
Json ErrorAnswer(const absl::Status& status);

// The descriptor of the child's end of the channel.
inline constexpr int kChannelFd = 3;

// How long a worker waits for its parent: it ends with it anyway.
inline constexpr Duration kIdle = std::chrono::hours(24);

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

#endif  // KVXFER_CLI_COMMON_CHANNEL_H_
