// Wakes the background thread once the seat has been empty for a while: a timer that those who
// leave the seat put off, so that under a steady load it never fires and nobody is woken to find
// that all is well.
//
// Thread-safety: Open once, before all else; Wait by one thread; the others from any, one at a
// time.

#ifndef KVXFER_AGENT_ENGINE_STANDBY_TIMER_H_
#define KVXFER_AGENT_ENGINE_STANDBY_TIMER_H_

#include "absl/status/status.h"
#include "src/core/base/clock.h"

namespace kvxfer {

class StandbyTimer {
 public:
  // How long the seat may be empty.
  static constexpr Duration kInterval = std::chrono::milliseconds(1);

  StandbyTimer() = default;
  ~StandbyTimer();
  StandbyTimer(const StandbyTimer&) = delete;
  StandbyTimer& operator=(const StandbyTimer&) = delete;

  absl::Status Open();
  // Fires kInterval after `now` at the latest, and not in the first eighth of that. Seldom a system
  // call, however often it is called: setting a timer takes 10 us on a virtual machine.
  void PutOff(Time now);
  // Fires at once.
  void Fire();
  // Until it has fired since the last Wait. Fired follows, after which PutOff sets it again,
  // however old the time that it is told.
  void Wait();
  void Fired() { due_ = Time{}; }

 private:
  void Set(Duration from_now);

  int fd_ = -1;
  Time due_{};  // zero: it is not set, or told to fire at once
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_STANDBY_TIMER_H_
