#include "tests/cuda_contract/child.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string_view>
#include <thread>

namespace kvxfer::testing {
namespace {

constexpr std::string_view kFlag = "--child=";
constexpr int kSocket = 3;

std::map<std::string, ContractChild, std::less<>>& Children() {
  static std::map<std::string, ContractChild, std::less<>> children;
  return children;
}

[[noreturn]] void Fail(const char* what) {
  std::perror(what);
  std::exit(99);
}

}  // namespace

Socket::~Socket() { close(fd_); }

void Socket::SendBytes(const void* data, size_t bytes) {
  if (send(fd_, data, bytes, MSG_NOSIGNAL) != static_cast<ssize_t>(bytes)) Fail("send");
}

void Socket::ReceiveBytes(void* data, size_t bytes) {
  if (recv(fd_, data, bytes, MSG_WAITALL) != static_cast<ssize_t>(bytes)) Fail("receive");
}

void Socket::SendDescriptor(int fd) {
  char byte = 0;
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &fd, sizeof(fd));
  if (sendmsg(fd_, &message, MSG_NOSIGNAL) != 1) Fail("send a descriptor");
}

int Socket::ReceiveDescriptor() {
  char byte = 0;
  iovec data = {.iov_base = &byte, .iov_len = 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  if (recvmsg(fd_, &message, MSG_CMSG_CLOEXEC) != 1) Fail("receive a descriptor");
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr) Fail("no descriptor came");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
  return fd;
}

bool RegisterContractChild(const char* name, ContractChild main) {
  return Children().emplace(name, main).second;
}

std::optional<int> RunIfContractChild(int argc, char** argv) {
  if (argc < 2 || !std::string_view(argv[1]).starts_with(kFlag)) return std::nullopt;
  const auto child = Children().find(std::string_view(argv[1]).substr(kFlag.size()));
  if (child == Children().end()) return 98;
  Socket socket(kSocket);
  const int status = child->second(&socket);
  // What an expectation of a helper found.
  return ::testing::UnitTest::GetInstance()->ad_hoc_test_result().Failed() ? 96 : status;
}

Child::Child(const std::string& name, const std::vector<std::string>& environment) {
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) Fail("socketpair");
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], kSocket);
  std::string flag = std::string(kFlag) + name;
  std::string program = "/proc/self/exe";
  char* const argv[] = {program.data(), flag.data(), nullptr};
  std::vector<std::string> own = environment;
  std::vector<char*> envp;
  envp.reserve(own.size());
  for (std::string& entry : own) envp.push_back(entry.data());
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view name = std::string_view(*entry).substr(0, std::strcspn(*entry, "="));
    const bool replaced = std::ranges::any_of(environment, [&](const std::string& other) {
      return other.starts_with(name) && other[name.size()] == '=';
    });
    if (!replaced) envp.push_back(*entry);
  }
  envp.push_back(nullptr);
  const int error = posix_spawn(&pid_, argv[0], &actions, nullptr, argv, envp.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (error != 0) Fail("posix_spawn");
  socket_ = new Socket(ends[0]);
}

Child::~Child() {
  Kill();
  delete socket_;
}

void Child::Kill() {
  if (pid_ < 0) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

int Child::Wait() {
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  int status = 0;
  while (pid_ >= 0 && waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > end) {
      Kill();
      return -1;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace kvxfer::testing
