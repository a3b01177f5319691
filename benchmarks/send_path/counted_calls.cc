#include "benchmarks/send_path/counted_calls.h"

#include <dlfcn.h>
#include <poll.h>
#include <rdma/ib_user_verbs.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

using Word = long;            // NOLINT(google-runtime-int): the C library's own
using UWord = unsigned long;  // NOLINT(google-runtime-int): the C library's own

namespace kvxfer::testing {
namespace {

enum Call : uint8_t {
  kEpollWait,
  kPoll,
  kSend,
  kSendmsg,
  kRecv,
  kRecvmsg,
  kRead,
  kReadv,
  kWrite,
  kWritev,
  kProcessVmReadv,
  kProcessVmWritev,
  kTimerfdSettime,
  kTimeOut,
  kDoorbell,
  kOther,
  kCalls,
};
constexpr std::array<const char*, kCalls> kNames = {"epoll_wait",
                                                    "poll",
                                                    "send",
                                                    "sendmsg",
                                                    "recv",
                                                    "recvmsg",
                                                    "read",
                                                    "readv",
                                                    "write",
                                                    "writev",
                                                    "process_vm_readv",
                                                    "process_vm_writev",
                                                    "timerfd_settime",
                                                    "time-outs",
                                                    "doorbells",
                                                    "other"};

std::array<std::atomic<uint64_t>, kCalls> counts{};

void Count(Call call) { counts[call].fetch_add(1, std::memory_order_relaxed); }

bool IsVerbsDevice(int fd) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", fd);
  std::array<char, 64> target{};
  return readlink(path.data(), target.data(), target.size() - 1) > 0 &&
         std::string_view(target.data()).starts_with("/dev/infiniband/uverbs");
}

// A NIC's provider rings doorbells in memory; that of soft-RoCE, by commands to the kernel.
Call CallOfWrite(int fd, const void* data, size_t size) {
  ib_uverbs_cmd_hdr command{};
  if (size < sizeof(command) + 1 || !IsVerbsDevice(fd)) return kWrite;
  std::memcpy(&command, data, sizeof(command));
  return command.command == IB_USER_VERBS_CMD_POST_SEND ? kDoorbell : kWrite;
}

// The words of a line, up to its end. Reads by the C library, whose own calls are not counted.
std::vector<std::string> WordsOf(std::FILE* file) {
  std::array<char, 4096> line{};
  if (std::fgets(line.data(), line.size(), file) == nullptr) return {};
  std::istringstream words(line.data());
  return {std::istream_iterator<std::string>(words), {}};
}

// That this host has sent over TCP, over whatever interface; without those of retransmissions.
std::optional<uint64_t> TcpSegments() {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> snmp(std::fopen("/proc/net/snmp", "r"),
                                                             &std::fclose);
  if (snmp == nullptr) return std::nullopt;
  // A line of names, and one of values.
  std::vector<std::string> names = WordsOf(snmp.get());
  while (!names.empty()) {
    std::vector<std::string> values = WordsOf(snmp.get());
    const auto at = std::ranges::find(names, "OutSegs");
    if (names.front() == "Tcp:" && at != names.end() && values.size() == names.size()) {
      return std::stoull(values[static_cast<size_t>(at - names.begin())]);
    }
    names = std::move(values);
  }
  return std::nullopt;
}

template <typename Function>
Function* Real(Function* /*wrapper*/, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

}  // namespace

std::map<std::string, uint64_t> CountedCalls() {
  std::map<std::string, uint64_t> result;
  for (size_t i = 0; i < kCalls; ++i) {
    if (const uint64_t count = counts[i].load(std::memory_order_relaxed); count != 0) {
      result[kNames[i]] = count;
    }
  }
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (const auto segments = TcpSegments()) result[kTcpSegments] = *segments;
  result["sleeps"] = static_cast<uint64_t>(usage.ru_nvcsw);
  return result;
}

}  // namespace kvxfer::testing

