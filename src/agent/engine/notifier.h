// Notifications on their way from the engine to the application: the queue, the eventfd, the
// callback, and the account that gives credit back to initiators as the application drains.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_ENGINE_NOTIFIER_H_
#define KVXFER_AGENT_ENGINE_NOTIFIER_H_

#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "absl/status/status.h"
#include "kvxfer/notification.h"
#include "src/agent/engine/dispatcher.h"

namespace kvxfer {

// Drained payload bytes that are held back before credit for them goes back: a quarter of what an
// initiator may have undrained, but never so much that the largest payload could not follow.
inline uint64_t CreditByteStep(uint64_t max_notification_bytes) {
  return std::min(max_notification_bytes / 4, (max_notification_bytes - kMaxNotificationBytes) / 2);
}

// What one inbound session's notifications have given back so far; shared by the session and the
// notifications that are still queued, whichever ends last.
struct CreditAccount {
  std::atomic<uint64_t> notifications{0};  // drained by the application
  std::atomic<uint64_t> bytes{0};
};

// What draining one notification gives back.
struct Credit {
  std::shared_ptr<CreditAccount> account;
  uint64_t bytes = 0;

  void GiveBack() const {
    account->bytes.fetch_add(bytes, std::memory_order_relaxed);
    account->notifications.fetch_add(1, std::memory_order_release);
  }
};

class Notifier {
 public:
  explicit Notifier(Dispatcher* dispatcher) : dispatcher_(dispatcher) {}
  ~Notifier();

  absl::Status Open();  // makes the eventfd
  // From the first call on it is readable while a notification is queued; who never asks for it
  // saves two system calls a notification.
  int fd();

  // Runs after an application drained one, on its thread; with the bytes of its credit.
  void set_on_drained(std::function<void(uint64_t)> f) { on_drained_ = std::move(f); }

  void Push(Notification notification, Credit credit);
  std::optional<Notification> Pop();
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  // What the application has not taken, with what waits for its callback.
  size_t undrained() const { return count_ + dispatched_; }
  // Queued ones go to the callback too. Empty: back to Pop.
  void SetCallback(std::function<void(Notification)> callback);

 private:
  struct Item {
    Notification notification;
    Credit credit;
  };
  void Drained(const Item& item);
  void Dispatch(Item item);  // mu_ held

  Dispatcher* const dispatcher_;
  std::function<void(uint64_t)> on_drained_;
  void Signal() const;    // mu_ held
  void Unsignal() const;  // mu_ held

  int fd_ = -1;
  bool fd_wanted_ = false;  // guarded by mu_
  std::atomic<size_t> count_{0};
  std::atomic<size_t> dispatched_{0};
  std::mutex mu_;
  std::deque<Item> queue_;
  std::shared_ptr<std::function<void(Notification)>> callback_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_NOTIFIER_H_
