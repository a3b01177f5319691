#include "src/agent/engine/progress_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/cpus.h"
#include "src/core/base/strings.h"
#include "src/core/base/thread.h"
#include "src/cuda/driver.h"

namespace kvxfer {
namespace {

// The default of AgentOptions::spin. With fewer than kSpinCpus CPUs, a spinning thread would take
// the CPU from the thread that it waits for.
constexpr Duration kDefaultSpin = std::chrono::microseconds(20);
constexpr int kSpinCpus = 4;
// A driver that does not sleep looks at the descriptors in some of its rounds only: rings and
// completion queues show new events in memory, and one look costs as much as several rounds that
// find nothing. It looks in every kLookOften-th round while a look last found an event, and less
// and less often, down to every kLookSeldom-th round, while events came without one. At the latest
// it looks after kLookWithin when it spins, or after kLookAwake when it does not spin: going to
// sleep looks anyway.
constexpr uint32_t kLookOften = 4;
constexpr uint32_t kLookSeldom = 256;
constexpr Duration kLookWithin = std::chrono::microseconds(20);
constexpr Duration kLookAwake = std::chrono::milliseconds(1);
// A driver that wakes by itself within this is not woken for work that is handed over: one that
// looks at ready flags wakes as often.
constexpr Duration kHandedWithin = std::chrono::microseconds(100);
// Reading the clock costs as much as a round that finds nothing, so not every such round reads it.
constexpr uint32_t kClockEvery = 8;

// A sleep that is shorter has a time-out of its own: the timer would have to be set for it, and set
// again after it.
constexpr Duration kShortSleep = std::chrono::milliseconds(1);

// What epoll events of the loop's own descriptors carry in place of a backend's index.
constexpr uint32_t kOwnEvent = ProgressLoop::kMaxFds;
constexpr uint64_t kOwnBit = uint64_t{1} << kOwnEvent;
constexpr uint32_t kTimer = kOwnEvent + 1;
using Events = std::array<epoll_event, kTimer + 1>;

// That the timer has fired is only there to wake.
uint64_t Readable(std::span<const epoll_event> events) {
  uint64_t readable = 0;
  for (const epoll_event& event : events) {
    if (event.data.u32 != kTimer) readable |= uint64_t{1} << event.data.u32;
  }
  return readable;
}

// Waits in epoll for at most `left`. Linux before 5.11 has no epoll_pwait2: there the time is
// rounded up to whole milliseconds, so that a timer is due when this returns.
int EpollFor(int epoll_fd, std::span<epoll_event> events, Duration left) {
  static std::atomic<bool> fine{true};
  const int size = static_cast<int>(events.size());
#ifdef SYS_epoll_pwait2
  if (fine.load(std::memory_order_relaxed)) {
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = Duration(left - seconds).count()};
    const auto n = syscall(SYS_epoll_pwait2, epoll_fd, events.data(), size, &timeout, nullptr, 0);
    // ENOSYS: an old kernel. EPERM: a container whose seccomp filter is older than the call.
    if (n >= 0 || (errno != ENOSYS && errno != EPERM)) return static_cast<int>(n);
    fine.store(false, std::memory_order_relaxed);
  }
#endif
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return epoll_wait(epoll_fd, events.data(), size, static_cast<int>(ms));
}

}  // namespace

ProgressLoop::~ProgressLoop() {
  Stop();
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (event_fd_ >= 0) close(event_fd_);
}

