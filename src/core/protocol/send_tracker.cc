#include "src/core/protocol/send_tracker.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>

#include "src/core/protocol/slot_table.h"

namespace kvxfer {
namespace {

constexpr size_t kStates = static_cast<size_t>(SendState::kGone) + 1;

constexpr uint32_t Bit(SendState state) { return 1u << static_cast<uint32_t>(state); }

template <typename... States>
constexpr uint32_t Bits(States... states) {
  return (Bit(states) | ... | 0u);
}

// By the state that is left: those that may follow. The header has the same as a table to read.
constexpr std::array<uint32_t, kStates> kLegal = [] {
  using enum SendState;
  const uint32_t ends = Bits(kAborting, kStopping);
  std::array<uint32_t, kStates> legal{};
  const auto allow = [&legal](SendState from, uint32_t to) {
    legal[static_cast<size_t>(from)] = to;
  };
  allow(kLeasing, Bits(kSending, kSent) | ends);
  allow(kSending, Bits(kSent) | ends);
  allow(kSent, Bits(kSending, kConfirming, kOpened, kGone) | ends);
  allow(kConfirming, Bits(kSent) | ends);
  allow(kOpened, Bits(kAmending, kArrived, kGone) | ends);
  allow(kAmending, Bits(kOpened) | ends);
  allow(kArrived, Bits(kGone) | ends);
  allow(kAborting, Bits(kStopping, kOrphaned, kUnanswered));
  allow(kStopping, Bits(kMoving, kGone));
  allow(kOrphaned, Bits(kStopping, kMoving, kGone));
  allow(kUnanswered, Bits(kMoving, kGone));
  allow(kMoving, Bits(kGone));
  return legal;
}();

}  // namespace

bool IsLegal(SendState from, SendState to) {
  return (kLegal[static_cast<size_t>(from)] & Bit(to)) != 0;
}

// --- Transfer ---

SendTracker::Transfer::Transfer(Request&& request) : request_(std::move(request)) {
  if (request_.moves) book_ = SendBook(std::exchange(request_.lanes, std::nullopt));
  if (request_.lease != nullptr) {
    state_ = SendState::kLeasing;
  } else if (!request_.moves && !request_.held) {
    state_ = SendState::kSent;
  }
}

Time SendTracker::Transfer::ends_by() const {
  const bool hangs = ops_ > 0 && copies_until_ != Time::max();
  return hangs ? copies_until_ : give_up_;
}

// --- the session ---

SendTracker::SendTracker(const SendTracker& other, ReliableChannel* channel)
    : channel_(channel),
      grace_(other.grace_),
      transfers_(other.transfers_),
      ending_(other.ending_),
      slots_(other.slots_),
      slots_requested_(other.slots_requested_),
      last_order_(other.last_order_),
      credit_(other.credit_),
      credit_used_(other.credit_used_) {
  assert(other.actions_.empty());
}

bool SendTracker::HasCredit(const std::string* notification) const {
  if (notification == nullptr) return true;
  return credit_used_.notifications < credit_.notifications &&
         credit_used_.bytes + notification->size() <= credit_.bytes;
}

void SendTracker::OnCredit(const CreditFrame& credit) {
  credit_.notifications = std::max(credit_.notifications, credit.notifications);
  credit_.bytes = std::max(credit_.bytes, credit.bytes);
}

// The target never had the notification, or dropped it with the transfer.
void SendTracker::ReturnCredit(const Transfer& transfer) {
  if (transfer.request_.notification == nullptr) return;
  --credit_used_.notifications;
  credit_used_.bytes -= transfer.request_.notification->size();
}

void SendTracker::RequestSlots() {
  if (std::exchange(slots_requested_, true)) return;
  channel_->Push(FrameType::kSlotRequest, SlotRequestFrame{.count = kRangeSlots});
}

absl::Status SendTracker::OnGrant(const SlotGrantFrame& grant) {
  slots_requested_ = false;
  return slots_.AddGrant(grant);
}

void SendTracker::OnSessionLost(const absl::Status& why, Time now) {
  ForEach([&](Transfer& transfer) {
    End(transfer, TransferState::kFailed, why, EndCause::kLost, now);
  });
  ForEach([&](Transfer& transfer) { Orphan(transfer, now); });
}

// The target no longer knows the transfer, or never will.
void SendTracker::Orphan(Transfer& transfer, Time now) {
  if (transfer.state_ == SendState::kAborting) {
    transfer.unreported_ = true;
    Set(transfer, SendState::kOrphaned);
    AdvanceEnd(transfer, now);
  } else if (transfer.state_ == SendState::kUnanswered) {
    if (transfer.counted() && transfer.slices_ > 0) Act(Action::Kind::kOrphan, transfer);
    Set(transfer, transfer.ops_ > 0 ? SendState::kMoving : SendState::kGone);
  }
}

void SendTracker::NewSession() {
  slots_ = SlotPool();
  slots_requested_ = false;
  last_order_ = 0;
  credit_ = {};
  credit_used_ = {};
}

void SendTracker::OnQuiet() {
  ForEach([this](Transfer& transfer) {
    if (transfer.state_ == SendState::kOrphaned) Set(transfer, SendState::kStopping);
  });
}

// --- one transfer ---

SendTracker::Transfer& SendTracker::Begin(Request&& request, Time now) {
  const uint64_t id = request.id;
  Transfer& transfer = transfers_.try_emplace(id, std::move(request)).first->second;
  if (const std::string* notification = transfer.request_.notification) {
    ++credit_used_.notifications;
    credit_used_.bytes += notification->size();
  }
  if (transfer.request_.ordered) transfer.order_ = ++last_order_;
  if (transfer.state_ == SendState::kLeasing) PushLeaseRead(transfer, now);
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
  assert(IsLegal(transfer.state_, to));
  transfer.state_ = to;
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

bool SendTracker::MayPost(const Transfer& transfer) const {
  return transfer.sending() && transfer.unexplained_.empty() && !transfer.book_.posted();
}

uint32_t SendTracker::NextSlice(const Transfer& transfer) {
  const SendBook& book = transfer.book_;
  return book.cut_all() ? book.Next().number : book.cut();
}

void SendTracker::Prepare(Transfer& transfer, bool last) {
  SendBook& book = transfer.book_;
  transfer.slice_ = book.cut_all() ? book.Next() : book.Cut(last);
}

std::optional<uint32_t> SendTracker::BoundTo(const Transfer& transfer) {
  return transfer.book_.BoundTo(*transfer.slice_);
}

std::optional<SendTracker::Offered> SendTracker::Offer(Transfer& transfer, uint32_t rail) {
  SendBook& book = transfer.book_;
  const SendBook::Slice& slice = *transfer.slice_;
  if (!book.OpenLane(slice, rail, slots_, transfer.id())) {
    RequestSlots();
    return std::nullopt;
  }
  return Offered{.immediate = book.ImmediateFor(slice, rail),
                 .sole = transfer.slices_ == 0 && book.counted() && book.IsLast(slice) &&
                         !book.awaits_discarded()};
}

void SendTracker::OnAccepted(Transfer& transfer, uint32_t rail) {
  transfer.book_.OnPosted(*std::exchange(transfer.slice_, std::nullopt), rail);
  ++transfer.ops_;
  ++transfer.slices_;
}

std::optional<SendBook::Closing> SendTracker::NextToClose(const Transfer& transfer) {
  if (!transfer.sending() || !transfer.counted() || !transfer.book_.posted()) return std::nullopt;
  return transfer.book_.NextToClose();
}

void SendTracker::OnClosed(Transfer& transfer, uint32_t rail) {
  transfer.book_.OnClosed(rail);
  ++transfer.ops_;
}

bool SendTracker::FinishPosting(Transfer& transfer) {
  if (!transfer.sending() || transfer.request_.held) return false;
  if (!transfer.book_.posted() || transfer.book_.NextToClose().has_value()) return false;
  const bool amends = transfer.state_ == SendState::kAmending;
  Set(transfer, amends ? SendState::kOpened : SendState::kSent);
  Advance(transfer);
  return true;
}

void SendTracker::Unhold(Transfer& transfer) {
  transfer.request_.held = false;
  FinishPosting(transfer);
}

// Slices of it go again.
void SendTracker::SendAgain(Transfer& transfer) {
  if (transfer.sending()) return;
  Set(transfer, transfer.opened_ ? SendState::kAmending : SendState::kSending);
  Act(Action::Kind::kSend, transfer);
}

// One step nearer to done, where nothing has gone wrong.
void SendTracker::Advance(Transfer& transfer) {
  if (transfer.state_ == SendState::kSent) {
    if (!LeaseHeld(transfer)) return;
    TellLanes(transfer);
  } else if (transfer.state_ == SendState::kOpened) {
    TellLanes(transfer);
  } else if (transfer.state_ != SendState::kArrived) {
    return;
  }
  const bool complete =
      transfer.opened_ ? transfer.arrived_ : !NeedsOpen(transfer) && transfer.unexplained_.empty();
  if (!complete) return;
  if (transfer.ops_ > 0) {
    if (transfer.state_ == SendState::kOpened) Set(transfer, SendState::kArrived);
    return;
  }
  const bool notifies = transfer.request_.notification != nullptr;
  if (transfer.refused_.ok()) {
    Tell(transfer, TransferState::kDone, absl::OkStatus(),
         notifies ? Delivery::kDelivered : Delivery::kNone, false);
  } else {
    Tell(transfer, TransferState::kFailed, transfer.refused_, Delivery::kNotDelivered, false);
  }
  Set(transfer, SendState::kGone);
}

// OPEN once nothing that it names can change: where the target counts, when all is posted and no
// DISCARD is unanswered; elsewhere when all bytes are there. Then AMEND for each lane that goes
// again.
void SendTracker::TellLanes(Transfer& transfer) {
  SendBook& book = transfer.book_;
  book.LetSlotsGo(slots_);
  if (transfer.opened_) {
    const AmendFrame amend{.transfer = transfer.id(), .lanes = book.TellNew()};
    if (!amend.lanes.empty()) channel_->Push(FrameType::kAmend, amend);
    return;
  }
  const bool copied = transfer.ops_ == 0 && transfer.unexplained_.empty();
  if (!book.counted() && !copied) return;
  if (book.awaits_discarded()) return;
  if (NeedsOpen(transfer)) PushOpen(transfer);
}

// Whether the target is told of it (OPEN), rather than only being written to or read from.
bool SendTracker::NeedsOpen(const Transfer& transfer) {
  return transfer.counted() || transfer.order_ != 0 || transfer.request_.notification != nullptr;
}

void SendTracker::PushOpen(Transfer& transfer) {
  const Request& request = transfer.request_;
  const bool notifies = request.notification != nullptr;
  channel_->Push(FrameType::kOpen,
                 OpenFrame{.transfer = transfer.id(),
                           .order = transfer.order_,
                           .notice = notifies ? request.notice : Notice::kNone,
                           .lanes = transfer.book_.TellAll(),
                           .notification = notifies ? *request.notification : std::string()});
  transfer.opened_ = true;
  Set(transfer, SendState::kOpened);
}

// Whether what was read under a lease is known to be what was leased. The owner is asked once all
// of it is read.
bool SendTracker::LeaseHeld(Transfer& transfer) {
  if (transfer.request_.lease == nullptr) return true;
  if (transfer.ops_ > 0 || !transfer.unexplained_.empty()) return false;
  Set(transfer, SendState::kConfirming);
  PushFetchEnd(transfer, transfer.request_.lease->readers);
  return false;
}

// Nothing is read before the answer: the lease may be granted only now, by a name that the reader
// knew before.
void SendTracker::PushLeaseRead(const Transfer& transfer, Time now) {
  const Request& request = transfer.request_;
  const Duration within = std::max<Duration>(request.deadline - now, Duration::zero());
  const Duration wait = std::max<Duration>(request.lease->wait, Duration::zero());
  channel_->Push(FrameType::kLeaseRead,
                 LeaseReadFrame{.transfer = request.id,
                                .lease = request.lease->lease,
                                .contents = request.lease->contents,
                                .blocks_hash = request.lease->blocks_hash,
                                .within_nanos = static_cast<uint64_t>(within.count()),
                                .wait_nanos = static_cast<uint64_t>(wait.count())});
}

void SendTracker::PushFetchEnd(const Transfer& transfer, uint32_t readers) {
  channel_->Push(FrameType::kFetchEnd, FetchEndFrame{.transfer = transfer.id(),
                                                     .lease = transfer.request_.lease->lease,
                                                     .readers = readers});
}

}  // namespace kvxfer
