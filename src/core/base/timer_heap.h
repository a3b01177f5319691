// The timers of one driver in a heap, the earliest first: to set one, and to find those that are
// due, does not depend on how many there are.
//
// Lifetime: the heap outlives its timers. Thread-safety: none; one driver. Pure: time is a
// parameter.

#ifndef KVXFER_CORE_BASE_TIMER_HEAP_H_
#define KVXFER_CORE_BASE_TIMER_HEAP_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/core/base/clock.h"

namespace kvxfer {

class TimerHeap {
 public:
  class Timer {
   public:
    class User {
     public:
      virtual ~User() = default;
      // The time has come. The timer is unset, and may be set again here, or destroyed.
      virtual void OnTimer(Time now) = 0;
    };

    // Both outlive the timer. It is unset.
    Timer(TimerHeap* heap, User* user) : heap_(heap), user_(user) {}
    ~Timer() { Set(Time::max()); }
    Timer(const Timer&) = delete;
    Timer& operator=(const Timer&) = delete;

    // In place of what was set before. Time::max(): not at all.
    void Set(Time due);
    // Time::max(): it is unset.
    Time due() const { return due_; }

   private:
    friend class TimerHeap;
    static constexpr size_t kNowhere = SIZE_MAX;

    TimerHeap* const heap_;
    User* const user_;
    Time due_ = Time::max();
    size_t at_ = kNowhere;  // in timers_; while `falls_due_`, in due_
    bool falls_due_ = false;
  };

  TimerHeap() = default;
  TimerHeap(const TimerHeap&) = delete;
  TimerHeap& operator=(const TimerHeap&) = delete;

  // When the next one is due. Time::max(): none is set.
  Time next() const { return timers_.empty() ? Time::max() : timers_.front()->due_; }
  // Tells the users of the timers that are due by `now`, in order of time. A timer that is set
  // meanwhile, for whenever, comes in a later call. Not to be called by a user.
  void Run(Time now);

 private:
  void Place(Timer* timer, size_t at) {
    timers_[at] = timer;
    timer->at_ = at;
  }
  void Rise(Timer* timer, size_t at);
  void Sink(Timer* timer, size_t at);
  void Take(Timer& timer);

  std::vector<Timer*> timers_;  // a binary heap; those that are set
  std::vector<Timer*> due_;     // that Run tells; null: told, or destroyed or set meanwhile
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_TIMER_HEAP_H_
