#include "src/agent/engine/notifier.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer {

Notifier::~Notifier() {
  if (fd_ >= 0) close(fd_);
}

absl::Status Notifier::Open() {
  fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd_ >= 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(ErrnoText("cannot create the notification eventfd", errno));
}

int Notifier::fd() {
  std::lock_guard lock(mu_);
  if (!std::exchange(fd_wanted_, true) && !queue_.empty()) Signal();
  return fd_;
}

void Notifier::Signal() const {
  if (!fd_wanted_) return;
  // A write that fails with EAGAIN left the counter full, so the descriptor is readable all the
  // same.
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(fd_, &one, sizeof(one));
}

void Notifier::Unsignal() const {
  if (!fd_wanted_) return;
  uint64_t count;
  [[maybe_unused]] ssize_t n = read(fd_, &count, sizeof(count));
}

void Notifier::Push(Notification notification, Credit credit) {
  std::lock_guard lock(mu_);
  Item item{std::move(notification), std::move(credit)};
  if (callback_ != nullptr) {
    Dispatch(std::move(item));
    return;
  }
  queue_.push_back(std::move(item));
  // empty() reads the count without the lock.
  count_.store(queue_.size(), std::memory_order_release);
  if (queue_.size() == 1) Signal();
}

std::optional<Notification> Notifier::Pop() {
  std::optional<Item> item;
  {
    std::lock_guard lock(mu_);
    if (queue_.empty()) return std::nullopt;
    item = std::move(queue_.front());
    queue_.pop_front();
    count_.store(queue_.size(), std::memory_order_release);
    if (queue_.empty()) Unsignal();
  }
  // Without the lock: the credit may need a round, which on_drained_ starts on this thread and
  // which may call Push.
  Drained(*item);
  return std::move(item->notification);
}

void Notifier::Drained(const Item& item) {
  item.credit.GiveBack();
  if (on_drained_) on_drained_(item.credit.bytes);
}

void Notifier::Dispatch(Item item) {
  ++dispatched_;
  // Keeps the callback that was set when the notification arrived.
  dispatcher_->Run([this, callback = callback_, item = std::move(item)]() mutable {
    --dispatched_;
    Drained(item);
    (*callback)(std::move(item.notification));
  });
}

void Notifier::SetCallback(std::function<void(Notification)> callback) {
  std::lock_guard lock(mu_);
  callback_ =
      callback ? std::make_shared<std::function<void(Notification)>>(std::move(callback)) : nullptr;
  if (callback_ == nullptr || queue_.empty()) return;
  while (!queue_.empty()) {
    Dispatch(std::move(queue_.front()));
    queue_.pop_front();
  }
  count_.store(0, std::memory_order_release);
  Unsignal();
}

}  // namespace kvxfer
