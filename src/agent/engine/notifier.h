// Passes notifications from the engine to the application: the queue, the eventfd, the
// callback, and the accounts that return credit to initiators as the application takes
// notifications.
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

// How many payload bytes the application takes before their credit is returned: a quarter of what
// one initiator may have outstanding, but at most so much that the largest payload still fits.
inline uint64_t CreditByteStep(uint64_t max_notification_bytes) {
  return std::min(max_notification_bytes / 4, (max_notification_bytes - kMaxNotificationBytes) / 2);
}

// The credit that one inbound session's notifications have returned so far. The session and the
// queued notifications share it, because either may outlive the other.
struct CreditAccount {
  std::atomic<uint64_t> notifications{0};  // taken by the application
  std::atomic<uint64_t> bytes{0};
};

// The credit that is returned when the application takes one notification.
struct Credit {
  std::shared_ptr<CreditAccount> account;
  uint64_t bytes = 0;

  void GiveBack() const {
    // The release pairs with the acquire of the session's read of `notifications`: a session that
    // counts this notification also counts its bytes.
    account->bytes.fetch_add(bytes, std::memory_order_relaxed);
    account->notifications.fetch_add(1, std::memory_order_release);
  }
};

class Notifier {
 public:
  explicit Notifier(Dispatcher* dispatcher) : dispatcher_(dispatcher) {}
  ~Notifier();

  absl::Status Open();  // makes the eventfd
  // The descriptor is readable while a notification is queued, from the first call of fd() on. An
  // application that never calls it saves two system calls per notification.
  int fd();

  // `f` runs each time the application has taken a notification, on the application's thread, with
  // that notification's credit in bytes.
  void set_on_drained(std::function<void(uint64_t)> f) { on_drained_ = std::move(f); }

  void Push(Notification notification, Credit credit);
  std::optional<Notification> Pop();
  bool empty() const { return count_.load(std::memory_order_acquire) == 0; }
  // How many notifications the application has not taken, including those that wait for its
  // callback.
  size_t undrained() const { return count_ + dispatched_; }
  // Notifications that are queued already go to the callback too. An empty callback: back to Pop.
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