namespace calls = kvxfer::testing;

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name,bugprone-macro-parentheses)
#define KVXFER_COUNTED(call, declaration, name, ...)       \
  extern "C" declaration {                                 \
    static auto* const real = calls::Real(&::name, #name); \
    calls::Count(calls::call);                             \
    return real(__VA_ARGS__);                              \
  }

extern "C" int epoll_wait(int fd, epoll_event* events, int size, int ms) {
  static auto* const real = calls::Real(&::epoll_wait, "epoll_wait");
  calls::Count(calls::kEpollWait);
  if (ms > 0) calls::Count(calls::kTimeOut);
  return real(fd, events, size, ms);
}
KVXFER_COUNTED(kPoll, int poll(pollfd* fds, nfds_t size, int ms), poll, fds, size, ms)
KVXFER_COUNTED(kSend, ssize_t send(int fd, const void* data, size_t size, int flags), send, fd,
               data, size, flags)
KVXFER_COUNTED(kSendmsg, ssize_t sendmsg(int fd, const msghdr* message, int flags), sendmsg, fd,
               message, flags)
KVXFER_COUNTED(kRecv, ssize_t recv(int fd, void* data, size_t size, int flags), recv, fd, data,
               size, flags)
KVXFER_COUNTED(kRecvmsg, ssize_t recvmsg(int fd, msghdr* message, int flags), recvmsg, fd, message,
               flags)
KVXFER_COUNTED(kRead, ssize_t read(int fd, void* data, size_t size), read, fd, data, size)
KVXFER_COUNTED(kReadv, ssize_t readv(int fd, const iovec* parts, int size), readv, fd, parts, size)
extern "C" ssize_t write(int fd, const void* data, size_t size) {
  static auto* const real = calls::Real(&::write, "write");
  calls::Count(calls::CallOfWrite(fd, data, size));
  return real(fd, data, size);
}
KVXFER_COUNTED(kWritev, ssize_t writev(int fd, const iovec* parts, int size), writev, fd, parts,
               size)
KVXFER_COUNTED(kProcessVmReadv,
               ssize_t process_vm_readv(pid_t pid, const iovec* here, UWord here_size,
                                        const iovec* there, UWord there_size, UWord flags) noexcept,
               process_vm_readv, pid, here, here_size, there, there_size, flags)
KVXFER_COUNTED(kProcessVmWritev,
               ssize_t process_vm_writev(pid_t pid, const iovec* here, UWord here_size,
                                         const iovec* there, UWord there_size,
                                         UWord flags) noexcept,
               process_vm_writev, pid, here, here_size, there, there_size, flags)
KVXFER_COUNTED(kTimerfdSettime,
               int timerfd_settime(int fd, int flags, const itimerspec* value,
                                   itimerspec* old) noexcept,
               timerfd_settime, fd, flags, value, old)

// What the C library has no function for, or an old one has not. valgrind knows no pidfd_open: a
// descriptor that never becomes readable stands in, as both agents are this process, which lives as
// long as they do.
extern "C" Word syscall(Word number, ...) noexcept {
  static auto* const raw = reinterpret_cast<Word (*)(Word, ...)>(dlsym(RTLD_NEXT, "syscall"));
  va_list list;
  va_start(list, number);
  std::array<Word, 6> arguments;
  for (Word& argument : arguments) argument = va_arg(list, Word);
  va_end(list);
  if (number == SYS_epoll_pwait2) {
    calls::Count(calls::kEpollWait);
    const auto* const left = reinterpret_cast<const timespec*>(arguments[3]);
    if (left != nullptr && (left->tv_sec > 0 || left->tv_nsec > 0)) calls::Count(calls::kTimeOut);
  } else if (number != SYS_futex) {
    calls::Count(calls::kOther);
  }
  const Word result = raw(number, arguments[0], arguments[1], arguments[2], arguments[3],
                          arguments[4], arguments[5]);
  if (result >= 0 || number != SYS_pidfd_open || errno != ENOSYS) return result;
  return eventfd(0, EFD_CLOEXEC);
}
// NOLINTEND(readability-inconsistent-declaration-parameter-name,bugprone-macro-parentheses)
