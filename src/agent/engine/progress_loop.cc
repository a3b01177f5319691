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
#include <utility>

#include "src/core/base/cpus.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr Duration kDefaultSpin = std::chrono::microseconds(20);
constexpr int kSpinCpus = 4;
// Of the rounds of those who drive, each so many look at the descriptors: rings and completion
// queues show themselves in memory, and a look costs as much as several rounds that find nothing.
// Seldom, where what came lately did not come that way; but within a while at the latest, a longer
// one where waking looks anyway.
constexpr uint32_t kLookOften = 4;
constexpr uint32_t kLookSeldom = 256;
constexpr Duration kLookWithin = std::chrono::microseconds(20);
constexpr Duration kLookAwake = std::chrono::milliseconds(1);
// The clock costs as much as a round that finds nothing.
constexpr uint32_t kClockEvery = 8;

// How events of epoll name the loop's own descriptor.
constexpr uint32_t kOwnEvent = ProgressLoop::kMaxFds;
constexpr uint64_t kOwnBit = uint64_t{1} << kOwnEvent;

uint64_t Readable(std::span<const epoll_event> events) {
  uint64_t readable = 0;
  for (const epoll_event& event : events) readable |= uint64_t{1} << event.data.u32;
  return readable;
}

// epoll_wait until then, or for a minute; in whole milliseconds, rounded up, so that a timer is due
// when it returns, where the kernel has nothing finer (epoll_pwait2: Linux 5.11).
int EpollUntil(int epoll_fd, std::span<epoll_event> events, Time until) {
  static std::atomic<bool> fine{true};
  const Time now = Now();
  const Duration left =
      until > now ? std::min<Duration>(until - now, std::chrono::minutes(1)) : Duration::zero();
  const int size = static_cast<int>(events.size());
#ifdef SYS_epoll_pwait2
  if (fine.load(std::memory_order_relaxed)) {
    const auto seconds = std::chrono::floor<std::chrono::seconds>(left);
    const timespec timeout{.tv_sec = seconds.count(), .tv_nsec = Duration(left - seconds).count()};
    const auto n = syscall(SYS_epoll_pwait2, epoll_fd, events.data(), size, &timeout, nullptr, 0);
    // EPERM: containers whose filter is older than the call.
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
  if (fds.size() > kMaxFds) return absl::InvalidArgumentError("too many backends");
  std::vector<int> all = fds;
  all.push_back(event_fd_);
  for (uint32_t i = 0; i < all.size(); ++i) {
    const bool own = i == fds.size();
    epoll_event event{.events = EPOLLIN, .data = {.u32 = own ? kOwnEvent : i}};
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, all[i], &event) != 0) {
      return absl::InternalError(ErrnoText("epoll_ctl on a backend's wait descriptor", errno));
    }
  }
  background_ = std::thread([this] { Background(); });
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
    empty_cv_.wait(lock, [this] { return drivers_.empty() && (seat_.empty() || !driven_); });
  }
  if (background_.joinable()) background_.join();
  RunLastCommands();
}

// Whoever was told that a command is taken relies on it, also where everybody left before its turn.
void ProgressLoop::RunLastCommands() {
  {
    std::lock_guard lock(mu_);
    taking_ = false;
  }
  RunCommands();
}

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
  // EAGAIN means that the counter is full: the sleeper wakes all the same.
  [[maybe_unused]] ssize_t n = write(event_fd_, &one, sizeof(one));
}

void ProgressLoop::Follow(const SeatState::Step& step) {
  if (step.kick) Kick();
  if (step.returned) returned_cv_.notify_all();
  if (step.unpark != 0) {
    Driver& driver = **std::ranges::find(drivers_, step.unpark, &Driver::id);
    driver.seated = true;
    driver.cv.notify_all();
  }
  if (stopping_ && seat_.empty()) empty_cv_.notify_all();
}

