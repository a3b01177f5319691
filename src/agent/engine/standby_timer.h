// Wakes the background thread once nobody has driven for a while. A thread that stops driving
// postpones the timer, so under a steady load it never fires and wakes no thread for nothing.
//
// Thread-safety: Open once, first; Wait by one thread; the others from any thread, one at a time.

#ifndef KVXFER_AGENT_ENGINE_STANDBY_TIMER_H_
#define KVXFER_AGENT_ENGINE_STANDBY_TIMER_H_

#include "absl/status/status.h"
#include "src/core/base/clock.h"

namespace kvxfer {

class StandbyTimer {
 public:
  // How long nobody may drive.
  static constexpr Duration kInterval = std::chrono::milliseconds(1);

  StandbyTimer() = default;
  ~StandbyTimer();
  StandbyTimer(const StandbyTimer&) = delete;
  StandbyTimer& operator=(const StandbyTimer&) = delete;

  absl::Status Open();
  // Makes the timer fire at most kInterval after `now`, and not within the first eighth of
  // kInterval. Rarely makes a system call, however often it is called: setting a timer takes 10 us
  // on a virtual machine.
  void PutOff(Time now);
  // Makes the timer fire at once.
  void Fire();
  // Blocks until the timer has fired since the last Wait. The caller then calls Fired, after which
  // PutOff sets the timer again, even for a `now` in the past.
  void Wait();
  void Fired() { due_ = Time{}; }

 private:
  void Set(Duration from_now);

  int fd_ = -1;
  Time due_{};  // zero: not set, or set to fire at once
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_STANDBY_TIMER_H_
