#include "src/cli/common/channel.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "src/core/base/clock.h"
#include "src/core/base/strings.h"
#include "src/core/protocol/codec.h"
#include "src/transport/host/message_order.h"

namespace kvxfer::cli {
namespace {

constexpr const char* kParent = "the parent process";

int MillisecondsUntil(Time end) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000'000));
}

absl::Status NoMessage(const std::string& peer) {
  return absl::UnavailableError(
      peer + " does not send kvxfer messages; is that the port of a `kvxfer serve`?");
}

}  // namespace

absl::StatusOr<std::array<UniqueFd, 2>> ChannelEnds() {
  std::array<int, 2> pair{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) != 0) {
    return absl::ResourceExhaustedError(ErrnoText("socketpair", errno));
  }
  return std::array{UniqueFd(pair[0]), UniqueFd(pair[1])};
}

absl::StatusOr<WorkerProcess> WorkerProcess::Start(const std::string& subcommand,
                                                   const std::string& role) {
  auto ends = ChannelEnds();
  if (!ends.ok()) return ends.status();
  auto& [ours, theirs] = *ends;
  // dup2 of a descriptor onto itself would keep close-on-exec, so that the child's end must have
  // another number.
  if (theirs.get() == kChannelFd) theirs = UniqueFd(fcntl(kChannelFd, F_DUPFD_CLOEXEC, 10));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, theirs.get(), kChannelFd);
  std::string program = "kvxfer";
  std::string argument = subcommand;
  const std::array<char*, 3> argv = {program.data(), argument.data(), nullptr};
  pid_t pid = -1;
  // The file that this process runs, even if the file at its path was replaced.
  const int error = posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return absl::ResourceExhaustedError(ErrnoText("starting " + role, error));
  return WorkerProcess(pid, Channel(std::move(ours), role), role);
}

absl::StatusOr<WorkerProcess> WorkerProcess::Fork(
    const std::string& role, const std::function<absl::Status(Channel)>& serve) {
  auto ends = ChannelEnds();
  if (!ends.ok()) return ends.status();
  auto& [ours, theirs] = *ends;
  const pid_t pid = fork();
  if (pid < 0) return absl::ResourceExhaustedError(ErrnoText("starting " + role, errno));
  if (pid > 0) return WorkerProcess(pid, Channel(std::move(ours), role), role);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  ours = UniqueFd();  // else the child would not see that the parent closes its end
  const absl::Status status = serve(Channel(std::move(theirs), kParent));
  // Without flushing: the parent writes what its stdout had buffered.
  std::_Exit(status.ok() ? EXIT_SUCCESS : EXIT_FAILURE);
}

