#include "src/agent/engine/wake_timer.h"

#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>

#include "src/core/base/strings.h"

namespace kvxfer {

WakeTimer::~WakeTimer() {
  if (fd_ >= 0) close(fd_);
}

absl::Status WakeTimer::Open() {
  fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (fd_ >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      ErrnoText("cannot create the timer that wakes the driver", errno));
}

void WakeTimer::SleepUntil(Time when, Time now) {
  if (now < set_ && set_ <= when) return;
  set_ = when;
  // Setting it also takes back that it has fired. All zero: it does not fire.
  itimerspec once{};
  if (when != Time::max()) {
    const Duration at = when.time_since_epoch();
    const auto seconds = std::chrono::floor<std::chrono::seconds>(at);
    once.it_value = {.tv_sec = seconds.count(), .tv_nsec = Duration(at - seconds).count()};
  }
  timerfd_settime(fd_, TFD_TIMER_ABSTIME, &once, nullptr);
}

}  // namespace kvxfer
