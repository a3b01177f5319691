#include "src/agent/transfer_record.h"

#include <utility>

#include "src/agent/transfer_group.h"

namespace kvxfer::internal {

TransferRecord::TransferRecord() = default;
TransferRecord::~TransferRecord() = default;

// Without the lock, which a forked child may find taken for ever: written once, before `state_`.
TransferRecord::End TransferRecord::end() const { return ended() ? end_ : End{}; }

std::function<void(const Transfer&)> TransferRecord::Publish(End end) {
  std::lock_guard lock(mu_);
  end_ = std::move(end);
  quarantined_.store(end_.quarantined, std::memory_order_release);
  state_.store(end_.state, std::memory_order_release);
  return std::exchange(callback_, nullptr);
}

bool TransferRecord::SetCallback(std::function<void(const Transfer&)> callback) {
  std::lock_guard lock(mu_);
  if (ended()) return true;
  callback_ = std::move(callback);
  return false;
}

}  // namespace kvxfer::internal
