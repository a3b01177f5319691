#include "src/transport/sockets/reactor.h"

#include <sys/timerfd.h>

#include <algorithm>
#include <cerrno>

#include "src/core/base/strings.h"

namespace kvxfer::net {
namespace {

epoll_event EventFor(Watcher* watcher, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = watcher;
  return event;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reactor>> Reactor::Create() {
  auto reactor = std::make_unique<Reactor>();
  reactor->epoll_ = Fd::Open([] { return ::epoll_create1(EPOLL_CLOEXEC); });
  reactor->timer_ =
      Fd::Open([] { return ::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK); });
  if (!reactor->epoll_.valid() || !reactor->timer_.valid()) {
    return absl::ResourceExhaustedError(ErrnoText("epoll and timer descriptors", errno));
  }
  // Edge-triggered, so nobody has to read it.
  absl::Status added = reactor->Add(reactor->timer_.get(), nullptr, EPOLLIN | EPOLLET);
  if (!added.ok()) return added;
  return reactor;
}

absl::Status Reactor::Add(int fd, Watcher* watcher, uint32_t events) {
  epoll_event event = EventFor(watcher, events);
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    return absl::ResourceExhaustedError(ErrnoText("epoll_ctl", errno));
  }
  return absl::OkStatus();
}

void Reactor::Change(int fd, Watcher* watcher, uint32_t events) {
  epoll_event event = EventFor(watcher, events);
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event);
}

void Reactor::Remove(int fd) { ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr); }

void Reactor::Collect() {
  Ready ready;
  // What does not fit into `ready` is reported by the next call.
  WaitFor(ready, 0);
  Dispatch(ready, {});
}

void Reactor::WaitFor(Ready& out, int timeout_ms) const {
  out.count = ::epoll_wait(epoll_.get(), out.events.data(), static_cast<int>(out.events.size()),
                           timeout_ms);
}

void Reactor::Dispatch(const Ready& ready, std::span<const Watcher* const> gone) {
  for (int i = 0; i < ready.count; ++i) {
    const epoll_event& event = ready.events[static_cast<size_t>(i)];
    auto* const watcher = static_cast<Watcher*>(event.data.ptr);
    if (watcher == nullptr || std::ranges::find(gone, watcher) != gone.end()) continue;
    watcher->OnReady(event.events);
  }
}

void Reactor::SetTimer(std::optional<Time> when) {
  if (when == when_) return;
  when_ = when;
  itimerspec spec{};
  if (when.has_value()) {
    // Zero would disarm the timer; a time in the past fires at once.
    const int64_t ns = std::max<int64_t>(when->time_since_epoch().count(), 1);
    spec.it_value.tv_sec = ns / 1'000'000'000;
    spec.it_value.tv_nsec = ns % 1'000'000'000;
  }
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

}  // namespace kvxfer::net
