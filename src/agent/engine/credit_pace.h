// Decides when credit goes back to the initiators while the application takes notifications: once
// it has taken so much that an initiator may be waiting for credit.
//
// Thread-safety: OnDrained from any thread. The counters only set the pace, so relaxed order
// suffices.

#ifndef KVXFER_AGENT_ENGINE_CREDIT_PACE_H_
#define KVXFER_AGENT_ENGINE_CREDIT_PACE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "kvxfer/options.h"
#include "src/core/protocol/target_session.h"

namespace kvxfer {

class CreditPace {
 public:
  explicit CreditPace(const AgentOptions& options)
      : step_(std::clamp<uint64_t>(options.max_notifications / 4, 1, 256)),
        byte_step_(std::max<uint64_t>(CreditByteStep(options.max_notification_bytes), 1)) {}

  // The application has taken a notification of `bytes`. True: credit is due.
  bool OnDrained(uint64_t bytes) {
    const uint64_t count = count_.fetch_add(1, std::memory_order_relaxed) + 1;
    const uint64_t before = bytes_.fetch_add(bytes, std::memory_order_relaxed);
    const bool bytes_due = before / byte_step_ != (before + bytes) / byte_step_;
    return count % step_ == 0 || bytes_due;
  }

 private:
  const uint64_t step_;
  const uint64_t byte_step_;
  std::atomic<uint64_t> count_{0};  // notifications that the application has taken
  std::atomic<uint64_t> bytes_{0};  // payload bytes of those
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_CREDIT_PACE_H_
