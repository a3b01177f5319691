// Failures, the target's word, and ends. send_tracker.cc has the way to done.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/protocol/send_tracker.h"

namespace kvxfer {
namespace {

// Of the time that a transfer had, what its end may take beyond its deadline; and at most so much.
constexpr int kLateShare = 20;
constexpr Duration kLateMost = std::chrono::milliseconds(50);

absl::Status CannotBe(absl::string_view what, uint64_t id) {
  return absl::InvalidArgumentError(
      absl::StrCat("it says that transfer ", id, " ", what, ", which cannot be"));
}

}  // namespace

// --- ops and rails ---

void SendTracker::OnCompleted(Transfer& transfer, Time now) {
  if (--transfer.ops_ == 0) OnNoOps(transfer, now);
}

void SendTracker::OnNoOps(Transfer& transfer, Time now) {
  if (!transfer.ending()) return Advance(transfer);
  if (transfer.ended()) Act(Action::Kind::kQuiet, transfer);
  AdvanceEnd(transfer, now);
}

void SendTracker::OnFailed(Transfer& transfer, const absl::Status& why, Time now) {
  if (transfer.ending() || transfer.arrived_) return OnCompleted(transfer, now);
  --transfer.ops_;
  End(transfer, TransferState::kFailed, why, EndCause::kStopped, now);
}

void SendTracker::OnSuspect(Transfer& transfer, uint32_t rail, uint32_t slice,
                            const absl::Status& why, Time now) {
  if (transfer.ending() || transfer.arrived_) return OnCompleted(transfer, now);
  if (std::ranges::find(transfer.unexplained_, rail, &Transfer::Unexplained::rail) ==
      transfer.unexplained_.end()) {
    transfer.unexplained_.push_back({.rail = rail, .status = why});
  }
  // What the target counts goes again when the rail is fenced.
  if (!transfer.counted()) {
    transfer.book_.Again(slice);
    SendAgain(transfer);
  }
  OnCompleted(transfer, now);
}

void SendTracker::OnAbandoned(Transfer& transfer, uint32_t ops, Time now) {
  transfer.ops_ -= ops;
  AdvanceEnd(transfer, now);
}

void SendTracker::OnRailDown(uint64_t link, uint32_t rail) {
  ForEach([&](Transfer& transfer) {
    if (transfer.link() != link) return;
    std::erase_if(transfer.unexplained_, [&](const auto& failed) { return failed.rail == rail; });
  });
}

void SendTracker::OnRailCleared(uint64_t link, uint32_t rail, Time now) {
  ForEach([&](Transfer& transfer) {
    if (transfer.link() != link) return;
    auto& unexplained = transfer.unexplained_;
    const auto op = std::ranges::find(unexplained, rail, &Transfer::Unexplained::rail);
    if (op == unexplained.end()) return;
    const absl::Status why = op->status;
    unexplained.erase(op);
    if (transfer.ending() || transfer.arrived_) return;
    End(transfer, TransferState::kFailed, why, EndCause::kStopped, now);
  });
}

// Which writes of the rail's lanes arrived is not known: all go again, once the target has let go
// of the slots. ABORT names the lanes of what is ending.
void SendTracker::OnRailFenced(uint64_t link, uint32_t rail) {
  ForEach([&](Transfer& transfer) {
    if (transfer.link() != link || transfer.ending() || transfer.arrived_) return;
    if (!transfer.counted()) return;
    // It may be of a lane that is taken back.
    if (transfer.slice_.has_value() && transfer.slice_->book != SendBook::kFirst) {
      transfer.slice_.reset();
    }
    const DiscardFrame frame{.transfer = transfer.id(), .slots = transfer.book_.Discard(rail)};
    if (!frame.slots.empty()) channel_->Push(FrameType::kDiscard, frame);
  });
}

// Fails what had data on the lost connection; what only waits for the target's word goes on.
void SendTracker::OnLinkLost(uint64_t link, const absl::Status& why, Time now,
                             absl::FunctionRef<void(Transfer&)> lost) {
  ForEach([&](Transfer& transfer) {
    if (transfer.link() != link) return;
    transfer.request_.link = 0;
    lost(transfer);
    const bool only_waits = transfer.state_ == SendState::kConfirming ||
                            (transfer.opened_ && !transfer.counted() && !transfer.ending());
    if (!only_waits) End(transfer, TransferState::kFailed, why, EndCause::kLost, now);
  });
}

// --- the target's word ---

absl::Status SendTracker::OnReleased(const ReleasedFrame& frame, Time now) {
  for (const SlotRef& ref : frame.freed) {
    OnFreed(ref);
    if (auto status = slots_.Free(ref); !status.ok()) return status;
  }
  for (const uint64_t id : frame.arrived) {
    if (auto status = OnArrived(id); !status.ok()) return status;
  }
  for (const DiscardAck& ack : frame.discarded) {
    if (auto status = OnDiscarded(ack); !status.ok()) return status;
  }
  for (const AbortAck& ack : frame.aborted) {
    if (auto status = OnAborted(ack, now); !status.ok()) return status;
  }
  return absl::OkStatus();
}

// Of the lane that uses `slot` now nothing is on the way: it needs no DISCARD, and no ABORT.
void SendTracker::OnFreed(SlotRef slot) {
  if (Transfer* const transfer = Find(slots_.HolderOf(slot))) transfer->book_.OnFreed(slot);
}

absl::Status SendTracker::OnArrived(uint64_t id) {
  Transfer* const transfer = Find(id);
  // While lanes go again, the target misses them.
  if (transfer == nullptr || !transfer->opened_ || transfer->arrived_ ||
      transfer->state_ == SendState::kAmending) {
    return CannotBe("has arrived", id);
  }
  transfer->arrived_ = true;
  // While it is ending, the answer to ABORT says the same.
  if (!transfer->ending()) Advance(*transfer);
  return absl::OkStatus();
}

// The target has let go of a discarded lane; its slot was freed just before.
absl::Status SendTracker::OnDiscarded(const DiscardAck& ack) {
  Transfer* const transfer = Find(ack.transfer);
  if (transfer == nullptr || transfer->ending() || transfer->arrived_) return absl::OkStatus();
  const auto again = transfer->book_.OnDiscarded(ack, slots_);
  if (!again.ok()) return again.status();
  if (*again) SendAgain(*transfer);
  Advance(*transfer);
  return absl::OkStatus();
}

absl::Status SendTracker::OnAborted(const AbortAck& ack, Time now) {
  Transfer* const transfer = Find(ack.transfer);
  if (transfer == nullptr ||
      (transfer->state_ != SendState::kAborting && transfer->state_ != SendState::kUnanswered)) {
    return CannotBe("is aborted", ack.transfer);
  }
  if (ack.delivered) {
    transfer->arrived_ = true;
    const bool refused = !transfer->refused_.ok();
    transfer->end_state_ = refused ? TransferState::kFailed : TransferState::kDone;
    transfer->end_status_ = transfer->refused_;
  } else {
    ReturnCredit(*transfer);
  }
  if (transfer->state_ == SendState::kAborting) {
    Set(*transfer, SendState::kStopping);
    AdvanceEnd(*transfer, now);
  } else {
    Act(Action::Kind::kQuiet, *transfer);
    Set(*transfer, transfer->ops_ > 0 ? SendState::kMoving : SendState::kGone);
  }
  return absl::OkStatus();
}

absl::Status SendTracker::OnLease(Transfer& transfer, const absl::Status& refused, Time now) {
  if (transfer.ending()) return absl::OkStatus();
  const SendState state = transfer.state_;
  const bool asked = state == SendState::kLeasing || state == SendState::kConfirming;
  // A lease may also end while it is read.
  if (transfer.request_.lease == nullptr || (!asked && refused.ok())) {
    return absl::InvalidArgumentError("an answer on a lease that was not asked for");
  }
  if (!refused.ok()) {
    End(transfer, TransferState::kFailed, refused, EndCause::kStopped, now);
    return absl::OkStatus();
  }
  if (state == SendState::kLeasing) {
    const bool sends = transfer.request_.moves || transfer.request_.held;
    Set(transfer, sends ? SendState::kSending : SendState::kSent);
  } else {
    transfer.request_.lease = nullptr;
    Set(transfer, SendState::kSent);
  }
  Advance(transfer);
  return absl::OkStatus();
}

// --- ends ---

Time SendTracker::EndBy(const Transfer& transfer, EndCause cause, Time now) const {
  const Request& request = transfer.request_;
  switch (cause) {
    case EndCause::kStopped:
      return std::min(request.deadline, now + grace_);
    case EndCause::kLate:
      return now + std::min<Duration>((request.deadline - request.posted) / kLateShare, kLateMost);
    case EndCause::kLost:
      break;
  }
  return now;
}

void SendTracker::End(Transfer& transfer, TransferState state, const absl::Status& why, Time by,
                      Time now) {
  if (transfer.state_ == SendState::kGone) return;
  if (transfer.request_.may_hang && transfer.ops_ > 0) {
    // Where there is no time the copies get what those of a stopped transfer get.
    transfer.copies_until_ = std::min(transfer.copies_until_, by > now ? by : now + grace_);
  }
  if (transfer.ending()) {
    transfer.give_up_ = std::min(transfer.give_up_, by);
    return AdvanceEnd(transfer, now);
  }
  ++ending_;
  transfer.end_state_ = state;
  transfer.end_status_ = why;
  transfer.give_up_ = by;
  transfer.slice_.reset();
  // What the owner of a lease was asked last is answered in any case.
  if (transfer.request_.lease != nullptr && transfer.state_ != SendState::kConfirming) {
    PushFetchEnd(transfer, 0);
  }
  const AbortFrame abort{.transfer = transfer.id(),
                         .order = transfer.order_,
                         .opened = transfer.opened_,
                         .slots = transfer.book_.End(slots_)};
  // The target need not be asked about a transfer of which it has seen nothing and that has no
  // number.
  const bool asks = transfer.opened_ || transfer.order_ != 0 || !abort.slots.empty();
  if (asks) {
    channel_->Push(FrameType::kAbort, abort);
  } else {
    ReturnCredit(transfer);
  }
  Set(transfer, asks ? SendState::kAborting : SendState::kStopping);
  Act(Action::Kind::kStop, transfer);
  AdvanceEnd(transfer, now);
}

// Tells the application when both ends are quiet, or at the time that it has without that.
void SendTracker::AdvanceEnd(Transfer& transfer, Time now) {
  if (transfer.ended()) {
    if (transfer.state_ == SendState::kMoving && transfer.ops_ == 0) {
      Set(transfer, SendState::kGone);
    }
    return;
  }
  const bool late = now >= transfer.give_up_;
  if (transfer.request_.staged && transfer.ops_ > 0 && late) {
    return Act(Action::Kind::kAbandon, transfer);
  }
  if (transfer.ops_ > 0 && now < transfer.copies_until_) return;
  const bool asked = transfer.state_ == SendState::kAborting;
  if (asked && !late) return;
  // Only bytes that were sent, and that land by themselves, can still come after this.
  const bool orphaned = transfer.state_ == SendState::kOrphaned;
  const bool unheard = (asked || orphaned) && transfer.counted() && transfer.slices_ > 0;
  --ending_;
  Tell(transfer, transfer.end_state_, transfer.end_status_, DeliveryOf(transfer),
       unheard || transfer.ops_ > 0);
  if (unheard && orphaned) Act(Action::Kind::kOrphan, transfer);
  using enum SendState;
  Set(transfer, asked ? kUnanswered : transfer.ops_ > 0 ? kMoving : kGone);
}

// Of a transfer that ends otherwise than done.
Delivery SendTracker::DeliveryOf(const Transfer& transfer) {
  if (transfer.request_.notification == nullptr) return Delivery::kNone;
  if (transfer.end_state_ == TransferState::kDone) return Delivery::kDelivered;
  const bool unknown = transfer.state_ == SendState::kAborting || transfer.unreported_;
  return unknown && transfer.opened_ ? Delivery::kUnknown : Delivery::kNotDelivered;
}

void SendTracker::Tell(Transfer& transfer, TransferState state, const absl::Status& status,
                       Delivery delivery, bool quarantined) {
  actions_.push_back({.kind = Action::Kind::kEnd,
                      .transfer = &transfer,
                      .state = state,
                      .status = status,
                      .delivery = delivery,
                      .quarantined = quarantined});
}

void SendTracker::OnTime(Time now) {
  if (ending_ == 0) return;
  ForEach([&](Transfer& transfer) {
    if (transfer.ending() && !transfer.ended() && transfer.ends_by() <= now) {
      AdvanceEnd(transfer, now);
    }
  });
}

Time SendTracker::NextTimer() const {
  Time next = Time::max();
  if (ending_ == 0) return next;
  for (const auto& [id, transfer] : transfers_) {
    if (transfer.ending() && !transfer.ended()) next = std::min(next, transfer.ends_by());
  }
  return next;
}

}  // namespace kvxfer
