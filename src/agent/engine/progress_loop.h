// Drives the runtime: one owner at a time, no thread of its own in the way of a caller that waits.
// docs/threading.md tells the whole scheme; seat_state.h is its pure part.
//
// Thread-safety: Submit, Call, DriveUntil and Wake from any thread; Wake also under ownership.

#ifndef KVXFER_AGENT_ENGINE_PROGRESS_LOOP_H_
#define KVXFER_AGENT_ENGINE_PROGRESS_LOOP_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "src/agent/engine/seat_state.h"
#include "src/agent/engine/standby_timer.h"
#include "src/core/base/clock.h"

namespace kvxfer {

// The moment at which a time-out that starts now is over; a year or more means never.
inline Time After(Duration timeout) {
  return timeout >= std::chrono::hours(24 * 365) ? Time::max() : Now() + timeout;
}

// What is driven. Every call comes from the owner of the seat.
class Driven {
 public:
  virtual ~Driven() = default;
  // Whether the driver is about to leave and likely to post at once; asked after the events. Where
  // it says so, mere acknowledgements may stay back until the next round or Post.
  using Leaving = absl::FunctionRef<bool()>;
  static bool Stays() { return false; }

  // Handles events and timers and sends what can be sent; true when anything was done. `readable`:
  // bit i says that descriptor i of Start may be; the others are not worth a system call.
  virtual bool Round(uint64_t readable, Time now, Leaving leaving) = 0;
  // A round that ends at once, having sent nothing and looked at no timer, when there is no event;
  // for those who spin, between two rounds. Asks backends for what is likely to have come.
  virtual bool Glance(Time now, Leaving leaving) = 0;
  // Sends what can be sent without polling; for submitters.
  virtual void Post() = 0;
  // Ready to sleep on the wait descriptors: false when there is work they would not show.
  virtual bool Arm() = 0;
  // When Round must run again even if nothing happens.
  virtual Time NextTimer() = 0;
};

class ProgressLoop {
 public:
  using Command = absl::AnyInvocable<void()>;

  static constexpr size_t kMaxFds = 63;

  explicit ProgressLoop(Duration spin) : spin_(spin) {}
  ~ProgressLoop();

  // `driven` outlives Stop; `fds` are watched while sleeping; at most kMaxFds.
  absl::Status Start(Driven* driven, const std::vector<int>& fds);
  bool running() const { return background_.joinable(); }
  bool stopped() {
    std::lock_guard lock(mu_);
    return stopping_.load();
  }
  // Runs the commands that were taken. None runs, none is taken and no thread is inside afterwards;
  // DriveUntil returns false at once.
  void Stop();

  // Takes `command`, which runs under ownership, soon; on this thread when the seat is free. False:
  // stopped, not taken.
  bool Submit(Command command);
  // Runs `command` under ownership and returns after it has run. False: stopped, not run.
  bool Call(absl::FunctionRef<void()> command);
  // One round, if the seat is free.
  void Progress();
  // Drives, or parks while another thread drives, until done() or `deadline`; done() is called
  // without ownership and must become true before Wake(key).
  // `answers`: the caller is likely to post something once done() is true.
  bool DriveUntil(const void* key, absl::FunctionRef<bool()> done, Time deadline,
                  bool answers = false);
  // Threads in DriveUntil(key) look at their done() again.
  void Wake(const void* key);

 private:
  struct Driver {
    SeatState::DriverId id = 0;
    const void* key = nullptr;
    bool answers = false;
    std::condition_variable cv{};
    bool woken = false;
    bool seated = false;
  };

  void TakeCommands();  // mu_ held, by the owner
  void RunTaken();
  bool RunCommands();  // true when there were any
  void RunLastCommands();
  void Visit(bool borrowed, absl::FunctionRef<void()> work);
  void Follow(const SeatState::Step& step);  // mu_ held
  void Kick();
  void TakeKick();
  uint64_t Look(Time now);
  bool SleepOnce(Time until, bool background, uint64_t& readable);
  Time DriveSeated(Driver& driver, absl::FunctionRef<bool()> done, Time deadline);
  void LeaveSeat(std::unique_lock<std::mutex>& lock, SeatState::Step (SeatState::*leave)());
  bool SpinsUseful() const;
  bool HandOver();
  void Background();

  const Duration spin_;
  Driven* driven_ = nullptr;
  int epoll_fd_ = -1;
  int event_fd_ = -1;
  std::thread background_;

  std::atomic<bool> commanded_{false};  // there are commands; so that nobody locks to find none
  std::vector<Command> running_;        // by the owner; kept for its memory

  // By the owner: when it looks at the descriptors.
  uint32_t look_every_ = 1;  // so many rounds
  uint32_t unlooked_ = 0;    // rounds since it did
  Time looked_{};            // when it did

  std::mutex mu_;  // guards all below
  std::vector<Command> commands_;
  bool taking_ = true;  // commands
  SeatState seat_;
  std::atomic<bool> stopping_{false};  // also read without mu_
  SeatState::DriverId last_driver_ = 0;
  std::vector<Driver*> drivers_;  // few: threads that wait
  std::condition_variable returned_cv_;
  StandbyTimer standby_;  // but for its Wait
  std::condition_variable empty_cv_;
  Time sleep_until_{};  // when the sleeper wakes by itself
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_PROGRESS_LOOP_H_
