#include "tests/integration/cli_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

namespace kvxfer::cli {

Program::Program(std::vector<std::string> arguments, const char* path) {
  std::array<int, 2> out{}, err{};
  EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(err.data(), O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
  if (path == nullptr) path = KVXFER_CLI_PATH;
  arguments.insert(arguments.begin(), "kvxfer");
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  EXPECT_EQ(posix_spawn(&pid_, path, &actions, nullptr, argv.data(), environ), 0) << path;
  posix_spawn_file_actions_destroy(&actions);
  close(out[1]);
  close(err[1]);
  fds_ = {out[0], err[0]};
}

Program::~Program() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  for (int fd : fds_) close(fd);
}

ExitStatus Program::Wait() {
  while (ReadSome(-1)) {
  }
  int status = 0;
  EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
  pid_ = -1;
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << "\n" << err_;
  return static_cast<ExitStatus>(WEXITSTATUS(status));
}

std::string Program::ReadLine() {
  while (out_.find('\n') == std::string::npos && ReadSome(60'000)) {
  }
  return out_.substr(0, out_.find('\n'));
}

std::vector<pid_t> Program::WaitForChildren(size_t count) const {
  const std::string id = std::to_string(pid_);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  for (;;) {
    std::ifstream file("/proc/" + id + "/task/" + id + "/children");
    std::vector<pid_t> children{std::istream_iterator<pid_t>(file), {}};
    if (children.size() >= count || std::chrono::steady_clock::now() > end) return children;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool Program::ReadSome(int milliseconds) {
  std::array<pollfd, 2> waits = {pollfd{open_[0] ? fds_[0] : -1, POLLIN, 0},
                                 pollfd{open_[1] ? fds_[1] : -1, POLLIN, 0}};
  if (!(open_[0] || open_[1]) || poll(waits.data(), waits.size(), milliseconds) <= 0) return false;
  for (size_t i = 0; i < waits.size(); ++i) {
    if (waits[i].revents == 0) continue;
    std::array<char, 4096> buffer;
    const ssize_t n = read(fds_[i], buffer.data(), buffer.size());
    if (n > 0) (i == 0 ? out_ : err_).append(buffer.data(), static_cast<size_t>(n));
    open_[i] = n > 0;
  }
  return true;
}

Result Finish(Program& program) {
  Result result{.status = program.Wait(), .json = {}, .out = program.out(), .err = program.err()};
  result.json = nlohmann::json::parse(result.out, nullptr, false);
  return result;
}

Result RunProgram(const std::vector<std::string>& arguments) {
  Program program(arguments);
  return Finish(program);
}

Result RunShell(const std::string& command) {
  Program program({"-c", "exec " + command, KVXFER_CLI_PATH}, "/bin/sh");
  return Finish(program);
}

}  // namespace kvxfer::cli
