#include "src/agent/session/transfer_set.h"

#include <algorithm>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// How often a transfer's ready fence, or a key on its way, is looked at. A layer that is there by
// its fence leaves so much later, which is to be little beside its transfer; a look takes some
// microseconds.
constexpr Duration kReadyPoll = std::chrono::microseconds(100);
constexpr Duration kClosedPoll = std::chrono::milliseconds(1);

bool TouchesCuda(const internal::TransferRecord& record) {
  const auto any = [](const auto& table, std::span<const uint32_t> indices) {
    return std::ranges::any_of(
        indices, [&](uint32_t index) { return table->regions()[index].kind == MemoryKind::kCuda; });
  };
  return any(record.local, record.blocks.local_regions()) ||
         any(record.remote, record.blocks.remote_regions());
}

// `silence`: of the peer, if it is suspect.
absl::Status DeadlineStatus(const internal::TransferRecord& record, std::string_view stage,
                            std::string_view silence) {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(record.deadline - record.posted);
  return absl::DeadlineExceededError(absl::StrCat(
      "transfer ", record.id, " to peer ", record.peer, " not done within ", ms.count(),
      " ms: ", ToAbsl(stage), silence.empty() ? "" : "; the peer has given ", ToAbsl(silence)));
}

std::string StageOf(const Outbound& outbound) {
  const auto& after = outbound.record->after;
  if (after != nullptr && !after->passed()) {
    return "what it waits for in a CUDA stream is not over (TransferOptions::after)";
  }
  const SendTracker::Transfer& sending = *outbound.sending;
  if (sending.ops() > 0 || sending.unposted()) {
    return absl::StrCat("sending, ", sending.slices(), " slices posted, ", sending.ops(),
                        " not complete",
                        outbound.link == nullptr ? "" : outbound.link->rails.WhyNone());
  }
  if (sending.opened()) return "all sent, the peer has not confirmed the arrival";
  return "waiting to be sent";
}

}  // namespace

TransferSet::TransferSet(const Parts& parts)
    : parts_(parts),
      runtime_(parts.runtime),
      tracker_(parts.tracker),
      posted_(parts.runtime),
      stager_(this, parts.runtime, &parts.session->channel(), parts.regions),
      admission_({.runtime = parts.runtime,
                  .peer = parts.peer,
                  .paths = parts.paths,
                  .regions = parts.regions,
                  .tracker = parts.tracker,
                  .queue = &queue_,
                  .outbounds = &outbounds_,
                  .sender = &sender_},
                 this),
      sender_(parts.runtime, parts.tracker, &stager_, &admission_),
      keys_(parts.paths, parts.regions, &outbounds_),
      replies_(&parts.session->channel(), &keys_) {}

void TransferSet::Submit(TransferPtr record, const absl::Status& refused) {
  if (auto status = posted_.Enter(*record, refused); !status.ok()) {
    return FailQueued(record, TransferState::kFailed, std::move(status));
  }
  record->cuda = record->kind != TransferKind::kNotify && TouchesCuda(*record);
  queue_.Push(std::move(record));
}

void TransferSet::Cancel(uint64_t id, const absl::Status& why) {
  if (SendTracker::Transfer* const sending = tracker_->Find(id)) {
    if (sending->ended()) return;
    tracker_->End(*sending, TransferState::kCancelled, why, EndCause::kStopped, Now());
    return Settle();
  }
  if (const TransferPtr record = queue_.Remove(id)) {
    FailQueued(record, TransferState::kCancelled, why);
  }
}

void TransferSet::EndQueued(SendQueue::Predicate which, TransferState state,
                            const absl::Status& why) {
  for (const TransferPtr& record : queue_.Remove(which)) FailQueued(record, state, why);
}

// An op that is done at once leaves space for the next, and no event says so: it goes on here, or,
// so that others have their turn, in a pass that the timer brings.
void TransferSet::Post(Time now) {
  size_t done = 0;
  do {
    waits_key_ = !admission_.Admit(now);
    waits_key_ |= !stager_.Begin();
    sender_.Post(now, Sender::kMaxDone - done);
    const size_t taken = TakeDone();
    done += taken;
    Settle();
    goes_on_ = admission_.TakeNextOfStream() || (taken > 0 && unposted()) ||
               (stager_.begins() && !waits_key_);
  } while (goes_on_ && done < Sender::kMaxDone);
}

size_t TransferSet::TakeDone() {
  sender_.TakeDone(done_);
  for (const uint64_t op : done_) {
    OnCompletion(*runtime_->ops.Find(op)->outbound->link, op, absl::OkStatus());
  }
  return done_.size();
}

void TransferSet::TellStagedEnds() {
  while (stager_.has_ends()) {
    stager_.TellEnds();
    Settle();
  }
}

