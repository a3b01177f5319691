// ControlPair: cutting messages, posting their parts, returning credit.

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/control_pair.h"
#include "src/core/base/strings.h"

namespace kvxfer::verbs {

// One place in the send queue is kept for credit.
bool ControlPair::CanPostPart() const {
  return failure_.ok() && credit_.may_send() && posted_.size() + 1 < kDepths.sends;
}

bool ControlPair::Send(std::span<const std::byte> message) {
  size_t at = 0;
  if (backlog_.empty() && PostParts(message, at)) return true;
  const std::span<const std::byte> rest = message.subspan(at);
  waited_ = true;
  if (!backlog_.empty() && backlog_bytes_ + rest.size() > kMaxBacklog) return false;
  backlog_.emplace_back(reinterpret_cast<const char*>(rest.data()), rest.size());
  backlog_bytes_ += rest.size();
  return true;
}

void ControlPair::SendBacklog() {
  while (!backlog_.empty() && PostParts(std::as_bytes(std::span(backlog_.front())), backlog_at_)) {
    backlog_bytes_ -= backlog_.front().size();
    backlog_.pop_front();
    backlog_at_ = 0;
  }
}

bool ControlPair::PostParts(std::span<const std::byte> message, size_t& at) {
  do {
    if (!CanPostPart()) {
      waited_ = true;
      return false;
    }
    const absl::StatusOr<MessageBuffer> buffer = buffers().Take();
    if (!buffer.ok()) {
      Fail(buffer.status());
      return false;
    }
    const std::span<const std::byte> part =
        message.subspan(at, std::min(kMaxPartBytes, message.size() - at));
    at += part.size();
    PostPart(*buffer, part, at < message.size());
  } while (at < message.size());
  return true;
}

void ControlPair::PostPart(const MessageBuffer& buffer, std::span<const std::byte> part,
                           bool more) {
  const auto head = Encode(PartHead{.kind = more ? PartKind::kMore : PartKind::kLast,
                                    .waited = std::exchange(waited_, false),
                                    .number = credit_.OnSend(),
                                    .report = credit_.MakeReport()});
  std::ranges::copy(head, buffer.at);
  std::ranges::copy(part, buffer.at + head.size());
  unacknowledged_.push_back({.buffer = buffer, .bytes = part.size(), .more = more});
  PostSend(buffer, head.size() + part.size());
}

// An answer to what was reported in this Poll may still bring the credit along.
void ControlPair::SendCreditIfDue() {
  if (!credit_.due() || !failure_.ok()) {
    due_since_ = 0;
    return;
  }
  const uint64_t poll = backend_->hub().poll_number();
  if (due_since_ == 0) due_since_ = poll;
  if (due_since_ == poll || posted_.size() == kDepths.sends) return;
  due_since_ = 0;
  auto head = Encode(PartHead{.report = credit_.MakeReport()});
  if (head.size() <= pair_->max_inline()) return PostSend({.at = head.data()}, head.size());
  if (!credit_buffer_) {
    const absl::StatusOr<MessageBuffer> buffer = buffers().Take();
    if (!buffer.ok()) return Fail(buffer.status());
    credit_buffer_ = *buffer;
  }
  // The peer has taken the one before, so the device no longer reads it.
  std::ranges::copy(head, credit_buffer_->at);
  PostSend(*credit_buffer_, head.size());
}

void ControlPair::PostSend(const MessageBuffer& buffer, size_t bytes) {
  const uint64_t number = next_++;
  ibv_sge element{
      .addr = buffer.address(), .length = static_cast<uint32_t>(bytes), .lkey = buffer.lkey};
  ibv_send_wr request{};
  request.wr_id = WorkId{.slot = *slot_, .number = number}.Encode();
  request.sg_list = &element;
  request.num_sge = 1;
  request.opcode = IBV_WR_SEND;
  request.send_flags = bytes <= pair_->max_inline() ? IBV_SEND_INLINE : 0;
  posted_.push_back(number);
  if (++unsignalled_ == kSignalEvery) {
    unsignalled_ = 0;
    signalled_ = number;
    request.send_flags |= IBV_SEND_SIGNALED;
    if (!stalls_at_) WatchStall();
  }
  ibv_send_wr* bad = nullptr;
  if (const int error = device_->ibv().PostSend(pair_->get(), &request, &bad); error != 0) {
    Fail(absl::UnavailableError(absl::StrCat(where_, ": ", ErrnoText("ibv_post_send", error))));
  }
}

void ControlPair::OnSent(uint64_t number) {
  while (!posted_.empty() && posted_.front() <= number) posted_.erase(posted_.begin());
  if (posted_.empty() || posted_.front() > signalled_) {
    stalls_at_.reset();
  } else {
    WatchStall();
  }
  if (!backlog_.empty()) client_->OnPairWork();
}

void ControlPair::WatchStall() {
  stalls_at_ = Now() + backend_->options().stall_timeout;
  client_->OnPairDeadline();
}

void ControlPair::OnDeadline(Time now) {
  if (!stalls_at_ || *stalls_at_ > now) return;
  stalls_at_.reset();
  Fail(absl::UnavailableError(
      absl::StrCat(where_, ": a SEND neither completed nor failed within ",
                   backend_->options().stall_timeout / std::chrono::milliseconds(1),
                   " ms (KVXFER_VERBS_STALL_TIMEOUT_MS)")));
}

}  // namespace kvxfer::verbs