WorkerProcess::WorkerProcess(WorkerProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      channel_(std::move(other.channel_)),
      role_(std::move(other.role_)) {}

WorkerProcess& WorkerProcess::operator=(WorkerProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(channel_, other.channel_);
  std::swap(role_, other.role_);
  return *this;
}

WorkerProcess::~WorkerProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

absl::Status WorkerProcess::Ended(int wait_status) {
  pid_ = -1;
  if (WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) return absl::OkStatus();
  return absl::UnavailableError(
      WIFSIGNALED(wait_status)
          ? absl::StrCat(role_, " was killed by signal ", WTERMSIG(wait_status), " (",
                         strsignal(WTERMSIG(wait_status)), ")")
          : absl::StrCat(role_, " ended with exit status ", WEXITSTATUS(wait_status)));
}

absl::Status WorkerProcess::CheckAlive() {
  int wait_status = 0;
  if (pid_ >= 0) {
    if (waitpid(pid_, &wait_status, WNOHANG) != pid_) return absl::OkStatus();
    if (absl::Status status = Ended(wait_status); !status.ok()) return status;
  }
  return absl::UnavailableError(role_ + " ended before its work was done");
}

absl::Status WorkerProcess::Join(Duration timeout) {
  const Time end = Now() + timeout;
  for (int wait_status = 0; pid_ >= 0;) {
    if (waitpid(pid_, &wait_status, WNOHANG) == pid_) return Ended(wait_status);
    if (Now() >= end) return absl::DeadlineExceededError(role_ + " does not end");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return absl::OkStatus();
}

absl::Status FindEnded(std::span<WorkerProcess* const> workers) {
  for (const Time end = Now() + std::chrono::milliseconds(200); !workers.empty();) {
    for (WorkerProcess* worker : workers) {
      if (absl::Status ended = worker->CheckAlive(); !ended.ok()) return ended;
    }
    if (Now() >= end) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return absl::OkStatus();
}

absl::StatusOr<Channel> ChannelToParent() {
  struct stat info {};
  if (fstat(kChannelFd, &info) != 0 || !S_ISSOCK(info.st_mode)) {
    return absl::FailedPreconditionError(
        "demo, bench and ping start this subcommand themselves; run one of those instead");
  }
  // A worker that waits in Receive sees its parent end. One that is busy must end too.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  fcntl(kChannelFd, F_SETFD, FD_CLOEXEC);
  return Channel(UniqueFd(kChannelFd), kParent);
}

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  // If this fails, a run that needs more descriptors fails later with a clear error.
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

UniqueFd::~UniqueFd() {
  if (fd_ >= 0) close(fd_);
}

// Sends (POLLOUT) or receives (POLLIN) exactly `size` bytes.
absl::Status Channel::Transfer(char* bytes, size_t size, int16_t events, Duration timeout) {
  const Time end = Now() + timeout;
  while (size > 0) {
    const ssize_t moved = events == POLLOUT
                              ? send(socket_.get(), bytes, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                              : recv(socket_.get(), bytes, size, MSG_DONTWAIT);
    if (moved > 0) {
      bytes += moved;
      size -= static_cast<size_t>(moved);
      continue;
    }
    const int error = errno;
    if (moved == 0) return absl::UnavailableError(peer_ + " closed the connection");
    if (error == EINTR) continue;
    if (error != EAGAIN) return absl::UnavailableError(ErrnoText(peer_, error));
    pollfd wait{.fd = socket_.get(), .events = events, .revents = 0};
    if (poll(&wait, 1, MillisecondsUntil(end)) == 0 && Now() >= end) {
      return absl::DeadlineExceededError(absl::StrCat(
          peer_, " did not answer within ",
          std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count(), " ms"));
    }
  }
  return absl::OkStatus();
}

absl::Status Channel::Send(const Json& message, Duration timeout) {
  const std::string text = DumpJson(message);
  if (text.size() > kMaxChannelMessage) {
    return Invalid("message to ", peer_, ": ", text.size(), " bytes are more than ",
                   kMaxChannelMessage);
  }
  std::string bytes(sizeof(uint32_t), '\0');
  wire::StoreLittle(bytes.data(), static_cast<uint32_t>(text.size()));
  bytes += text;
  MessageIsSent();
  return Transfer(bytes.data(), bytes.size(), POLLOUT, timeout);
}

// One time-out for the whole message, so that a peer that sends one byte a second times out too.
absl::StatusOr<Json> Channel::Receive(Duration timeout) {
  const Time end = Now() + timeout;
  std::string bytes(sizeof(uint32_t), '\0');
  if (absl::Status s = Transfer(bytes.data(), bytes.size(), POLLIN, timeout); !s.ok()) return s;
  const auto size = wire::LoadLittle<uint32_t>(reinterpret_cast<const std::byte*>(bytes.data()));
  if (size > kMaxChannelMessage) return NoMessage(peer_);
  bytes.resize(size);
  const Duration left = std::max<Duration>(end - Now(), std::chrono::milliseconds(1));
  if (absl::Status s = Transfer(bytes.data(), size, POLLIN, left); !s.ok()) return s;
  absl::StatusOr<Json> json = ParseJsonObject(bytes);
  if (!json.ok()) return NoMessage(peer_);
  return json;
}

absl::StatusOr<Json> Channel::ReceiveAnswer(Duration timeout) {
  absl::StatusOr<Json> answer = Receive(timeout);
  if (!answer.ok() || !answer->contains("error")) return answer;
  const absl::StatusOr<uint64_t> code = GetUint(*answer, "status");
  const auto known = code.ok() && *code >= 1 && *code <= 16 ? static_cast<absl::StatusCode>(*code)
                                                            : absl::StatusCode::kUnknown;
  return absl::Status(known, absl::StrCat(peer_, ": ", GetString(*answer, "error")));
}

absl::StatusOr<Json> Channel::Call(const Json& message, Duration timeout) {
  if (absl::Status status = Send(message); !status.ok()) return status;
  return ReceiveAnswer(timeout);
}

bool Channel::Readable() const {
  pollfd state{.fd = socket_.get(), .events = POLLIN, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

bool Channel::Writable() const {
  pollfd state{.fd = socket_.get(), .events = POLLOUT, .revents = 0};
  return poll(&state, 1, 0) > 0;
}

bool Channel::Closed() const {
  pollfd state{.fd = socket_.get(), .events = POLLRDHUP, .revents = 0};
  return poll(&state, 1, 0) > 0 && (state.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

void Channel::Shutdown() { shutdown(socket_.get(), SHUT_RDWR); }

Json ErrorAnswer(const absl::Status& status) {
  return {{"error", std::string(status.message())}, {"status", static_cast<int>(status.code())}};
}

}  // namespace kvxfer::cli
