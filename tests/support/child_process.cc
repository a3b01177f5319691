#include "tests/support/child_process.h"

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

constexpr std::string_view kFlag = "--kvxfer-child=";
constexpr int kInheritedFd = 3;

std::map<std::string, ChildMain, std::less<>>& Children() {
  static std::map<std::string, ChildMain, std::less<>> children;
  return children;
}

}  // namespace

bool RegisterChild(const char* name, ChildMain main) {
  return Children().emplace(name, main).second;
}

std::optional<int> RunIfChild(int argc, char** argv) {
  if (argc < 2) return std::nullopt;
  const std::string_view flag = argv[1];
  if (!flag.starts_with(kFlag)) return std::nullopt;
  const auto child = Children().find(flag.substr(kFlag.size()));
  if (child == Children().end()) {
    std::fprintf(stderr, "no child function \"%s\" in this binary\n", argv[1]);
    return 2;
  }
  return child->second(std::vector<std::string>(argv + 2, argv + argc));
}

absl::StatusOr<ChildProcess> ChildProcess::Start(std::string_view name,
                                                 std::vector<std::string> arguments,
                                                 int inherited) {
  arguments.insert(arguments.begin(), {"/proc/self/exe", std::string(kFlag) + std::string(name)});
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (inherited >= 0) {
    posix_spawn_file_actions_adddup2(&actions, inherited, kInheritedFd);
    arguments.push_back(std::to_string(kInheritedFd));
  }
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  ChildProcess child;
  const int error = posix_spawn(&child.pid_, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    child.pid_ = -1;
    return absl::InternalError(ErrnoText("posix_spawn of the test itself", error));
  }
  return child;
}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::Signal(int number) const {
  if (pid_ > 0) kill(pid_, number);
}

void ChildProcess::WaitStopped() const {
  int status = 0;
  if (pid_ > 0) waitpid(pid_, &status, WUNTRACED);
}

std::optional<int> ChildProcess::WaitExit(Duration limit) {
  if (pid_ < 0) return std::nullopt;
  int status = 0;
  const bool ended = Eventually(limit, [&] { return waitpid(pid_, &status, WNOHANG) == pid_; });
  if (!ended) return std::nullopt;
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int RunChild(std::string_view name, std::vector<std::string> arguments, Duration limit) {
  absl::StatusOr<ChildProcess> child = ChildProcess::Start(name, std::move(arguments));
  if (!child.ok()) return -1;
  return child->WaitExit(limit).value_or(-1);
}

}  // namespace kvxfer::testing
