#include "src/core/protocol/send_tracker.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <utility>

namespace kvxfer {
namespace {

// Whether the target is told of it (OPEN), rather than only being written to or read from.
bool NeedsOpen(const SendTransfer& transfer) {
  return transfer.counted() || transfer.order() != 0 || transfer.request().notification != nullptr;
}

OpenFrame OpenOf(SendTransfer& transfer) {
  const SendTransfer::Request& request = transfer.request();
  const bool notifies = request.notification != nullptr;
  return {.transfer = transfer.id(),
          .order = transfer.order(),
          .notice = notifies ? request.notice : Notice::kNone,
          .lanes = transfer.book().TellAll(),
          .notification = notifies ? *request.notification : std::string()};
}

// Nothing is read before the answer: the lease may be granted only now, by a name that the reader
// knew before.
LeaseReadFrame LeaseReadOf(const SendTransfer::Request& request, Time now) {
  const Duration within = std::max<Duration>(request.deadline - now, Duration::zero());
  const Duration wait = std::max<Duration>(request.lease->wait, Duration::zero());
  return {.transfer = request.id,
          .lease = request.lease->lease,
          .contents = request.lease->contents,
          .blocks_hash = request.lease->blocks_hash,
          .within_nanos = static_cast<uint64_t>(within.count()),
          .wait_nanos = static_cast<uint64_t>(wait.count())};
}

}  // namespace

// --- the session ---

SendTracker::SendTracker(const SendTracker& other, ReliableChannel* channel)
    : channel_(channel),
      grace_(other.grace_),
      transfers_(other.transfers_),
      ending_(other.ending_),
      slots_(other.slots_, channel),
      last_order_(other.last_order_),
      credit_(other.credit_) {
  assert(other.actions_.empty());
}

void SendTracker::OnSessionLost(const absl::Status& why, Time now) {
  ForEach([&](Transfer& transfer) {
    End(transfer, TransferState::kFailed, why, EndCause::kLost, now);
  });
  ForEach([&](Transfer& transfer) { Orphan(transfer, now); });
}

// The target no longer knows the transfer, or never will.
void SendTracker::Orphan(Transfer& transfer, Time now) {
  if (transfer.state() == SendState::kAborting) {
    transfer.end().LoseAnswer();
    Set(transfer, SendState::kOrphaned);
    AdvanceEnd(transfer, now);
  } else if (transfer.state() == SendState::kUnanswered) {
    const bool lands = transfer.counted() && transfer.slices() > 0;
    if (lands) Act(Action::Kind::kOrphan, transfer);
    if (!lands && transfer.ops() == 0) Act(Action::Kind::kQuiet, transfer);
    Set(transfer, transfer.ops() > 0 ? SendState::kMoving : SendState::kGone);
  }
}

void SendTracker::NewSession() {
  slots_.Clear();
  last_order_ = 0;
  credit_ = {};
}

void SendTracker::OnQuiet() {
  ForEach([this](Transfer& transfer) {
    if (transfer.state() == SendState::kOrphaned) Set(transfer, SendState::kStopping);
  });
}

// --- one transfer ---

SendTracker::Transfer& SendTracker::Begin(Request&& request, Time now) {
  const uint64_t id = request.id;
  const uint64_t order = request.ordered ? ++last_order_ : 0;
  Transfer& transfer = transfers_.try_emplace(id, std::move(request), order).first->second;
  credit_.Take(transfer.request().notification);
  if (transfer.state() == SendState::kLeasing) {
    channel_->Push(FrameType::kLeaseRead, LeaseReadOf(transfer.request(), now));
  }
  Advance(transfer);
  return transfer;
}

SendTracker::Transfer* SendTracker::Find(uint64_t id) {
  const auto it = transfers_.find(id);
  return it == transfers_.end() ? nullptr : &it->second;
}

void SendTracker::ForEach(absl::FunctionRef<void(Transfer&)> visit) {
  for (auto& [id, transfer] : transfers_) visit(transfer);
}

void SendTracker::Forget(Transfer& transfer) { transfers_.erase(transfer.id()); }

void SendTracker::Set(Transfer& transfer, SendState to) {
  transfer.Become(to);
  if (to == SendState::kGone) Act(Action::Kind::kForget, transfer);
}

void SendTracker::Act(Action::Kind kind, Transfer& transfer) {
  actions_.push_back({.kind = kind, .transfer = &transfer});
}

void SendTracker::TakeActions(std::vector<Action>& done) {
  done.clear();
  done.swap(actions_);
}

// --- posting ---

bool SendTracker::FinishPosting(Transfer& transfer) {
  if (!transfer.AllPosted()) return false;
  const bool amends = transfer.state() == SendState::kAmending;
  Set(transfer, amends ? SendState::kOpened : SendState::kSent);
  Advance(transfer);
  return true;
}

void SendTracker::Unhold(Transfer& transfer) {
  transfer.Unhold();
  FinishPosting(transfer);
}

// Slices of it go again.
void SendTracker::SendAgain(Transfer& transfer) {
  if (transfer.sending()) return;
  Set(transfer, transfer.opened() ? SendState::kAmending : SendState::kSending);
  Act(Action::Kind::kSend, transfer);
}

// One step nearer to done, where nothing has gone wrong.
void SendTracker::Advance(Transfer& transfer) {
  if (transfer.state() == SendState::kSent) {
    if (!LeaseHeld(transfer)) return;
    TellLanes(transfer);
  } else if (transfer.state() == SendState::kOpened) {
    TellLanes(transfer);
  } else if (transfer.state() != SendState::kArrived) {
    return;
  }
  const bool complete =
      transfer.opened() ? transfer.arrived() : !NeedsOpen(transfer) && transfer.suspects().empty();
  if (!complete) return;
  if (transfer.ops() > 0) {
    if (transfer.state() == SendState::kOpened) Set(transfer, SendState::kArrived);
    return;
  }
  const bool notifies = transfer.request().notification != nullptr;
  if (transfer.refused().ok()) {
    Tell(transfer, TransferState::kDone, absl::OkStatus(),
         notifies ? Delivery::kDelivered : Delivery::kNone, false);
  } else {
    Tell(transfer, TransferState::kFailed, transfer.refused(), Delivery::kNotDelivered, false);
  }
  Set(transfer, SendState::kGone);
}

// OPEN once nothing that it names can change: where the target counts, when all is posted and no
// DISCARD is unanswered; elsewhere when all bytes are there. Then AMEND for each lane that goes
// again.
void SendTracker::TellLanes(Transfer& transfer) {
  SendBook& book = transfer.book();
  book.LetSlotsGo(slots_.pool());
  if (transfer.opened()) {
    const AmendFrame amend{.transfer = transfer.id(), .lanes = book.TellNew()};
    if (!amend.lanes.empty()) channel_->Push(FrameType::kAmend, amend);
    return;
  }
  const bool copied = transfer.ops() == 0 && transfer.suspects().empty();
  if (!book.counted() && !copied) return;
  if (book.awaits_discarded()) return;
  if (!NeedsOpen(transfer)) return;
  channel_->Push(FrameType::kOpen, OpenOf(transfer));
  transfer.OnOpened();
  Set(transfer, SendState::kOpened);
}

// Whether what was read under a lease is known to be what was leased. The owner is asked once all
// of it is read.
bool SendTracker::LeaseHeld(Transfer& transfer) {
  if (transfer.request().lease == nullptr) return true;
  if (transfer.ops() > 0 || !transfer.suspects().empty()) return false;
  Set(transfer, SendState::kConfirming);
  const LeasedRead& lease = *transfer.request().lease;
  channel_->Push(
      FrameType::kFetchEnd,
      FetchEndFrame{.transfer = transfer.id(), .lease = lease.lease, .readers = lease.readers});
  return false;
}

}  // namespace kvxfer
