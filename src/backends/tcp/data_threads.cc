// DataThreads: lending rails, taking them back, and reporting what happened on them.

#include <algorithm>
#include <utility>

#include "src/backends/tcp/data_thread.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer::tcp {
namespace {

// How many events one Poll reports at most.
constexpr size_t kMaxAtOnce = 1024;

}  // namespace

// The threads that the system has; without any, rails stay with the driver.
bool DataThreads::Start() {
  if (std::exchange(started_, true)) return !threads_.empty();
  absl::StatusOr<std::unique_ptr<Bell>> bell = Bell::Create(reactor_);
  absl::Status status = bell.status();
  if (status.ok()) bell_ = *std::move(bell);
  while (status.ok() && threads_.size() < threads_wanted_) {
    absl::StatusOr<std::unique_ptr<DataThread>> thread = DataThread::Start(regions_, bell_.get());
    status = thread.status();
    if (status.ok()) threads_.push_back(*std::move(thread));
  }
  if (!status.ok()) {
    Log(LogLevel::kWarning, "tcp has {} data threads instead of {}: {}", threads_.size(),
        threads_wanted_, ToStd(status.message()));
  }
  return !threads_.empty();
}

std::unique_ptr<LentRail> DataThreads::Lend(TcpRail* rail, RailHome* home) {
  if (!asked_for() || !Start()) return nullptr;
  DataThread* const thread = threads_[turn_++ % threads_.size()].get();
  auto lent = std::make_unique<LentRail>(thread, rail, home);
  const DataThread::Hold hold(thread);
  if (const absl::Status moved = rail->MoveTo(lent.get(), lent.get()); !moved.ok()) {
    lent->Fail(absl::UnavailableError(moved.message()));
  }
  thread->Add(lent.get());
  return lent;
}

absl::Status DataThreads::Recall(std::unique_ptr<LentRail> rail, net::StreamClient* client) {
  absl::Status moved;
  {
    const DataThread::Hold hold(rail->thread());
    rail->thread()->Forget(rail.get());
    moved = rail->MoveHome(client);
  }
  DeliverAll();
  return moved;
}

void DataThreads::Drop(std::unique_ptr<LentRail> rail, net::StreamClient* client) {
  {
    const DataThread::Hold hold(rail->thread());
    rail->thread()->Forget(rail.get());
    // Nobody asks for its readiness any more.
    rail->MoveHome(client).IgnoreError();
  }
  Collect();
  std::erase_if(events_, [&](const RailEvent& event) { return event.rail == rail.get(); });
}

void DataThreads::Forget(const RailHome* home) {
  std::erase_if(failures_, [home](const Failure& failure) { return failure.home == home; });
}

std::vector<DataThread::Hold> DataThreads::Forget(const net::Region& region) {
  std::vector<DataThread::Hold> holds;
  for (const auto& thread : threads_) {
    holds.emplace_back(thread.get());
    thread->cache().Forget(region);
  }
  return holds;
}

void DataThreads::Collect() {
  for (const auto& thread : threads_) thread->TakeEvents(events_);
}

void DataThreads::DeliverOne() {
  RailEvent event = std::move(events_.front());
  events_.pop_front();
  LentRail& rail = *event.rail;
  if (event.kind != RailEvent::Kind::kFailed) return rail.Deliver(std::move(event));
  failures_.push_back({.home = rail.home(),
                       .rail = rail.rail().index(),
                       .life = rail.rail().life(),
                       .why = std::move(event.status)});
}

void DataThreads::DeliverAll() {
  Collect();
  while (!events_.empty()) DeliverOne();
}

void DataThreads::Deliver(const net::EventSink& sink) {
  if (threads_.empty()) return;
  bell_->Disarm();
  if (events_.empty()) Collect();
  // Leaves space for messages, which endless data must not delay for ever. Some events take none.
  const size_t leave = sink.space() / 2;
  for (size_t n = 0; n < kMaxAtOnce && sink.space() > leave && !events_.empty(); ++n) DeliverOne();
  // A failure takes rails back, which delivers events and may find further failures.
  while (!failures_.empty()) {
    const Failure failure = std::move(failures_.back());
    failures_.pop_back();
    failure.home->OnLentFailed(failure.rail, failure.life, failure.why);
  }
}

bool DataThreads::Arm() {
  if (threads_.empty()) return true;
  bell_->Arm();
  const bool none = events_.empty() && failures_.empty() &&
                    std::ranges::none_of(threads_, &DataThread::has_events);
  if (!none) bell_->Disarm();
  return none;
}

}  // namespace kvxfer::tcp
