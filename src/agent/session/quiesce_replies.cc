#include "src/agent/session/quiesce_replies.h"

#include <utility>

namespace kvxfer {

absl::Status QuiesceReplies::CheckSpace(const QuiesceFrame& frame) const {
  return asked_.CheckSpace(frame, waits_closed_.size());
}

void QuiesceReplies::Add(const QuiesceFrame& frame, bool cuda,
                         std::span<const uint64_t> transfers) {
  AskedBook::Question question{
      .id = frame.id, .revoke = frame.revoke, .closes = frame.revoke && cuda};
  if (frame.revoke) question.regions = frame.regions;
  asked_.Add(std::move(question), transfers);
  Answer();
}

void QuiesceReplies::End(uint64_t transfer) {
  if (idle()) return;
  asked_.End(transfer);
  Answer();
}

void QuiesceReplies::OnTimer() {
  if (waits_closed()) Answer();
}

void QuiesceReplies::Clear() {
  asked_ = {};
  waits_closed_.clear();
}

void QuiesceReplies::Answer() {
  const auto answer = [this](uint64_t id) {
    channel_->Push(FrameType::kQuiet, QuietFrame{.id = id});
  };
  for (const AskedBook::Question& quiet : asked_.TakeQuiet()) {
    if (quiet.revoke) user_->DropKeys(quiet.regions);
    if (quiet.closes) {
      waits_closed_.push_back(quiet.id);
    } else {
      answer(quiet.id);
    }
  }
  if (waits_closed_.empty() || user_->IsClosing()) return;
  for (const uint64_t id : std::exchange(waits_closed_, {})) answer(id);
}

}  // namespace kvxfer
