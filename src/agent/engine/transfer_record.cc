#include "src/agent/engine/transfer_record.h"

#include <utility>

#include "src/agent/engine/transfer_group.h"

namespace kvxfer::internal {

TransferRecord::TransferRecord() = default;
TransferRecord::~TransferRecord() = default;

// Takes no lock: a forked child may find it locked for ever. `end_` is written once, before the
// release store of `state_`.
TransferRecord::End TransferRecord::end() const { return ended() ? end_ : End{}; }

TransferRecord::Due TransferRecord::Publish(End&& end) {
  std::optional<cuda::StreamWord> word;  // its destructor sets it
  // Declared before the lock, so `word` is set after the lock is released and after the end is
  // visible.
  std::lock_guard lock(mu_);
  word.swap(word_);
  end_ = std::move(end);
  quarantined_.store(end_.quarantined, std::memory_order_release);
  state_.store(end_.state, std::memory_order_release);
  return {.callback = std::exchange(callback_, nullptr), .words = std::exchange(words_, {})};
}

TransferRecord::Asked TransferRecord::AskEnd(EndLane lane, uint64_t user_word) {
  std::lock_guard lock(mu_);
  if (ended()) return Asked::kEnded;
  const bool again = words_[static_cast<size_t>(lane)].has_value();
  words_[static_cast<size_t>(lane)] = user_word;
  return again ? Asked::kAgain : Asked::kFirst;
}

// The name of the word that streams wait for. None: the transfer has ended.
absl::StatusOr<std::optional<cuda::StreamWord::Name>> TransferRecord::EndWord() {
  {
    std::lock_guard lock(mu_);
    if (ended()) return std::nullopt;
    if (word_.has_value()) return word_->name();
  }
  // Taken without the lock, because it may map memory. If another thread was faster, its word
  // stays.
  auto word = cuda::StreamWord::Take();
  if (!word.ok()) return word.status();
  std::lock_guard lock(mu_);
  if (ended()) return std::nullopt;
  if (!word_.has_value()) word_.emplace(*std::move(word));
  return word_->name();
}

// The word may be set, and belong to another transfer, before the stream waits for it. Its value
// only rises, so the stream then finds it passed.
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
