// The one queue of what an agent tells its program: notifications, ends of transfers, and events
// about peers and KV caches, with the descriptors that show what waits, and the callbacks that take
// the place of the queue.
//
// An event costs what its kind costs: a notification or another event is stored, the end of a
// transfer is a link in the transfer's own record, so the queue never has to refuse one.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_ENGINE_EVENT_QUEUE_H_
#define KVXFER_AGENT_ENGINE_EVENT_QUEUE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/event.h"
#include "src/agent/engine/credit.h"
#include "src/agent/engine/dispatcher.h"
#include "src/agent/engine/progress_loop.h"
#include "src/agent/engine/transfer_record.h"
#include "src/core/base/keeping_allocator.h"

namespace kvxfer {

class EventQueue {
 public:
  // Beyond these numbers the oldest event of its kind is dropped.
  static constexpr size_t kMaxPeerEvents = 1024;
  static constexpr size_t kMaxLostRequests = 1 << 16;

  // Threads in loop->DriveUntil(this queue) are woken. `loop` may be null, and `dispatcher` too
  // where no callback is set.
  EventQueue(Dispatcher* dispatcher, ProgressLoop* loop) : dispatcher_(dispatcher), loop_(loop) {}
  // Makes every descriptor readable before it closes it, for those who hold a duplicate.
  ~EventQueue();
  EventQueue(const EventQueue&) = delete;
  EventQueue& operator=(const EventQueue&) = delete;

  absl::Status Open();  // makes the descriptor of the first call of Fd
  // A descriptor that is readable while an event of one of `kinds` is queued, from now on; the same
  // for the same kinds. Each costs a system call when the first such event comes and when the last
  // is taken. InvalidArgument: no kind, or an unknown one. ResourceExhausted.
  absl::StatusOr<int> Fd(AgentEventKinds kinds);

  // `f` runs each time the application has taken a notification, on the application's thread, with
  // that notification's credit, which has been given back.
  void set_on_drained(std::function<void(const Credit&)> f) { on_drained_ = std::move(f); }

  // Wakes nobody: the caller does, once for several notifications.
  void Push(Notification&& notification, Credit&& credit);
  void Push(PeerEvent event);
  void Push(KvEvent event);

  // Takes one of kMaxUnreadEnds places. False: there is none.
  bool ReserveEnd(EndLane lane);
  void ReturnPlace(EndLane lane);
  // Uses a place that was reserved, which Poll returns. If the end is still queued, it gets the new
  // word, and the place is returned now.
  void PushEnd(const TransferPtr& record, EndLane lane, uint64_t user_word);

  // Moves the oldest events of `kinds` to `out`, in the order in which they came; how many.
  size_t Poll(std::span<AgentEvent> out, AgentEventKinds kinds);
  bool Has(AgentEventKinds kinds) const {
    return (queued_.load(std::memory_order_acquire) & kinds) != AgentEventKinds::kNone;
  }
  // How many notifications the application has not taken, including those that wait for its
  // callback.
  size_t undrained() const { return notified_ + dispatched_; }
  // How many leases have ended and were not polled.
  size_t ended_leases() const;

  // Callbacks run on the dispatcher, in place of the queue; an empty one: back to the queue.
  // Notifications that are queued go to the callback too.
  void SetCallback(std::function<void(Notification)> callback);
  void SetCallback(std::function<void(const PeerEvent&)> callback);

 private:
  // What has an order of its own. `queued_` and the program know kinds only.
  enum class Lane : uint8_t { kNotifications, kPosted, kWatched, kPeers, kLeases, kLost };
  static constexpr size_t kLanes = 6;
  static AgentEventKinds KindOf(Lane lane) {
    using enum AgentEventKinds;
    constexpr std::array<AgentEventKinds, kLanes> kKinds = {
        kNotification, kTransferEnd, kWatchedEnd, kPeer, kKv, kKv};
    return kKinds[static_cast<size_t>(lane)];
  }

  template <typename T>
  struct Queued {
    uint64_t order = 0;
    T event;
  };
  struct Arrived {
    Notification notification;
    Credit credit;
  };
  struct Ends {
    TransferPtr first{};
    internal::TransferRecord* last = nullptr;
  };
  struct Watcher {
    AgentEventKinds kinds = AgentEventKinds::kNone;
    int fd = -1;
    bool readable = false;
  };
  using Credits = absl::InlinedVector<Credit, 1>;

  // mu_ held by all of these.
  uint64_t FrontOf(Lane lane) const;  // its order; UINT64_MAX: the lane is empty
  void Take(Lane lane, AgentEvent& out, Credits& credits);
  TransferEnd TakeEnd(EndLane lane);
  void OnPushed(Lane lane);
  void Settle();
  void Tell(AgentEventKinds queued);
  void Dispatch(Arrived arrived);

  void WakeWaiters();
  void Drained(const Credit& credit);

  Dispatcher* const dispatcher_;
  ProgressLoop* const loop_;
  std::function<void(const Credit&)> on_drained_;
  std::atomic<AgentEventKinds> queued_{AgentEventKinds::kNone};  // of which there is one
  std::atomic<size_t> notified_{0};                              // in notifications_
  std::atomic<size_t> dispatched_{0};
  std::array<std::atomic<size_t>, kEndLanes> reserved_{};

  mutable std::mutex mu_;  // guards everything below
  uint64_t last_order_ = 0;
  std::list<Queued<Arrived>, KeepingAllocator<Queued<Arrived>>> notifications_;
  std::array<Ends, kEndLanes> ends_;
  std::deque<Queued<PeerEvent>> peers_;
  std::deque<Queued<KvEvent>> leases_;  // their number is bounded by LeaseService::Grant
  std::deque<Queued<KvEvent>> lost_;
  int spare_fd_ = -1;  // not given out yet
  std::vector<Watcher> watchers_;
  std::shared_ptr<std::function<void(Notification)>> on_notification_;
  std::shared_ptr<std::function<void(const PeerEvent&)>> on_peer_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_EVENT_QUEUE_H_
