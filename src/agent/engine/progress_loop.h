// Makes the agent's progress. One thread at a time is the driver; a caller that waits drives by
// itself and does not need another thread. docs/threading.md describes the scheme; drive_state.h is
// its pure part.
//
// Thread-safety: Submit, Call, DriveUntil, Progress and Wake from any thread; the driver may call
// Wake as well.

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
#include "src/agent/engine/drive_state.h"
#include "src/agent/engine/standby_timer.h"
#include "src/agent/engine/wake_timer.h"
#include "src/core/base/clock.h"

namespace kvxfer {

// The time at which a time-out that starts now expires. A year or more means never.
inline Time After(Duration timeout) {
  return timeout >= std::chrono::hours(24 * 365) ? Time::max() : Now() + timeout;
}

// What ProgressLoop drives. Only the driver calls these methods.
class Driven {
 public:
  virtual ~Driven() = default;
  // Whether the driver is about to leave and will probably post at once; asked after the events. If
  // it returns true, pure acknowledgements may be held back until the next round or Post.
  using Leaving = absl::FunctionRef<bool()>;
  static bool Stays() { return false; }

  // Handles events and timers, and sends what can be sent. True: anything was done. `readable`: bit
  // i is set if descriptor i of Start may be readable; the others are not worth a system call.
  virtual bool Round(uint64_t readable, Time now, Leaving leaving) = 0;
  // A round that returns at once, without sending or looking at timers, if there is no event.
  // Spinning threads call it between two rounds. It lets backends look for what has probably
  // arrived.
  virtual bool QuickRound(Time now, Leaving leaving) = 0;
  // Sends what can be sent, without polling; for submitters.
  virtual void Post() = 0;
  // Prepares for sleeping on the wait descriptors. False: there is work that they would not show.
  virtual bool Arm() = 0;
  // When Round must run again even if nothing happens until then.
  virtual Time NextTimer() = 0;
};

class ProgressLoop {
 public:
  using Command = absl::AnyInvocable<void()>;

  static constexpr size_t kMaxFds = 63;

  explicit ProgressLoop(Duration spin) : spin_(spin) {}
  ~ProgressLoop();

  // `driven` outlives Stop. `fds`, at most kMaxFds, are watched while the driver sleeps.
  absl::Status Start(Driven* driven, const std::vector<int>& fds);
  bool running() const { return background_.joinable(); }
  bool stopped() {
    std::lock_guard lock(mu_);
    return stopping_.load();
  }
  // Runs the commands that were accepted. Afterwards no command runs or is accepted, no thread is
  // inside, and DriveUntil returns false at once.
  void Stop();

  // Which thread runs a command that comes while the driver sleeps, and sends what follows from it.
  enum class While : uint8_t {
    kSubmitterDrives,  // this thread, in its place: it is done soonest
    kDriverWakes,      // the driver, within 0.1 ms: the caller pays for a wake-up at most
  };
  // Accepts `command`, which runs soon on the driver; on this thread if nobody else drives. False:
  // the loop was stopped and did not accept it.
  bool Submit(Command command, While asleep = While::kSubmitterDrives);
  // Runs `command` on the driver and returns after it has run. False: the loop was stopped, and it
  // did not run.
  bool Call(absl::FunctionRef<void()> command);
  // One round, if nobody else drives.
  void Progress();
  // Drives, or parks while another thread drives, until done() or `deadline`. done() may be called
  // by a thread that does not drive, and must become true before Wake(key). `answers`: the caller
  // will probably post something once done() is true.
  bool DriveUntil(const void* key, absl::FunctionRef<bool()> done, Time deadline,
                  bool answers = false);
  // Makes the threads in DriveUntil(key) evaluate their done() again.
  void Wake(const void* key);

 private:
  // A thread in DriveUntil. It drives (`driving`) or is parked on `cv`.
  struct Driver {
    DriveState::DriverId id = 0;
    const void* key = nullptr;
    bool answers = false;
    std::condition_variable cv{};
    bool woken = false;
    bool driving = false;
  };

  void TakeCommands();  // mu_ held, by the driver
  void RunTaken();
  bool RunCommands();  // true when there were any
  void RunLastCommands();
  void Visit(bool borrowed, absl::FunctionRef<void()> work);
  void Follow(const DriveState::Step& step);  // mu_ held
  void Kick();
  void TakeKick();
  uint64_t Look(Time now);
  bool SleepOnce(Time until, bool background, uint64_t& readable);
  Time DriveAsDriver(Driver& driver, absl::FunctionRef<bool()> done, Time deadline);
  void StopDriving(std::unique_lock<std::mutex>& lock, DriveState::Step (DriveState::*leave)());
  bool SpinsUseful() const;
  bool HandOver();
  void Background();

  const Duration spin_;
  Driven* driven_ = nullptr;
  int epoll_fd_ = -1;
  int event_fd_ = -1;
  std::thread background_;

  // Whether there are commands; lets the driver check without the lock.
  std::atomic<bool> commanded_{false};
  std::vector<Command> running_;  // used by the driver; kept to reuse its memory

  // Used by the driver: how often it looks at the descriptors.
  uint32_t look_every_ = 1;  // look after this many rounds
  uint32_t unlooked_ = 0;    // rounds since the last look
  Time looked_{};            // time of the last look
  WakeTimer timer_;

  std::mutex mu_;  // guards everything below
  std::vector<Command> commands_;
  bool taking_ = true;  // commands are accepted
  DriveState drive_state_;
  std::atomic<bool> stopping_{false};  // also read without mu_
  DriveState::DriverId last_driver_ = 0;
  std::vector<Driver*> drivers_;  // threads in DriveUntil; few
  std::condition_variable returned_cv_;
  StandbyTimer standby_;  // guarded except for its Wait
  std::condition_variable empty_cv_;
  Time sleep_until_{};  // when the sleeping driver wakes by itself
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_PROGRESS_LOOP_H_
