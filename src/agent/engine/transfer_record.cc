#include "src/agent/engine/transfer_record.h"

#include <utility>

#include "src/agent/engine/transfer_group.h"

namespace kvxfer::internal {

TransferRecord::TransferRecord() = default;
TransferRecord::~TransferRecord() = default;

// Without the lock, which a forked child may find taken for ever: written once, before `state_`.
TransferRecord::End TransferRecord::end() const { return ended() ? end_ : End{}; }

std::function<void(const Transfer&)> TransferRecord::Publish(End end) {
  std::optional<cuda::StreamWord> word;  // set when this returns
  std::lock_guard lock(mu_);
  word.swap(word_);
  end_ = std::move(end);
  quarantined_.store(end_.quarantined, std::memory_order_release);
  state_.store(end_.state, std::memory_order_release);
  return std::exchange(callback_, nullptr);
}

// None: it has ended.
absl::StatusOr<std::optional<cuda::StreamWord::Name>> TransferRecord::EndWord() {
  {
    std::lock_guard lock(mu_);
    if (ended()) return std::nullopt;
    if (word_.has_value()) return word_->name();
  }
  auto word = cuda::StreamWord::Take();
  if (!word.ok()) return word.status();
  std::lock_guard lock(mu_);
  if (ended()) return std::nullopt;
  if (!word_.has_value()) word_.emplace(*std::move(word));
  return word_->name();
}

// The word may be set, and another's by now, before the stream waits for it: that finds it passed.
absl::Status TransferRecord::StreamWait(const CudaStream& stream) {
  if (ended()) return absl::OkStatus();
  const auto word = EndWord();
  if (!word.ok()) return word.status();
  return word->has_value() ? cuda::WaitInStream(stream, **word) : absl::OkStatus();
}

bool TransferRecord::SetCallback(std::function<void(const Transfer&)> callback) {
  std::lock_guard lock(mu_);
  if (ended()) return true;
  callback_ = std::move(callback);
  return false;
}

}  // namespace kvxfer::internal
