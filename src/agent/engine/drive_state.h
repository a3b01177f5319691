// Decides which thread drives the agent's progress: the pure state behind ProgressLoop
// (progress_loop.h). The *driver* is the thread that makes progress now; only the driver may touch
// the backends and the state of the runtime. Each method is one atomic step: its caller holds one
// mutex. tests/unit/agent/engine/drive_state_test.cc explores every interleaving of submit, wait,
// release and sleep on small cases and finds no lost wake-up.
//
// The rules:
//  - A submitter becomes the driver if there is none. If the driver sleeps in epoll, the submitter
//    borrows its place, posts, and returns the place. If the driver is awake, the submitter sets
//    `pending_`, which the driver checks before it sleeps or leaves.
//  - A thread that hands work over becomes the driver if there is none. If the driver sleeps, it
//    wakes the driver, which then runs all commands.
//  - A waiter (a thread in DriveUntil; the names with Driver mean one) becomes the driver if there
//    is none, or replaces the background thread while that one sleeps. Otherwise it parks. A waiter
//    that leaves hands driving to a parked waiter.
//  - The background thread becomes the driver when nobody has driven for an interval.
//
// Thread-safety: none; the caller's mutex guards it.

#ifndef KVXFER_AGENT_ENGINE_DRIVE_STATE_H_
#define KVXFER_AGENT_ENGINE_DRIVE_STATE_H_

#include <compare>
#include <cstdint>
#include <deque>

namespace kvxfer {

class DriveState {
 public:
  using DriverId = uint64_t;  // never 0

  // What the caller must do after the step.
  struct Step {
    bool entered = false;   // the caller is the driver now
    bool again = false;     // work was marked: run it, then leave again
    bool kick = false;      // wake the thread that sleeps in epoll
    bool returned = false;  // wake the sleeper that waits for the return of its place
    DriverId unpark = 0;    // this waiter is the driver now: wake it
    // The background thread stands by without a timer, and nobody drives now.
    bool wake_background = false;
  };
  enum class Wakened : uint8_t { kOwner, kBorrowed, kLost };

  Step Submit();
  Step HandWork();
  // `kick_sleeper`: the borrower changed something that the sleeper would not notice.
  Step LeaveSubmit(bool kick_sleeper);

  Step EnterDriver(DriverId id);
  Step LeaveDriver();
  // A parked waiter stops waiting. `entered`: it was made the driver meanwhile and must call
  // LeaveDriver.
  Step Unpark(DriverId id);

  // False: work was marked meanwhile; run another round. True: sleep in epoll now.
  bool BeginSleep();
  // The result after epoll. kOwner: the caller drives again. kBorrowed: call again once the
  // borrower has returned the place. kLost: a waiter has taken over (background thread only).
  Wakened EndSleep(bool background);

  // `entered`: nobody was driving.
  Step BackgroundTake();
  // True: the background thread stands by without a timer and is woken once nobody drives.
  // False: nobody drives now, so use a timer.
  bool BackgroundStandBy();
  Step LeaveBackground();
  // The background thread, awake, hands driving to a parked waiter, if there is one.
  Step HandOver();

  bool sleeping() const { return sleeping_; }
  // The submitter that drives has borrowed the place of a sleeper.
  bool borrowed() const { return borrowed_; }
  // A waiter has replaced the background thread, which is still in epoll. The wake-up that was
  // written for it must not be consumed by the thread that sleeps next.
  bool background_leaving() const { return background_leaving_; }
  bool empty() const { return place_ == Place::kNobody; }

  auto operator<=>(const DriveState&) const = default;  // for the model test

 private:
  enum class Place : uint8_t { kNobody, kSubmitter, kDriver, kBackground };

  Step Vacate();

  Place place_ = Place::kNobody;
  DriverId driver_ = 0;
  bool sleeping_ = false;
  bool borrowed_ = false;
  bool pending_ = false;
  bool background_waits_ = false;
  bool background_leaving_ = false;
  std::deque<DriverId> parked_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_DRIVE_STATE_H_
