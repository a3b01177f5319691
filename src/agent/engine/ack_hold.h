// Holds pure acknowledgements back for a driver that is about to answer a notification. The answer
// then goes out before the acknowledgement, or piggybacks it, which saves the peer a wake-up.
//
// Thread-safety: none; only the driver calls it. Pure: time is a parameter.

#ifndef KVXFER_AGENT_ENGINE_ACK_HOLD_H_
#define KVXFER_AGENT_ENGINE_ACK_HOLD_H_

#include <cstdint>

#include "src/core/base/clock.h"

namespace kvxfer {

class AckHold {
 public:
  // A driver that leaves usually posts its answer within this time. No acknowledgement is held back
  // longer.
  static constexpr Duration kAnswersWithin = std::chrono::microseconds(50);
  // If the answer was later than that kLateAcks times in a row, the next kEagerAcks
  // acknowledgements are sent at once, because the held-back ones had to wait for the background
  // thread. A single late answer may come from a thread that was preempted.
  static constexpr uint32_t kLateAcks = 2;
  static constexpr uint32_t kEagerAcks = 64;

  // The engine sends what can be sent. `leaving`: the driver is about to leave. True:
  // acknowledgements are held back this time.
  bool Holds(bool leaving, Time now);

 private:
  bool MayBegin();
  void OnSent(Time now);

  Time since_{};        // since when they are held back; zero: none are
  uint32_t late_ = 0;   // how often in a row the application did not answer in time
  uint32_t eager_ = 0;  // how many of the next acknowledgements are sent at once
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_ACK_HOLD_H_