absl::Status ProgressLoop::Start(Driven* driven, const std::vector<int>& fds) {
  driven_ = driven;
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  event_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (epoll_fd_ < 0 || event_fd_ < 0) {
    return absl::ResourceExhaustedError(
        ErrnoText("cannot create the agent's epoll and event descriptors", errno));
  }
  if (auto status = standby_.Open(); !status.ok()) return status;
  if (auto status = timer_.Open(); !status.ok()) return status;
  if (fds.size() > kMaxFds) return absl::InvalidArgumentError("too many backends");
  std::vector<std::pair<int, uint32_t>> all = {{event_fd_, kOwnEvent}, {timer_.fd(), kTimer}};
  for (uint32_t i = 0; i < fds.size(); ++i) all.emplace_back(fds[i], i);
  for (const auto& [fd, index] : all) {
    epoll_event event{.events = EPOLLIN, .data = {.u32 = index}};
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) {
      return absl::InternalError(ErrnoText("epoll_ctl on a backend's wait descriptor", errno));
    }
  }
  try {
    background_ = StartThread("kvxfer-agent", [this] { Background(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("no thread for the agent: ", error.what(),
                                                     "; raise the limit of threads (ulimit -u)"));
  }
  return absl::OkStatus();
}

void ProgressLoop::Stop() {
  {
    std::unique_lock lock(mu_);
    if (stopping_) return;
    stopping_ = true;
    Kick();
    standby_.Fire();
    for (Driver* driver : drivers_) driver->cv.notify_all();
    // Waits until no thread is inside. Without Start nobody ever drove.
    empty_cv_.wait(lock, [this] { return drivers_.empty() && (drive_state_.empty() || !driven_); });
  }
  if (background_.joinable()) background_.join();
  RunLastCommands();
}

// A caller whose command was accepted relies on it, even if every thread left before the command's
// turn.
void ProgressLoop::RunLastCommands() {
  {
    std::lock_guard lock(mu_);
    taking_ = false;
  }
  RunCommands();
}

// Relaxed: Submit sets the flag under mu_ too. A driver that reads it late still finds `pending_`
// in drive_state_ before it sleeps or leaves.
void ProgressLoop::TakeCommands() {
  running_.swap(commands_);
  commanded_.store(false, std::memory_order_relaxed);
}

void ProgressLoop::RunTaken() {
  for (Command& command : running_) command();
  running_.clear();
}

bool ProgressLoop::RunCommands() {
  if (!commanded_.load(std::memory_order_acquire)) return false;
  {
    std::lock_guard lock(mu_);
    TakeCommands();
  }
  RunTaken();
  return true;
}

void ProgressLoop::Kick() {
  const uint64_t one = 1;
  // EAGAIN: the counter is full, so the sleeper wakes anyway.
  [[maybe_unused]] ssize_t n = write(event_fd_, &one, sizeof(one));
}

void ProgressLoop::Follow(const DriveState::Step& step) {
  if (step.kick) Kick();
  if (step.returned) returned_cv_.notify_all();
  if (step.unpark != 0) {
    Driver& driver = **std::ranges::find(drivers_, step.unpark, &Driver::id);
    driver.driving = true;
    driver.cv.notify_all();
  }
  if (stopping_ && drive_state_.empty()) empty_cv_.notify_all();
}

// If another thread drives, the command is marked and that thread runs it before it sleeps or
// leaves.
bool ProgressLoop::Submit(Command command, While asleep) {
  bool borrowed = false;
  {
    std::unique_lock lock(mu_);
    if (!taking_) return false;
    commands_.push_back(std::move(command));
    commanded_.store(true, std::memory_order_release);
    if (stopping_) return true;  // RunLastCommands runs it
    const DriveState::Step step =
        asleep == While::kDriverWakes ? drive_state_.HandWork() : drive_state_.Submit();
    if (step.kick && sleep_until_ > Now() + kHandedWithin) {
      // Without the lock, which the woken thread takes at once. If it is awake by then, or has lost
      // its place, its next round or the new driver runs the command all the same. A waiter that
      // leaves as it wakes does not: then the background thread does, within a millisecond.
      lock.unlock();
      Kick();
    }
    if (!step.entered) return true;
    borrowed = drive_state_.borrowed();
    TakeCommands();
  }
  Visit(borrowed, [this] { driven_->Post(); });
  return true;
}

void ProgressLoop::Progress() {
  bool borrowed = false;
  {
    std::lock_guard lock(mu_);
    if (stopping_ || !drive_state_.Submit().entered) return;
    borrowed = drive_state_.borrowed();
    TakeCommands();
  }
  Visit(borrowed, [this] { driven_->Round(Look(Now()), Now(), Driven::Stays); });
}

// Runs `work` as the driver and leaves again; repeats it while work was marked meanwhile. Only a
// sleeper whose place is `borrowed` relies on the armed descriptors and on its timer afterwards. A
// driver that comes later looks for itself.
void ProgressLoop::Visit(bool borrowed, absl::FunctionRef<void()> work) {
  for (;;) {
    RunTaken();
    work();
    const bool armed = !borrowed || driven_->Arm();
    const Time next = borrowed ? driven_->NextTimer() : Time::max();
    std::lock_guard lock(mu_);
    // Wake the sleeper if a descriptor would not show the work that is left, or if a timer is due
    // earlier than its own.
    const DriveState::Step step = drive_state_.LeaveSubmit(!armed || next < sleep_until_);
    Follow(step);
    // Nobody drives now, and the background thread stands by without a timer: it has to take over.
    if (step.wake_background) standby_.Fire();
    if (!step.again) return;
    TakeCommands();
  }
}

bool ProgressLoop::Call(absl::FunctionRef<void()> command) {
  std::atomic<bool> done{false};
  // If the loop stops first, the command must not run after this frame has returned. `second` says
  // that it has.
  auto state = std::make_shared<std::pair<std::mutex, bool>>();
  const bool taken = Submit([this, state, &command, &done] {
    std::lock_guard lock(state->first);
    if (state->second) return;
    command();
    done.store(true, std::memory_order_release);
    Wake(&done);
  });
  if (!taken) return false;
  const bool ran = DriveUntil(
      &done, [&] { return done.load(std::memory_order_acquire); }, Time::max());
  std::lock_guard lock(state->first);
  state->second = true;
  return ran || done.load(std::memory_order_acquire);
}

void ProgressLoop::Wake(const void* key) {
  std::lock_guard lock(mu_);
  for (Driver* driver : drivers_) {
    if (driver->key != key) continue;
    driver->woken = true;
    // A driver that is awake evaluates done() in every round; only a sleeping one needs the
    // eventfd.
    if (driver->driving) {
      if (drive_state_.sleeping()) Kick();
    } else {
      driver->cv.notify_all();
    }
  }
}

bool ProgressLoop::DriveUntil(const void* key, absl::FunctionRef<bool()> done, Time deadline,
                              bool answers) {
  Driver driver{.key = key, .answers = answers};
  std::unique_lock lock(mu_);
  // Evaluated under mu_, which Wake takes too: no change between this check and parking is missed.
  if (done()) return true;
  if (stopping_) return false;
  driver.id = ++last_driver_;
  drivers_.push_back(&driver);
  const DriveState::Step entry = drive_state_.EnterDriver(driver.id);
  driver.driving = entry.entered;
  Follow(entry);
  while (!driver.driving && !stopping_ && !done() && Now() < deadline) {
    if (deadline == Time::max()) {
      driver.cv.wait(lock);
    } else {
      driver.cv.wait_until(lock, deadline);
    }
  }
  if (!driver.driving) drive_state_.Unpark(driver.id);
  if (driver.driving) {
    lock.unlock();
    const Time left = DriveAsDriver(driver, done, deadline);
    lock.lock();
    StopDriving(lock, &DriveState::LeaveDriver);
    // If nobody comes back, the timer makes the background thread take over.
    if (drive_state_.empty() && !stopping_) standby_.PutOff(left);
  }
  std::erase(drivers_, &driver);
  if (stopping_) empty_cv_.notify_all();
  lock.unlock();
  return done();
}

// Returns when it left, or shortly before.
Time ProgressLoop::DriveAsDriver(Driver& driver, absl::FunctionRef<bool()> done, Time deadline) {
  const Duration spin = SpinsUseful() ? (spin_ < Duration::zero() ? kDefaultSpin : spin_)
                                      : std::max(spin_, Duration::zero());
  // Once `leaving` has returned true the driver must leave, even if another thread takes away what
  // it waited for: acknowledgements were held back for it and must not wait while it sleeps.
  bool leaves = false;
  const auto leaving = [&] { return leaves = driver.answers && done(); };
  Time now = Now();
  Time spin_until = now + spin;
  const Duration look_within = spin > Duration::zero() ? kLookWithin : kLookAwake;
  uint64_t readable = now - looked_ >= look_within ? Look(now) : 0;
  bool whole = true;
  for (uint32_t round = 0; !done() && !stopping_; ++round) {
    // A spinning thread only glances between two full rounds.
    whole = RunCommands() || whole;
    const bool busy =
        whole ? driven_->Round(readable, now, leaving) : driven_->QuickRound(now, leaving);
    if (leaves) return now;
    if (busy || whole || round % kClockEvery == 0) now = Now();
    if (now >= deadline) return now;
    if (busy) {
      look_every_ = readable != 0 ? kLookOften : std::min(look_every_ * 2, kLookSeldom);
      spin_until = now + spin;
    }
    const bool spins = now < spin_until;
    if (!busy && whole && !spins) {
      SleepOnce(deadline, false, readable);
      now = looked_;
      std::lock_guard lock(mu_);
      driver.woken = false;
    } else {
      const bool look = ++unlooked_ >= look_every_ || now - looked_ >= look_within ||
                        (busy && readable != 0 && spins);
      readable = look ? Look(now) : 0;
      whole = look || !spins;
    }
  }
  return now;
}

// The descriptors that are readable now, without sleeping.
uint64_t ProgressLoop::Look(Time now) {
  Events events;
  const int n = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
  looked_ = now;
  unlooked_ = 0;
  const uint64_t readable = Readable({events.data(), static_cast<size_t>(std::max(n, 0))});
  if ((readable & kOwnBit) == 0) return readable;
  std::lock_guard lock(mu_);
  TakeKick();
  return readable & ~kOwnBit;
}

// Consumes the wake-up. mu_ is held, by the driver.
void ProgressLoop::TakeKick() {
  // Not if it is meant for a thread that has not left epoll yet: the background thread after it was
  // replaced, or a sleeper whose place this submitter has borrowed.
  if (drive_state_.background_leaving() || drive_state_.sleeping()) return;
  uint64_t count;
  [[maybe_unused]] ssize_t got = read(event_fd_, &count, sizeof(count));
}

// Sleeps in epoll until something happens or `until`. False: a waiter has taken over (background
// thread only).
bool ProgressLoop::SleepOnce(Time until, bool background, uint64_t& readable) {
  readable = 0;
  if (!driven_->Arm()) {
    readable = Look(Now());
    return true;
  }
  const Time wake = std::min(until, driven_->NextTimer());
  const Time now = Now();
  const bool is_short = wake < now + kShortSleep;
  // Before somebody else may drive. Also for a short sleep, which a timer that has fired would end.
  timer_.SleepUntil(is_short ? Time::max() : wake, now);
  bool sleeps = false;
  {
    std::lock_guard lock(mu_);
    // Wake sets `woken` under mu_ and kicks only a sleeper: a Wake before BeginSleep is seen here.
    const bool woken = std::ranges::any_of(
        drivers_, [](const Driver* driver) { return driver->driving && driver->woken; });
    sleeps = !stopping_ && !woken && drive_state_.BeginSleep();
    if (sleeps) sleep_until_ = wake;
  }
  if (!sleeps) {
    readable = Look(Now());
    return true;
  }
  Events events;
  const int n = is_short
                    ? EpollFor(epoll_fd_, events, std::max(wake - now, Duration::zero()))
                    : epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), -1);
  std::unique_lock lock(mu_);
  for (;;) {
    switch (drive_state_.EndSleep(background)) {
      case DriveState::Wakened::kLost:
        return false;
      // A submitter works in this thread's place and returns it.
      case DriveState::Wakened::kBorrowed:
        returned_cv_.wait(lock);
        continue;
      case DriveState::Wakened::kOwner:
        break;
    }
    break;
  }
  looked_ = Now();
  unlooked_ = 0;
  readable = Readable({events.data(), static_cast<size_t>(std::max(n, 0))});
  if ((readable & kOwnBit) != 0) TakeKick();
  readable &= ~kOwnBit;
  return true;
}