// The seat is taken or borrowed, or whoever is awake in it finds the command marked.
bool ProgressLoop::Submit(Command command) {
  bool borrowed = false;
  {
    std::lock_guard lock(mu_);
    if (!taking_) return false;
    commands_.push_back(std::move(command));
    commanded_.store(true, std::memory_order_release);
    if (stopping_ || !seat_.Submit().entered) return true;
    borrowed = seat_.borrowed();
    TakeCommands();
  }
  Visit(borrowed, [this] { driven_->Post(); });
  return true;
}

void ProgressLoop::Progress() {
  bool borrowed = false;
  {
    std::lock_guard lock(mu_);
    if (stopping_ || !seat_.Submit().entered) return;
    borrowed = seat_.borrowed();
    TakeCommands();
  }
  Visit(borrowed, [this] { driven_->Round(Look(Now()), Now(), Driven::Stays); });
}

// In the seat, which is left again: for as long as work is marked. Only a sleeper from whom it is
// `borrowed` relies on the wait descriptors afterwards; others look for themselves.
void ProgressLoop::Visit(bool borrowed, absl::FunctionRef<void()> work) {
  for (;;) {
    RunTaken();
    work();
    const bool armed = !borrowed || driven_->Arm();
    const Time next = borrowed ? driven_->NextTimer() : Time::max();
    std::lock_guard lock(mu_);
    const SeatState::Step step = seat_.LeaveSubmit(!armed || next < sleep_until_);
    Follow(step);
    if (step.wake_background) standby_.Fire();
    if (!step.again) return;
    TakeCommands();
  }
}

bool ProgressLoop::Call(absl::FunctionRef<void()> command) {
  std::atomic<bool> done{false};
  // Should the loop stop first, the command must not run after this frame is gone.
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
    if (driver->seated) {
      if (seat_.sleeping()) Kick();
    } else {
      driver->cv.notify_all();
    }
  }
}

bool ProgressLoop::DriveUntil(const void* key, absl::FunctionRef<bool()> done, Time deadline,
                              bool answers) {
  Driver driver{.key = key, .answers = answers};
  std::unique_lock lock(mu_);
  if (done()) return true;
  if (stopping_) return false;
  driver.id = ++last_driver_;
  drivers_.push_back(&driver);
  const SeatState::Step entry = seat_.EnterDriver(driver.id);
  driver.seated = entry.entered;
  Follow(entry);
  while (!driver.seated && !stopping_ && !done() && Now() < deadline) {
    if (deadline == Time::max()) {
      driver.cv.wait(lock);
    } else {
      driver.cv.wait_until(lock, deadline);
    }
  }
  if (!driver.seated) seat_.Unpark(driver.id);
  if (driver.seated) {
    lock.unlock();
    const Time left = DriveSeated(driver, done, deadline);
    lock.lock();
    LeaveSeat(lock, &SeatState::LeaveDriver);
    // Should nobody come back, the background thread is to notice.
    if (seat_.empty() && !stopping_) standby_.PutOff(left);
  }
  std::erase(drivers_, &driver);
  if (stopping_) empty_cv_.notify_all();
  lock.unlock();
  return done();
}

