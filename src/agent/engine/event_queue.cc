#include "src/agent/engine/event_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr AgentEventKinds kKnown = AgentEventKinds::kAll | AgentEventKinds::kWatchedEnd;

absl::StatusOr<int> MakeFd() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd >= 0) return fd;
  return absl::ResourceExhaustedError(ErrnoText("cannot create an eventfd for events", errno));
}

void Signal(int fd) {
  // A write that fails with EAGAIN left the counter full, so the descriptor is readable all the
  // same.
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(fd, &one, sizeof(one));
}

void Unsignal(int fd) {
  uint64_t count;
  [[maybe_unused]] ssize_t n = read(fd, &count, sizeof(count));
}

}  // namespace

EventQueue::~EventQueue() {
  for (const Watcher& watcher : watchers_) {
    Signal(watcher.fd);
    close(watcher.fd);
  }
  if (spare_fd_ >= 0) close(spare_fd_);
  // One by one: a record that freed the next one, and so on, would need a deep stack.
  for (Ends& ends : ends_) {
    const EndLane lane = &ends == &ends_.front() ? EndLane::kPosted : EndLane::kWatched;
    while (ends.first != nullptr) TakeEnd(lane);
  }
}

absl::Status EventQueue::Open() {
  const auto fd = MakeFd();
  if (fd.ok()) spare_fd_ = *fd;
  return fd.status();
}

absl::StatusOr<int> EventQueue::Fd(AgentEventKinds kinds) {
  if ((kinds & kKnown) != kinds || kinds == AgentEventKinds::kNone) {
    return absl::InvalidArgumentError(absl::StrCat("no descriptor of event kinds ",
                                                   static_cast<int>(kinds),
                                                   ": name at least one, and only "
                                                   "those of AgentEventKinds"));
  }
  std::lock_guard lock(mu_);
  const auto known = std::ranges::find(watchers_, kinds, &Watcher::kinds);
  if (known != watchers_.end()) return known->fd;
  const absl::StatusOr<int> fd = spare_fd_ >= 0 ? std::exchange(spare_fd_, -1) : MakeFd();
  if (!fd.ok()) return fd.status();
  watchers_.push_back({.kinds = kinds, .fd = *fd});
  Settle();
  return *fd;
}

uint64_t EventQueue::FrontOf(Lane lane) const {
  const auto front = [](const auto& queue) {
    return queue.empty() ? UINT64_MAX : queue.front().order;
  };
  const auto end = [this](EndLane of) {
    const auto index = static_cast<size_t>(of);
    const TransferPtr& first = ends_[index].first;
    return first == nullptr ? UINT64_MAX : first->places[index].order;
  };
  switch (lane) {
    case Lane::kNotifications:
      return front(notifications_);
    case Lane::kPosted:
      return end(EndLane::kPosted);
    case Lane::kWatched:
      return end(EndLane::kWatched);
    case Lane::kPeers:
      return front(peers_);
    case Lane::kLeases:
      return front(leases_);
    case Lane::kLost:
      return front(lost_);
  }
  return UINT64_MAX;
}

void EventQueue::OnPushed(Lane lane) {
  Tell(queued_.load(std::memory_order_relaxed) | KindOf(lane));
}

void EventQueue::Settle() {
  AgentEventKinds queued = AgentEventKinds::kNone;
  for (size_t i = 0; i < kLanes; ++i) {
    const auto lane = static_cast<Lane>(i);
    if (FrontOf(lane) != UINT64_MAX) queued = queued | KindOf(lane);
  }
  Tell(queued);
}

// Says what is queued: to those who ask without the lock, and by the descriptors.
void EventQueue::Tell(AgentEventKinds queued) {
  queued_.store(queued, std::memory_order_release);
  notified_.store(notifications_.size(), std::memory_order_release);
  for (Watcher& watcher : watchers_) {
    const bool some = (queued & watcher.kinds) != AgentEventKinds::kNone;
    if (some == watcher.readable) continue;
    watcher.readable = some;
    some ? Signal(watcher.fd) : Unsignal(watcher.fd);
  }
}

void EventQueue::WakeWaiters() {
  if (loop_ != nullptr) loop_->Wake(this);
}

void EventQueue::Push(Notification&& notification, Credit&& credit) {
  std::lock_guard lock(mu_);
  if (on_notification_ != nullptr) {
    return Dispatch({.notification = std::move(notification), .credit = std::move(credit)});
  }
  Queued<Arrived>& queued = notifications_.emplace_back();
  queued.order = ++last_order_;
  queued.event.notification = std::move(notification);
  queued.event.credit = std::move(credit);
  OnPushed(Lane::kNotifications);
}

void EventQueue::Push(PeerEvent event) {
  {
    std::lock_guard lock(mu_);
    if (on_peer_ != nullptr) {
      dispatcher_->Run([callback = on_peer_, event = std::move(event)] { (*callback)(event); });
      return;
    }
    if (peers_.size() == kMaxPeerEvents) peers_.pop_front();
    peers_.push_back({++last_order_, std::move(event)});
    OnPushed(Lane::kPeers);
  }
  WakeWaiters();
}

