#include "src/agent/session/asked_book.h"

#include <utility>

namespace kvxfer {

absl::Status AskedBook::CheckSpace(const QuiesceFrame& frame, size_t more) const {
  const bool too_many = frame.revoke ? revoking_ + more >= kMaxRevocations ||
                                           revoking_regions_ + frame.regions.size() > kMaxRegions
                                     : asking_ >= kMaxQuestions;
  if (!too_many) return absl::OkStatus();
  return absl::ResourceExhaustedError("more QUIESCE at once than a target asks");
}

void AskedBook::Add(Question question, std::span<const uint64_t> transfers) {
  ++(question.revoke ? revoking_ : asking_);
  revoking_regions_ += question.regions.size();
  if (transfers.empty()) {
    quiet_.push_back(std::move(question));
    return;
  }
  const uint64_t number = ++last_number_;
  for (const uint64_t transfer : transfers) waits_for_[transfer].push_back(number);
  waiting_.emplace(number, Waiting{.question = std::move(question), .transfers = transfers.size()});
}

void AskedBook::End(uint64_t transfer) {
  const auto ended = waits_for_.extract(transfer);
  if (ended.empty()) return;
  for (const uint64_t number : ended.mapped()) {
    const auto it = waiting_.find(number);
    if (--it->second.transfers > 0) continue;
    quiet_.push_back(std::move(it->second.question));
    waiting_.erase(it);
  }
}

std::vector<AskedBook::Question> AskedBook::TakeQuiet() {
  for (const Question& question : quiet_) {
    --(question.revoke ? revoking_ : asking_);
    revoking_regions_ -= question.regions.size();
  }
  return std::exchange(quiet_, {});
}

}  // namespace kvxfer
