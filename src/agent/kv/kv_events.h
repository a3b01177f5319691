// Events on leases and requests that the application has not taken.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_KV_KV_EVENTS_H_
#define KVXFER_AGENT_KV_KV_EVENTS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "kvxfer/kv_cache.h"

namespace kvxfer {

class KvEvents {
 public:
  static constexpr size_t kMaxLost = 1 << 16;

  // Beyond kMaxLost the oldest lost request is dropped. Ended leases are bounded elsewhere: while
  // too many were not popped, LeaseService::Grant refuses new ones.
  void Push(KvEvent event) {
    std::lock_guard lock(mu_);
    auto& queue = event.kind == KvEventKind::kRequestLost ? lost_ : ended_;
    queue.push_back({++last_, std::move(event)});
    if (lost_.size() > kMaxLost) lost_.pop_front();
  }

  std::optional<KvEvent> Pop() {
    std::lock_guard lock(mu_);
    if (lost_.empty() && ended_.empty()) return std::nullopt;
    const bool lost =
        ended_.empty() || (!lost_.empty() && lost_.front().first < ended_.front().first);
    auto& queue = lost ? lost_ : ended_;
    KvEvent event = std::move(queue.front().second);
    queue.pop_front();
    return event;
  }

  // How many leases have ended and were not popped.
  size_t ended() const {
    std::lock_guard lock(mu_);
    return ended_.size();
  }

 private:
  // First: the position in the order of Push.
  using Queue = std::deque<std::pair<uint64_t, KvEvent>>;

  mutable std::mutex mu_;
  uint64_t last_ = 0;
  Queue ended_;
  Queue lost_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_KV_KV_EVENTS_H_
