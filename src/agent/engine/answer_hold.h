// Holds back what only answers the peer, such as the acknowledgement of an arrival, for a driver
// that is about to answer a notification. Both then go to the peer in one message, which saves it a
// wake-up.
//
// Thread-safety: none; only the driver calls it. Pure: time is a parameter.

#ifndef KVXFER_AGENT_ENGINE_ANSWER_HOLD_H_
#define KVXFER_AGENT_ENGINE_ANSWER_HOLD_H_

#include <cstdint>

#include "src/core/base/clock.h"

namespace kvxfer {

class AnswerHold {
 public:
  // A driver that leaves usually posts the application's answer within this time. Later rounds hold
  // nothing back. The background thread makes one if nobody else does.
  static constexpr Duration kAnswersWithin = std::chrono::microseconds(50);
  // If the application was later than that kLate times in a row, the next kEager are sent at once,
  // because those that were held back had to wait for the background thread. A single late one may
  // come from a thread that was preempted.
  static constexpr uint32_t kLate = 2;
  static constexpr uint32_t kEager = 64;

  // The engine sends what can be sent. `leaving`: the driver is about to leave. True: answers to
  // the peer are held back this time.
  bool Holds(bool leaving, Time now);

 private:
  bool MayBegin();
  void OnSent(Time now);

  Time since_{};        // since when they are held back; zero: none are
  uint32_t late_ = 0;   // how often in a row the application did not answer in time
  uint32_t eager_ = 0;  // how many of the next answers are sent at once
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_ANSWER_HOLD_H_
