// Poller: epoll and a timerfd.

#include "src/backends/ucx/poller.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <tuple>

#include "src/core/base/strings.h"

namespace kvxfer::ucx {
namespace {

absl::Status Exhausted(const char* what) {
  return absl::ResourceExhaustedError(ErrnoText(what, errno));
}

}  // namespace

absl::Status Poller::Open() {
  epoll_ = OwnFd::Open([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  if (!epoll_.valid()) return Exhausted("epoll_create1");
  timer_ =
      OwnFd::Open([] { return ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK); });
  if (!timer_.valid()) return Exhausted("timerfd_create");
  return Add(timer_.get(), nullptr);
}

absl::Status Poller::Add(int fd, Watcher* watcher) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.ptr = watcher;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return Exhausted("epoll_ctl");
  return absl::OkStatus();
}

void Poller::Remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Poller::Dispatch() {
  std::array<epoll_event, 64> ready;
  const int n = ::epoll_wait(epoll_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  // Descriptors beyond the 64 are reported by the next call.
  for (int i = 0; i < n; ++i) {
    auto* const watcher = static_cast<Watcher*>(ready[static_cast<size_t>(i)].data.ptr);
    if (watcher != nullptr) watcher->OnReady();
  }
  uint64_t expirations = 0;
  // Fails if the timer has not expired, which does no harm.
  if (n > 0) std::ignore = ::read(timer_.get(), &expirations, sizeof(expirations));
}

// Callers never pass 0, which would disarm the timer.
void Poller::Nap(Duration delay) {
  itimerspec once{};
  once.it_value.tv_sec = delay / std::chrono::seconds(1);
  once.it_value.tv_nsec = delay % std::chrono::seconds(1) / std::chrono::nanoseconds(1);
  ::timerfd_settime(timer_.get(), 0, &once, nullptr);
}

}  // namespace kvxfer::ucx
