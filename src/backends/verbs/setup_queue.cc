#include "src/backends/verbs/setup_queue.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "src/core/base/clock.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/core/base/thread.h"

namespace kvxfer::verbs {
namespace {

// Far longer than a device needs, or than the address resolution of a live host takes.
constexpr Duration kSlow = std::chrono::milliseconds(100);

}  // namespace

absl::Status SetupQueue::Open(net::Reactor* reactor) {
  bell_ = net::Fd::Open([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); });
  if (!bell_.valid()) return absl::ResourceExhaustedError(ErrnoText("eventfd", errno));
  reactor_ = reactor;
  return reactor_->Add(bell_.get(), &watcher_);
}

uint64_t SetupQueue::Start(Job job, Client* client, uint32_t tag) {
  const uint64_t ticket = ++last_ticket_;
  owners_[ticket] = {.client = client, .tag = tag};
  {
    std::lock_guard lock(mutex_);
    waiting_.push_back({.ticket = ticket, .client = client, .job = std::move(job)});
    if (threads_.size() < kThreads && threads_.size() < waiting_.size() + running_.size()) {
      AddThread();
    }
  }
  wake_.notify_all();
  return ticket;
}

// If no thread can be created, the existing ones do the work; if there are none, the jobs fail.
void SetupQueue::AddThread() {
  try {
    threads_.push_back(StartThread("kvxfer-verbs", [this] { Loop(); }));
  } catch (const std::system_error& error) {
    Log(LogLevel::kWarning, "verbs: {} threads set up queue pairs: {}; raise the limit (ulimit -u)",
        threads_.size(), error.what());
    if (!threads_.empty()) return;
    for (Entry& entry : waiting_) {
      done_.push_back({.ticket = entry.ticket,
                       .status = absl::ResourceExhaustedError(
                           "verbs: no thread to set a queue pair up; raise the limit (ulimit -u)"),
                       .pair = std::move(entry.job.pair)});
    }
    waiting_.clear();
    ready_.store(true, std::memory_order_release);
    ::eventfd_write(bell_.get(), 1);
  }
}

void SetupQueue::Cancel(uint64_t ticket) {
  if (owners_.erase(ticket) == 0) return;
  std::unique_ptr<QueuePair> pair;
  {
    std::lock_guard lock(mutex_);
    const auto it = std::ranges::find(waiting_, ticket, &Entry::ticket);
    // A thread runs the job: Work destroys its queue pair when the thread is done.
    if (it == waiting_.end()) return;
    pair = std::move(it->job.pair);
    waiting_.erase(it);
  }
  destroyer_->Destroy(std::move(pair));
}

void SetupQueue::Work() {
  if (!HasWork()) return;
  std::vector<Result> done;
  {
    std::lock_guard lock(mutex_);
    done.swap(done_);
    // Relaxed: `mutex_` is held, and threads set the flag under it too.
    ready_.store(false, std::memory_order_relaxed);
  }
  for (Result& result : done) {
    const auto it = owners_.find(result.ticket);
    if (it == owners_.end()) {
      destroyer_->Destroy(std::move(result.pair));
      continue;
    }
    const Owner owner = it->second;
    owners_.erase(it);
    owner.client->OnSetUp(owner.tag, std::move(result.status), std::move(result.pair));
  }
}

void SetupQueue::Stop() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (Entry& entry : waiting_) destroyer_->Destroy(std::move(entry.job.pair));
  for (Result& result : done_) destroyer_->Destroy(std::move(result.pair));
  waiting_.clear();
  done_.clear();
  owners_.clear();
  if (bell_.valid()) reactor_->Remove(bell_.get());
  bell_ = {};
}

// The oldest job that may run now.
std::list<SetupQueue::Entry>::iterator SetupQueue::Next() {
  const auto slow = static_cast<size_t>(std::ranges::count(running_, true, &Running::slow));
  return std::ranges::find_if(waiting_, [&](const Entry& entry) {
    const auto same = std::ranges::count(running_, entry.client, &Running::client);
    return static_cast<size_t>(same) < kOfOneClient && (slow < kOfSlow || !IsSlow(entry.job));
  });
}

void SetupQueue::Loop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    auto next = waiting_.end();
    wake_.wait(lock, [&] { return stop_ || (next = Next()) != waiting_.end(); });
    if (stop_) return;
    Entry entry = std::move(*next);
    waiting_.erase(next);
    const uint64_t ticket = entry.ticket;
    // Copied: the job is moved away, and its address is needed below.
    const std::optional<QpAddress> to = entry.job.to;
    running_.push_back({.ticket = ticket, .client = entry.client, .slow = IsSlow(entry.job)});
    lock.unlock();
    const Time begin = Now();
    Result result = Run(std::move(entry));
    const bool slow = Now() - begin >= kSlow;
    lock.lock();
    std::erase_if(running_, [&](const Running& running) { return running.ticket == ticket; });
    if (to && slow) {
      if (slow_.size() >= kMaxSlow) {
        slow_.erase(std::ranges::min_element(slow_, {}, [](const auto& e) { return e.second; }));
      }
      slow_[to->port.gid] = ++slows_;
    } else if (to) {
      slow_.erase(to->port.gid);
    }
    done_.push_back(std::move(result));
    ready_.store(true, std::memory_order_release);
    ::eventfd_write(bell_.get(), 1);
    wake_.notify_all();
  }
}

SetupQueue::Result SetupQueue::Run(Entry entry) const {
  Job& job = entry.job;
  Result result{.ticket = entry.ticket, .pair = std::move(job.pair)};
  if (result.pair == nullptr) {
    absl::StatusOr<std::unique_ptr<QueuePair>> made =
        QueuePair::Create(job.device, job.port, job.depths, options_);
    if (!made.ok()) {
      result.status = made.status();
      return result;
    }
    result.pair = *std::move(made);
    result.status = result.pair->Init();
  }
  if (result.status.ok() && job.to) result.status = result.pair->Connect(*job.to);
  return result;
}

}  // namespace kvxfer::verbs
