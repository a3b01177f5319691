#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "benchmarks/kv/target.h"
#include "src/core/strings.h"

namespace kvxfer::kv_bench {
namespace {

constexpr const char* kPrefill = "the prefill process";
constexpr const char* kDecode = "the decode process";

void ServeAndSay(cli::Channel channel, const std::vector<Case>& cases, const Options& options) {
  const absl::Status status = ServeTarget(std::move(channel), cases, options);
  if (status.ok()) return;
  std::fprintf(stderr, "kvxfer_kv_bench: %s: %s\n", kDecode, status.ToString().c_str());
}

}  // namespace

absl::StatusOr<std::unique_ptr<TargetProcess>> TargetProcess::Start(const std::vector<Case>& cases,
                                                                    const Options& options) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return absl::ResourceExhaustedError(ErrnoText("socketpair", errno));
  }
  cli::UniqueFd ours(ends[0]);
  cli::UniqueFd theirs(ends[1]);
  std::unique_ptr<TargetProcess> process(new TargetProcess);
  process->channel_ = cli::Channel(std::move(ours), kDecode);
  if (options.backend == "loopback") {
    cli::Channel channel(std::move(theirs), kPrefill);
    process->thread_ = std::thread(ServeAndSay, std::move(channel), cases, options);
    return process;
  }
  process->pid_ = ::fork();
  if (process->pid_ < 0) return absl::ResourceExhaustedError(ErrnoText("fork", errno));
  if (process->pid_ > 0) return process;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  process->channel_ = cli::Channel();
  ServeAndSay(cli::Channel(std::move(theirs), kPrefill), cases, options);
  std::_Exit(0);
}

TargetProcess::~TargetProcess() {
  channel_.Shutdown();  // it finds the channel closed, and ends
  if (thread_.joinable()) thread_.join();
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

absl::Status TargetProcess::End() {
  const auto answer = channel_.Call({{"do", "end"}}, kPatience);
  if (!answer.ok()) return answer.status();
  if (pid_ >= 0) return Reap(kPatience);
  thread_.join();
  return absl::OkStatus();
}

absl::Status TargetProcess::Reap(Duration timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat(kDecode, " does not end"));
    }
    ::usleep(1000);
  }
  pid_ = -1;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(kDecode, " ended with wait status ", status));
}

}  // namespace kvxfer::kv_bench