// Stops driving, after running what was marked meanwhile. `lock` holds mu_ at entry and at return.
void ProgressLoop::StopDriving(std::unique_lock<std::mutex>& lock,
                               DriveState::Step (DriveState::*leave)()) {
  for (;;) {
    const DriveState::Step step = (drive_state_.*leave)();
    Follow(step);
    if (!step.again) return;
    // The marked commands are left to RunLastCommands; the mark is cleared, so this leaves.
    if (stopping_) {
      Follow((drive_state_.*leave)());
      return;
    }
    TakeCommands();
    lock.unlock();
    RunTaken();
    driven_->Post();
    lock.lock();
  }
}

bool ProgressLoop::SpinsUseful() const {
  static const int cpus = UsableCpus();
  return cpus >= kSpinCpus;
}

// A waiter that came while the background thread was awake takes over from it. Otherwise it would
// stay parked and be woken by the background thread: two wake-ups for each event.
bool ProgressLoop::HandOver() {
  std::lock_guard lock(mu_);
  const DriveState::Step step = drive_state_.HandOver();
  Follow(step);
  return step.unpark != 0;
}

void ProgressLoop::Background() {
  cuda::ContextScope::OwnThread();
  std::unique_lock lock(mu_);
  while (!stopping_) {
    // While another thread drives there is nothing to watch: a thread that stops driving sets the
    // timer.
    if (!drive_state_.BackgroundStandBy()) standby_.PutOff(Now());
    lock.unlock();
    standby_.Wait();
    lock.lock();
    standby_.Fired();
    if (stopping_) return;
    if (!drive_state_.BackgroundTake().entered) continue;
    lock.unlock();
    bool driving = true;
    uint64_t readable = 0;
    while (driving && !stopping_) {
      RunCommands();
      const bool busy = driven_->Round(readable, Now(), Driven::Stays);
      if (HandOver()) {
        driving = false;
      } else if (busy) {
        readable = Look(Now());
      } else {
        driving = SleepOnce(Time::max(), true, readable);
      }
    }
    lock.lock();
    if (driving) StopDriving(lock, &DriveState::LeaveBackground);
  }
}

}  // namespace kvxfer