void EventQueue::Push(KvEvent event) {
  {
    std::lock_guard lock(mu_);
    const bool is_lost = event.kind == KvEventKind::kRequestLost;
    (is_lost ? lost_ : leases_).push_back({++last_order_, std::move(event)});
    if (lost_.size() > kMaxLostRequests) lost_.pop_front();
    OnPushed(is_lost ? Lane::kLost : Lane::kLeases);
  }
  WakeWaiters();
}

bool EventQueue::ReserveEnd(EndLane lane) {
  auto& reserved = reserved_[static_cast<size_t>(lane)];
  if (reserved.fetch_add(1, std::memory_order_relaxed) < kMaxUnreadEnds) return true;
  ReturnPlace(lane);
  return false;
}

void EventQueue::ReturnPlace(EndLane lane) {
  reserved_[static_cast<size_t>(lane)].fetch_sub(1, std::memory_order_relaxed);
}

void EventQueue::PushEnd(const TransferPtr& record, EndLane lane, uint64_t user_word) {
  const auto index = static_cast<size_t>(lane);
  {
    std::lock_guard lock(mu_);
    internal::EndPlace& place = record->places[index];
    place.user_word = user_word;
    if (place.queued) return ReturnPlace(lane);
    place.queued = true;
    place.order = ++last_order_;
    Ends& ends = ends_[index];
    (ends.last == nullptr ? ends.first : ends.last->places[index].next) = record;
    ends.last = record.get();
    OnPushed(lane == EndLane::kPosted ? Lane::kPosted : Lane::kWatched);
  }
  WakeWaiters();
}

TransferEnd EventQueue::TakeEnd(EndLane lane) {
  const auto index = static_cast<size_t>(lane);
  Ends& ends = ends_[index];
  TransferPtr record = std::move(ends.first);
  internal::EndPlace& place = record->places[index];
  ends.first = std::move(place.next);
  if (ends.first == nullptr) ends.last = nullptr;
  place.queued = false;
  ReturnPlace(lane);
  const uint64_t user_word = place.user_word;
  return {.user_word = user_word, .transfer = internal::TransferRecord::Handle(std::move(record))};
}

void EventQueue::Take(Lane lane, AgentEvent& out, Credits& credits) {
  const auto pop = [&out](auto& queue) {
    out = std::move(queue.front().event);
    queue.pop_front();
  };
  switch (lane) {
    case Lane::kNotifications: {
      Arrived& arrived = notifications_.front().event;
      out = std::move(arrived.notification);
      credits.push_back(std::move(arrived.credit));
      notifications_.pop_front();
      return;
    }
    case Lane::kPosted:
      out = TakeEnd(EndLane::kPosted);
      return;
    case Lane::kWatched:
      out = TakeEnd(EndLane::kWatched);
      return;
    case Lane::kPeers:
      return pop(peers_);
    case Lane::kLeases:
      return pop(leases_);
    case Lane::kLost:
      return pop(lost_);
  }
}

size_t EventQueue::Poll(std::span<AgentEvent> out, AgentEventKinds kinds) {
  size_t count = 0;
  Credits credits;
  {
    std::lock_guard lock(mu_);
    for (; count < out.size(); ++count) {
      uint64_t oldest = UINT64_MAX;
      Lane from{};
      for (size_t i = 0; i < kLanes; ++i) {
        const auto lane = static_cast<Lane>(i);
        if ((KindOf(lane) & kinds) == AgentEventKinds::kNone || FrontOf(lane) >= oldest) continue;
        oldest = FrontOf(lane);
        from = lane;
      }
      if (oldest == UINT64_MAX) break;
      Take(from, out[count], credits);
    }
    if (count > 0) Settle();
  }
  // Without the lock: the credit may need a round, which on_drained_ starts on this thread and
  // which may call Push.
  for (const Credit& credit : credits) Drained(credit);
  return count;
}

size_t EventQueue::ended_leases() const {
  std::lock_guard lock(mu_);
  return leases_.size();
}

void EventQueue::Drained(const Credit& credit) {
  credit.GiveBack();
  if (on_drained_) on_drained_(credit);
}

void EventQueue::Dispatch(Arrived arrived) {
  ++dispatched_;
  // Keeps the callback that was set when the notification arrived.
  dispatcher_->Run([this, callback = on_notification_, arrived = std::move(arrived)]() mutable {
    --dispatched_;
    Drained(arrived.credit);
    (*callback)(std::move(arrived.notification));
  });
}

void EventQueue::SetCallback(std::function<void(Notification)> callback) {
  std::lock_guard lock(mu_);
  on_notification_ =
      callback ? std::make_shared<std::function<void(Notification)>>(std::move(callback)) : nullptr;
  if (on_notification_ == nullptr) return;
  while (!notifications_.empty()) {
    Dispatch(std::move(notifications_.front().event));
    notifications_.pop_front();
  }
  Settle();
}

void EventQueue::SetCallback(std::function<void(const PeerEvent&)> callback) {
  std::lock_guard lock(mu_);
  on_peer_ = callback ? std::make_shared<std::function<void(const PeerEvent&)>>(std::move(callback))
                      : nullptr;
}

}  // namespace kvxfer
