#include "src/agent/engine/standby_timer.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "src/core/base/strings.h"

namespace kvxfer {

StandbyTimer::~StandbyTimer() {
  if (fd_ >= 0) close(fd_);
}

absl::Status StandbyTimer::Open() {
  fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
  if (fd_ >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(ErrnoText("cannot create the agent's timer", errno));
}

void StandbyTimer::PutOff(Time now) {
  // Leaves the timer alone while it has at least an eighth of the interval left: a system call per
  // 7/8 of an interval at most.
  if (due_ - now >= kInterval / 8) return;
  due_ = now + kInterval;
  Set(kInterval);
}

void StandbyTimer::Fire() {
  due_ = Time{};
  // Zero would disarm the timer.
  Set(Duration(1));
}

void StandbyTimer::Set(Duration from_now) {
  itimerspec once{};
  once.it_value.tv_nsec = from_now.count();
  timerfd_settime(fd_, 0, &once, nullptr);
}

void StandbyTimer::Wait() {
  uint64_t fired = 0;
  while (read(fd_, &fired, sizeof(fired)) < 0 && errno == EINTR) {
  }
}

}  // namespace kvxfer