void TransferSet::OnTimer(Time now) {
  std::unordered_set<uint64_t> queued;
  while (const auto id = posted_.TakeDue(now)) {
    const Outbound* const outbound = FindOutbound(*tracker_, *id);
    if (outbound == nullptr) {
      queued.insert(*id);
      continue;
    }
    tracker_->End(*outbound->sending, TransferState::kDeadlineExceeded,
                  DeadlineStatus(*outbound->record, StageOf(*outbound),
                                 runtime_->presence.SilenceOf(outbound->record->peer,
                                                              outbound->record->incarnation, now)),
                  EndCause::kLate, now);
  }
  if (!queued.empty()) ExpireQueued(queued);
  tracker_->OnTime(now);
  Settle();
  replies_.OnTimer();
}

void TransferSet::ExpireQueued(const std::unordered_set<uint64_t>& ids) {
  for (const TransferPtr& record :
       queue_.Remove([&](const auto& one) { return ids.contains(one.id); })) {
    const std::string stage =
        parts_.paths->HasReady(record->options.backend)
            ? "waiting its turn (queue, slots or notification credit)"
            : absl::StrCat("not connected: ",
                           parts_.paths->Unreachable(record->options.backend).message());
    const std::string silence =
        runtime_->presence.SilenceOf(record->peer, record->incarnation, Now());
    FailQueued(record, TransferState::kDeadlineExceeded, DeadlineStatus(*record, stage, silence));
  }
}

Time TransferSet::NextTimer(bool posts) const {
  Time next = std::min(posted_.next(), tracker_->NextTimer());
  if (posts) next = std::min(next, sender_.next_point());
  if (posts && goes_on_) next = std::min(next, runtime_->now);
  if (sender_.waits_ready() || waits_key_) next = std::min(next, Now() + kReadyPoll);
  if (replies_.waits_closed()) next = std::min(next, Now() + kClosedPoll);
  return next;
}

// --- links and the session ---

void TransferSet::OnLinkUp(Link& link) {
  const auto arrival = runtime_->backends[link.backend]->capabilities().arrival;
  if (arrival == Arrival::kImmediate && !tracker_->slots().any()) tracker_->slots().Request();
  // What an earlier session left cannot land any more: the target accepts a new session only once
  // every connection of that one is gone at its side. If the session goes on, nothing is orphaned.
  OnQuiet();
  for (const Outbound& outbound : outbounds_) {
    if (outbound.sending->asks()) link.endpoint->Fence({.transfer = outbound.record->id});
  }
}

// Fails what had data on the lost link; what only waits for a word of the target goes on.
void TransferSet::OnLinkLost(Link& link, const absl::Status& why) {
  const absl::Status cause = absl::UnavailableError(
      absl::StrCat("connection to peer ", parts_.peer->name, " lost over ",
                   ToAbsl(runtime_->backends[link.backend]->name()), ": ", why.message()));
  if (sender_.inline_link() == &link) sender_.OnMessagesSent();
  tracker_->OnLinkLost(link.number, cause, Now(),
                       [](const auto& sending) { OutboundOf(sending).link = nullptr; });
}

void TransferSet::Lose(const absl::Status& why) {
  const Time now = Now();
  tracker_->ForEach([&](SendTracker::Transfer& sending) {
    if (!sending.ending()) {
      tracker_->End(sending, TransferState::kFailed, why, EndCause::kLost, now);
    }
  });
  Settle();
}

void TransferSet::OnRailUp(const Link& link) {
  for (Outbound& outbound : outbounds_) {
    if (outbound.link == &link) outbound.distances.local = nullptr;
  }
}

void TransferSet::OnNewSession() {
  replies_.Clear();
  stager_.OnSessionEnd();
}

// --- the stager's children and ops ---

// A part of a transfer that has begun: it waits neither in the queue nor for the application's
// regions to be open still.
absl::Status TransferSet::BeginChild(const TransferPtr& child, Link* link) {
  posted_.EnterChild(*child);
  absl::Status status = admission_.Begin(child, link);
  if (status.ok()) return status;
  posted_.LetMemoryGo(*child);
  posted_.Leave(*child);
  return status;
}

void TransferSet::EndChild(uint64_t child, const absl::Status& why, Time give_up) {
  if (SendTracker::Transfer* const sending = tracker_->Find(child)) {
    tracker_->End(*sending, TransferState::kCancelled, why, give_up, Now());
  }
}

// An op that went to the stager is over.
void TransferSet::OnStaged(uint64_t op, const absl::Status& status) {
  OpTable::Entry* entry = runtime_->ops.Find(op);
  if (entry == nullptr) return;
  SendTracker::Transfer& sending = *entry->outbound->sending;
  runtime_->ops.Release(op);
  if (status.ok()) return tracker_->OnCompleted(sending, Now());
  tracker_->OnFailed(sending,
                     Annotate(status, absl::StrCat("transfer ", sending.id(), " to peer ",
                                                   parts_.peer->name, ", staged")),
                     Now());
}

}  // namespace kvxfer
