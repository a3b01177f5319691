#include "src/agent/dispatcher.h"

#include <utility>

namespace kvxfer {
namespace {
thread_local bool in_callback = false;
}

bool Dispatcher::InCallback() { return in_callback; }

void Dispatcher::Run(Callback callback) {
  std::lock_guard lock(mu_);
  if (stopping_) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { Loop(); });
  queue_.push_back(std::move(callback));
  cv_.notify_one();
}

void Dispatcher::Stop() {
  {
    std::lock_guard lock(mu_);
    stopping_ = true;
    cv_.notify_one();
    if (!thread_.joinable()) return;
  }
  if (thread_.get_id() != std::this_thread::get_id()) thread_.join();
}

void Dispatcher::Loop() {
  std::unique_lock lock(mu_);
  for (;;) {
    cv_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    Callback callback = std::move(queue_.front());
    queue_.pop_front();
    lock.unlock();
    in_callback = true;
    callback();
    callback = nullptr;
    in_callback = false;
    lock.lock();
  }
}

}  // namespace kvxfer
