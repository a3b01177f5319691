// Who may drive the agent's progress: the pure state behind DriverSeat (progress_loop.h). Each
// method is one atomic step (its caller holds one mutex);
// tests/unit/agent/engine/seat_state_test.cc walks every interleaving of submit, wait, release and
// sleep on small cases and finds no lost wake-up.
//
// One seat. Whoever has it may touch the backends and all state of the runtime:
//  - a submitter takes an empty seat, or borrows the seat of an owner that sleeps in epoll, posts,
//    and gives it back; finding it busy, it marks `pending`, which an owner looks at before it
//    sleeps or leaves;
//  - a driver (a thread in Wait) takes an empty seat, or the background thread's while that
//    sleeps; else it parks. A leaving driver hands the seat to one that is parked;
//  - the background thread takes the seat when it has been empty for an interval.

#ifndef KVXFER_AGENT_ENGINE_SEAT_STATE_H_
#define KVXFER_AGENT_ENGINE_SEAT_STATE_H_

#include <compare>
#include <cstdint>
#include <deque>

namespace kvxfer {

class SeatState {
 public:
  using DriverId = uint64_t;  // never 0

  // What the caller must do after the step, besides what `entered` and `again` say.
  struct Step {
    bool entered = false;          // the caller has the seat
    bool again = false;            // work was marked: drain it, then leave again
    bool kick = false;             // wake the sleeper in epoll
    bool returned = false;         // tell a sleeper that waits for its borrowed seat
    DriverId unpark = 0;           // this driver has the seat now: wake it
    bool wake_background = false;  // it stands by without a timer: the seat is empty now
  };
  enum class Wakened : uint8_t { kOwner, kBorrowed, kLost };

  Step Submit();
  // `kick_sleeper`: the borrower left something that the sleeper would not notice.
  Step LeaveSubmit(bool kick_sleeper);

  Step EnterDriver(DriverId id);
  Step LeaveDriver();
  // A parked driver gives up waiting. entered: it was handed the seat meanwhile and must leave it
  // by LeaveDriver.
  Step Unpark(DriverId id);

  // False: work was marked meanwhile, go round once more. True: sleep in epoll now.
  bool BeginSleep();
  // After epoll: kOwner, awake again; kBorrowed, call again once told that it was returned; kLost,
  // the seat was taken (background only).
  Wakened EndSleep(bool background);

  // entered: the seat was empty.
  Step BackgroundTake();
  // The background thread will stand by without a timer, to be told when the seat empties; false:
  // it is empty now, use a timer.
  bool BackgroundStandBy();
  Step LeaveBackground();
  // The background thread, awake, gives its seat to a driver that is parked, if there is one.
  Step HandOver();

  bool sleeping() const { return sleeping_; }
  // The submitter in the seat has it from a sleeper.
  bool borrowed() const { return borrowed_; }
  // The background thread lost its seat while it slept and has not left epoll yet: the wake-up that
  // was written for it must not be taken by the one who sleeps next.
  bool background_leaving() const { return background_leaving_; }
  bool empty() const { return owner_ == Owner::kNobody; }

  auto operator<=>(const SeatState&) const = default;  // for the model test

 private:
  enum class Owner : uint8_t { kNobody, kSubmitter, kDriver, kBackground };

  Step Vacate();

  Owner owner_ = Owner::kNobody;
  DriverId driver_ = 0;
  bool sleeping_ = false;
  bool borrowed_ = false;
  bool pending_ = false;
  bool background_waits_ = false;
  bool background_leaving_ = false;
  std::deque<DriverId> parked_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_SEAT_STATE_H_