// Returns when it left, or a moment before.
Time ProgressLoop::DriveSeated(Driver& driver, absl::FunctionRef<bool()> done, Time deadline) {
  const Duration spin = SpinsUseful() ? (spin_ < Duration::zero() ? kDefaultSpin : spin_)
                                      : std::max(spin_, Duration::zero());
  // Once it has said so it leaves, whatever another thread takes away meanwhile: what was kept back
  // for it must not lie here while it sleeps.
  bool leaves = false;
  const auto leaving = [&] { return leaves = driver.answers && done(); };
  Time now = Now();
  Time spin_until = now + spin;
  const Duration look_within = spin > Duration::zero() ? kLookWithin : kLookAwake;
  uint64_t readable = now - looked_ >= look_within ? Look(now) : 0;
  bool whole = true;
  for (uint32_t round = 0; !done() && !stopping_; ++round) {
    // Between two rounds that found nothing, spinning only glances.
    whole = RunCommands() || whole;
    const bool busy =
        whole ? driven_->Round(readable, now, leaving) : driven_->Glance(now, leaving);
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

// Which descriptors are readable now.
uint64_t ProgressLoop::Look(Time now) {
  std::array<epoll_event, kMaxFds + 1> events;
  const int n = epoll_wait(epoll_fd_, events.data(), static_cast<int>(events.size()), 0);
  looked_ = now;
  unlooked_ = 0;
  const uint64_t readable = Readable({events.data(), static_cast<size_t>(std::max(n, 0))});
  if ((readable & kOwnBit) == 0) return readable;
  std::lock_guard lock(mu_);
  TakeKick();
  return readable & ~kOwnBit;
}

// mu_ held, by the owner.
void ProgressLoop::TakeKick() {
  // Somebody else sleeps, and it was meant for them: a submitter has the seat from a sleeper.
  if (seat_.background_leaving() || seat_.sleeping()) return;
  uint64_t count;
  [[maybe_unused]] ssize_t got = read(event_fd_, &count, sizeof(count));
}

// Sleeps in epoll until something happens. False: the seat was taken (background only).
bool ProgressLoop::SleepOnce(Time until, bool background, uint64_t& readable) {
  readable = 0;
  if (!driven_->Arm()) {
    readable = Look(Now());
    return true;
  }
  const Time wake = std::min(until, driven_->NextTimer());
  bool sleeps = false;
  {
    std::lock_guard lock(mu_);
    const bool woken = std::ranges::any_of(
        drivers_, [](const Driver* driver) { return driver->seated && driver->woken; });
    sleeps = !stopping_ && !woken && seat_.BeginSleep();
    if (sleeps) sleep_until_ = wake;
  }
  if (!sleeps) {
    readable = Look(Now());
    return true;
  }
  std::array<epoll_event, kMaxFds + 1> events;
  const int n = EpollUntil(epoll_fd_, events, wake);
  std::unique_lock lock(mu_);
  for (;;) {
    switch (seat_.EndSleep(background)) {
      case SeatState::Wakened::kLost:
        return false;
      case SeatState::Wakened::kBorrowed:
        returned_cv_.wait(lock);
        continue;
      case SeatState::Wakened::kOwner:
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

// `lock` is of mu_ and held, also afterwards.
void ProgressLoop::LeaveSeat(std::unique_lock<std::mutex>& lock,
                             SeatState::Step (SeatState::*leave)()) {
  for (;;) {
    const SeatState::Step step = (seat_.*leave)();
    Follow(step);
    if (!step.again) return;
    if (stopping_) {
      Follow((seat_.*leave)());
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

// A driver that came while the background thread was awake: it shall not sleep beside it, to be
// told by a thread that is woken first.
bool ProgressLoop::HandOver() {
  std::lock_guard lock(mu_);
  const SeatState::Step step = seat_.HandOver();
  Follow(step);
  return step.unpark != 0;
}

void ProgressLoop::Background() {
  std::unique_lock lock(mu_);
  while (!stopping_) {
    // While somebody has the seat there is nothing to watch: who leaves it sets the timer.
    if (!seat_.BackgroundStandBy()) standby_.PutOff(Now());
    lock.unlock();
    standby_.Wait();
    lock.lock();
    standby_.Fired();
    if (stopping_) return;
    if (!seat_.BackgroundTake().entered) continue;
    lock.unlock();
    bool seated = true;
    uint64_t readable = 0;
    while (seated && !stopping_) {
      RunCommands();
      const bool busy = driven_->Round(readable, Now(), Driven::Stays);
      if (HandOver()) {
        seated = false;
      } else if (busy) {
        readable = Look(Now());
      } else {
        seated = SleepOnce(Time::max(), true, readable);
      }
    }
    lock.lock();
    if (seated) LeaveSeat(lock, &SeatState::LeaveBackground);
  }
}

}  // namespace kvxfer
