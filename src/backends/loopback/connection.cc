#include "src/backends/loopback/connection.h"

#include <algorithm>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer::loopback {
namespace {

constexpr size_t kMaxWaitingBytes = 1 << 20;  // for one direction of one connection
constexpr size_t kMailBytes = 64;             // what a mail counts in addition to its message
constexpr size_t kMaxFenced = 256;

size_t CostOf(const Mail& mail) {
  const bool counted = mail.kind == MailKind::kMessage || mail.kind == MailKind::kImmediate;
  return counted ? kMailBytes + mail.message.size() : 0;
}

}  // namespace

absl::Status Connection::CopySlice(const Op& op, CopyCursor& cursor, uint64_t budget,
                                   uint64_t* copied, bool* done) {
  *copied = 0;
  *done = false;
  // The gate covers the copy and its immediate, so that a fence or a close never falls between
  // them.
  std::lock_guard lock(gate_);
  if (!open_) return absl::UnavailableError("the connection is closed");
  if (IsFenced(op.transfer)) {
    return absl::CancelledError(absl::StrCat("the target fenced transfer ", op.transfer));
  }
  if (absl::Status end = To(Side::kTarget).Copy(op, cursor, budget, copied); !end.ok()) return end;
  if (!cursor.left.done()) return absl::OkStatus();
  *done = true;
  if (op.kind == OpKind::kRead || !op.has_immediate) return absl::OkStatus();
  Mail mail{.kind = MailKind::kImmediate, .to = Side::kTarget, .connection = shared_from_this()};
  mail.rail = op.rail;
  mail.immediate = op.immediate;
  // Counted before it is delivered: the target may take the mail, and subtract it, at once.
  FlowFrom(Side::kInitiator).waiting.fetch_add(CostOf(mail));
  if (To(Side::kTarget).Deliver(std::move(mail))) return absl::OkStatus();
  return absl::UnavailableError("the target's agent was destroyed");
}

void Connection::Authorize() {
  authorized_.store(true, std::memory_order_release);
  To(Side::kInitiator)
      .Deliver({.kind = MailKind::kAuthorized,
                .to = Side::kInitiator,
                .connection = shared_from_this()});
}

void Connection::Fence(uint64_t transfer) {
  std::lock_guard lock(gate_);
  if (!open_) return;  // kDown is in the mailbox
  if (!IsFenced(transfer)) {
    if (fenced_.size() == kMaxFenced) fenced_.pop_front();
    fenced_.push_back(transfer);
  }
  // Delivered under the gate, so it is behind every immediate of the transfer.
  Mail mail{.kind = MailKind::kFenced, .to = Side::kTarget, .connection = shared_from_this()};
  mail.transfer = transfer;
  To(Side::kTarget).Deliver(std::move(mail));
}

bool Connection::HasSpace(Side from) {
  Flow& flow = FlowFrom(from);
  if (flow.waiting.load() < kMaxWaitingBytes) return true;
  flow.blocked.store(true);
  // Taken() lowers `waiting` before it reads `blocked`. Both are sequentially consistent, so either
  // this load sees the free space, or Taken() sees the mark and sends kSpace.
  return flow.waiting.load() < kMaxWaitingBytes;
}

bool Connection::Send(Side from, std::span<const std::byte> message) {
  if (!HasSpace(from)) return false;
  Mail mail{.kind = MailKind::kMessage, .to = Other(from), .connection = shared_from_this()};
  mail.message.assign(message.begin(), message.end());
  FlowFrom(from).waiting.fetch_add(CostOf(mail));
  return To(Other(from)).Deliver(std::move(mail));
}

void Connection::Taken(const Mail& mail) {
  const size_t cost = CostOf(mail);
  if (cost == 0) return;
  const Side from = Other(mail.to);
  Flow& flow = FlowFrom(from);
  flow.waiting.fetch_sub(cost);
  if (flow.blocked.load() && flow.blocked.exchange(false)) {
    To(from).Deliver({.kind = MailKind::kSpace, .to = from, .connection = shared_from_this()});
  }
}

void Connection::Close(Side from, const absl::Status& why) {
  {
    std::lock_guard lock(gate_);
    if (!std::exchange(open_, false)) return;
  }
  const absl::Status theirs =
      absl::UnavailableError(absl::StrCat("the peer closed the connection: ", why.message()));
  for (const Side side : {Side::kTarget, Side::kInitiator}) {
    Mail mail{.kind = MailKind::kDown, .to = side, .connection = shared_from_this()};
    mail.status = side == from ? why : theirs;
    To(side).Deliver(std::move(mail));
  }
}

bool Connection::IsFenced(uint64_t transfer) const {
  return std::find(fenced_.begin(), fenced_.end(), transfer) != fenced_.end();
}

}  // namespace kvxfer::loopback
