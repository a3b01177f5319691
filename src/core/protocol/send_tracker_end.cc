// Failures, the target's word, and ends. send_tracker.cc has the way to done.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/protocol/send_tracker.h"

namespace kvxfer {
namespace {

absl::Status CannotBe(absl::string_view what, uint64_t id) {
  return absl::InvalidArgumentError(
      absl::StrCat("it says that transfer ", id, " ", what, ", which cannot be"));
}

// Of a transfer that ends otherwise than done.
Delivery DeliveryOf(const SendTransfer& transfer) {
  if (transfer.request().notification == nullptr) return Delivery::kNone;
  if (transfer.end().state() == TransferState::kDone) return Delivery::kDelivered;
  const bool unknown = transfer.state() == SendState::kAborting || transfer.end().answer_lost();
  return unknown && transfer.opened() ? Delivery::kUnknown : Delivery::kNotDelivered;
}

// Staged ops can be abandoned, so nothing waits for them. Nothing ends the copies of a GPU: they
// get the time of the end, or what those of a stopped transfer get.
void WaitForOps(SendTransfer& transfer, Time by, Time now, Duration grace) {
  if (transfer.request().staged) return;
  if (transfer.request().may_hang) {
    transfer.end().WaitForOps(by > now ? by : now + grace);
  } else {
    transfer.end().WaitForOps(std::max(by, now) + kOpsReturnWithin);
  }
}

}  // namespace

// --- ops and rails ---

void SendTracker::OnCompleted(Transfer& transfer, Time now) {
  transfer.OpsOver(1);
  if (transfer.ops() > 0) return;
  if (!transfer.ending()) return Advance(transfer);
  // An answer that is still awaited makes it quiet.
  if (transfer.state() == SendState::kMoving) Act(Action::Kind::kQuiet, transfer);
  AdvanceEnd(transfer, now);
}

void SendTracker::OnFailed(Transfer& transfer, const absl::Status& why, Time now) {
  if (transfer.ending() || transfer.arrived()) return OnCompleted(transfer, now);
  transfer.OpsOver(1);
  End(transfer, TransferState::kFailed, why, EndCause::kStopped, now);
}

void SendTracker::OnSuspect(Transfer& transfer, uint32_t rail, uint32_t slice,
                            const absl::Status& why, Time now) {
  if (transfer.ending() || transfer.arrived()) return OnCompleted(transfer, now);
  transfer.suspects().Add(rail, why);
  // What the target counts goes again when the rail is fenced.
  if (!transfer.counted()) {
    transfer.book().Again(slice);
    SendAgain(transfer);
  }
  OnCompleted(transfer, now);
}

void SendTracker::OnAbandoned(Transfer& transfer, uint32_t ops, Time now) {
  transfer.OpsOver(ops);
  AdvanceEnd(transfer, now);
}

void SendTracker::OnRailDown(uint64_t link, uint32_t rail) {
  ForEach([&](Transfer& transfer) {
    if (transfer.request().link == link) transfer.suspects().Explain(rail);
  });
}

void SendTracker::OnRailCleared(uint64_t link, uint32_t rail, Time now) {
  ForEach([&](Transfer& transfer) {
    if (transfer.request().link != link) return;
    const auto why = transfer.suspects().TakeUnexplained(rail);
    if (!why.has_value() || transfer.ending() || transfer.arrived()) return;
    End(transfer, TransferState::kFailed, *why, EndCause::kStopped, now);
  });
}

// Which writes of the rail's lanes arrived is not known: all go again, once the target has let go
// of the slots. ABORT names the lanes of what is ending.
void SendTracker::OnRailFenced(uint64_t link, uint32_t rail) {
  ForEach([&](Transfer& transfer) {
    if (transfer.request().link != link || transfer.ending() || transfer.arrived()) return;
    if (!transfer.counted()) return;
    // It may be of a lane that is taken back.
    const auto& prepared = transfer.prepared();
    if (prepared.has_value() && prepared->book != SendBook::kFirst) transfer.DropPrepared();
    const DiscardFrame frame{.transfer = transfer.id(), .slots = transfer.book().Discard(rail)};
    if (!frame.slots.empty()) channel_->Push(FrameType::kDiscard, frame);
  });
}

// Fails what had data on the lost connection; what only waits for the target's word goes on.
void SendTracker::OnLinkLost(uint64_t link, const absl::Status& why, Time now,
                             absl::FunctionRef<void(Transfer&)> lost) {
  ForEach([&](Transfer& transfer) {
    if (transfer.request().link != link) return;
    transfer.LoseLink();
    lost(transfer);
    const bool only_waits = transfer.state() == SendState::kConfirming ||
                            (transfer.opened() && !transfer.counted() && !transfer.ending());
    if (!only_waits) End(transfer, TransferState::kFailed, why, EndCause::kLost, now);
  });
}

// --- the target's word ---

absl::Status SendTracker::OnReleased(const ReleasedFrame& frame, Time now) {
  for (const SlotRef& ref : frame.freed) {
    // Of the lane that uses the slot now nothing is on the way: it needs no DISCARD, and no ABORT.
    if (Transfer* const holder = Find(slots_.pool().HolderOf(ref))) holder->book().OnFreed(ref);
    if (auto status = slots_.pool().Free(ref); !status.ok()) return status;
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

absl::Status SendTracker::OnArrived(uint64_t id) {
  Transfer* const transfer = Find(id);
  // While lanes go again, the target misses them.
  if (transfer == nullptr || !transfer->opened() || transfer->arrived() ||
      transfer->state() == SendState::kAmending) {
    return CannotBe("has arrived", id);
  }
  transfer->OnArrived();
  // While it is ending, the answer to ABORT says the same.
  if (!transfer->ending()) Advance(*transfer);
  return absl::OkStatus();
}

// The target has let go of a discarded lane; its slot was freed just before.
absl::Status SendTracker::OnDiscarded(const DiscardAck& ack) {
  Transfer* const transfer = Find(ack.transfer);
  if (transfer == nullptr || transfer->ending() || transfer->arrived()) return absl::OkStatus();
  const auto again = transfer->book().OnDiscarded(ack, slots_.pool());
  if (!again.ok()) return again.status();
  if (*again) SendAgain(*transfer);
  Advance(*transfer);
  return absl::OkStatus();
}

absl::Status SendTracker::OnAborted(const AbortAck& ack, Time now) {
  Transfer* const transfer = Find(ack.transfer);
  if (transfer == nullptr || !transfer->asks()) {
    return CannotBe("is aborted", ack.transfer);
  }
  if (ack.delivered) {
    transfer->OnArrived();
    transfer->end().BecomeDelivered(transfer->refused());
  } else {
    credit_.Return(transfer->request().notification);
  }
  if (transfer->state() == SendState::kAborting) {
    Set(*transfer, SendState::kStopping);
    AdvanceEnd(*transfer, now);
  } else {
    if (transfer->ops() == 0) Act(Action::Kind::kQuiet, *transfer);
    Set(*transfer, transfer->ops() > 0 ? SendState::kMoving : SendState::kGone);
  }
  return absl::OkStatus();
}

absl::Status SendTracker::OnLease(Transfer& transfer, const absl::Status& refused, Time now) {
  if (transfer.ending()) return absl::OkStatus();
  const SendState state = transfer.state();
  const bool asked = state == SendState::kLeasing || state == SendState::kConfirming;
  // A lease may also end while it is read.
  if (transfer.request().lease == nullptr || (!asked && refused.ok())) {
    return absl::InvalidArgumentError("an answer on a lease that was not asked for");
  }
  if (!refused.ok()) {
    End(transfer, TransferState::kFailed, refused, EndCause::kStopped, now);
    return absl::OkStatus();
  }
  if (state == SendState::kLeasing) {
    const bool sends = transfer.request().moves || transfer.request().held;
    Set(transfer, sends ? SendState::kSending : SendState::kSent);
  } else {
    transfer.OnLeaseHeld();
    Set(transfer, SendState::kSent);
  }
  Advance(transfer);
  return absl::OkStatus();
}

// --- ends ---

void SendTracker::End(Transfer& transfer, TransferState state, const absl::Status& why,
                      EndCause cause, Time now) {
  const Request& request = transfer.request();
  End(transfer, state, why, EndBy(cause, request.posted, request.deadline, grace_, now), now);
}

void SendTracker::End(Transfer& transfer, TransferState state, const absl::Status& why, Time by,
                      Time now) {
  if (transfer.state() == SendState::kGone) return;
  if (transfer.ops() > 0) WaitForOps(transfer, by, now, grace_);
  if (transfer.ending()) {
    transfer.end().Shorten(by);
    return AdvanceEnd(transfer, now);
  }
  ++ending_;
  transfer.end().Begin(state, why, by);
  transfer.DropPrepared();
  // What the owner of a lease was asked last is answered in any case.
  if (transfer.request().lease != nullptr && transfer.state() != SendState::kConfirming) {
    channel_->Push(FrameType::kFetchEnd, FetchEndFrame{.transfer = transfer.id(),
                                                       .lease = transfer.request().lease->lease});
  }
  const AbortFrame abort{.transfer = transfer.id(),
                         .order = transfer.order(),
                         .opened = transfer.opened(),
                         .slots = transfer.book().End(slots_.pool())};
  // The target need not be asked about a transfer of which it has seen nothing and that has no
  // number.
  const bool asks = transfer.opened() || transfer.order() != 0 || !abort.slots.empty() ||
                    (transfer.request().from_lent && transfer.slices() > 0);
  if (asks) {
    channel_->Push(FrameType::kAbort, abort);
  } else {
    credit_.Return(transfer.request().notification);
  }
  Set(transfer, asks ? SendState::kAborting : SendState::kStopping);
  Act(Action::Kind::kStop, transfer);
  AdvanceEnd(transfer, now);
}

// Tells the application when both ends are quiet, or at the time that it has without that.
void SendTracker::AdvanceEnd(Transfer& transfer, Time now) {
  if (transfer.ended()) {
    if (transfer.state() == SendState::kMoving && transfer.ops() == 0) {
      Set(transfer, SendState::kGone);
    }
    return;
  }
  const bool late = transfer.end().late(now);
  if (transfer.request().staged && transfer.ops() > 0 && late) {
    return Act(Action::Kind::kAbandon, transfer);
  }
  if (transfer.ops() > 0 && transfer.end().ops_in_time(now)) return;
  const bool asked = transfer.state() == SendState::kAborting;
  if (asked && !late) return;
  // Only bytes that were sent, and that land by themselves, can still come after this.
  const bool orphaned = transfer.state() == SendState::kOrphaned;
  const bool unheard = (asked || orphaned) && transfer.counted() && transfer.slices() > 0;
  --ending_;
  Tell(transfer, transfer.end().state(), transfer.end().why(), DeliveryOf(transfer),
       unheard || transfer.ops() > 0, asked && transfer.request().from_lent);
  if (unheard && orphaned) Act(Action::Kind::kOrphan, transfer);
  using enum SendState;
  Set(transfer, asked ? kUnanswered : transfer.ops() > 0 ? kMoving : kGone);
}

void SendTracker::Tell(Transfer& transfer, TransferState state, const absl::Status& status,
                       Delivery delivery, bool quarantined, bool lent_in_use) {
  actions_.push_back({.kind = Action::Kind::kEnd,
                      .transfer = &transfer,
                      .state = state,
                      .status = status,
                      .delivery = delivery,
                      .quarantined = quarantined,
                      .lent_in_use = lent_in_use});
}

void SendTracker::OnTime(Time now) {
  if (ending_ == 0) return;
  ForEach([&](Transfer& transfer) {
    if (transfer.ending() && !transfer.ended() && transfer.end().by(transfer.ops()) <= now) {
      AdvanceEnd(transfer, now);
    }
  });
}

Time SendTracker::NextTimer() const {
  Time next = Time::max();
  if (ending_ == 0) return next;
  for (const auto& [id, transfer] : transfers_) {
    if (!transfer.ending() || transfer.ended()) continue;
    next = std::min(next, transfer.end().by(transfer.ops()));
  }
  return next;
}

}  // namespace kvxfer
