// Wakes the driver that sleeps in epoll when a timer of the agent is due. A time-out of epoll would
// do, but to set and to cancel one for each sleep costs several microseconds on a virtual machine,
// and the next timer of an agent is mostly further away than its next event. So the timer stays as
// it is while it fires early enough: the driver then wakes once for nothing, and sets it anew.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_ENGINE_WAKE_TIMER_H_
#define KVXFER_AGENT_ENGINE_WAKE_TIMER_H_

#include "absl/status/status.h"
#include "src/core/base/clock.h"

namespace kvxfer {

class WakeTimer {
 public:
  WakeTimer() = default;
  ~WakeTimer();
  WakeTimer(const WakeTimer&) = delete;
  WakeTimer& operator=(const WakeTimer&) = delete;

  absl::Status Open();
  // Readable once the timer has fired, until SleepUntil sets it again.
  int fd() const { return fd_; }
  // Makes fd() readable at `when` or earlier, but after `now`. `when` is after `now`; Time::max():
  // never.
  void SleepUntil(Time when, Time now);

 private:
  int fd_ = -1;
  Time set_ = Time::max();  // when it fires, or has fired
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_WAKE_TIMER_H_
