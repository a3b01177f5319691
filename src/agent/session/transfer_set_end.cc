// How transfers end: completions, ends, and what is left of them.
#include <algorithm>
#include <memory>
#include <utility>

#include "src/agent/session/transfer_set.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

absl::Status OpFailed(const Runtime& runtime, const Outbound& outbound,
                      const absl::Status& status) {
  return Annotate(status,
                  absl::StrCat("transfer ", outbound.record->id, " to peer ", outbound.record->peer,
                               " over ", ToAbsl(runtime.backends[outbound.link->backend]->name())));
}

}  // namespace

void TransferSet::OnCompletion(Link& link, uint64_t op, const absl::Status& status) {
  OpTable::Entry* entry = runtime_->ops.Find(op);
  if (entry == nullptr) return;
  Outbound& outbound = *entry->outbound;
  // The time matters only for a rail that is not up; to read the clock costs.
  link.rails.OnCompleted(entry->rail, link.rails.up(entry->rail) ? runtime_->now : Now());
  const bool measured = status.ok() && !entry->sole;
  link.choice.OnCompleted(entry->rail, entry->blocks.bytes, runtime_->now, measured);
  link.seen->OnCompleted(entry->blocks.bytes, runtime_->now, measured);
  SendTracker::Transfer& sending = *outbound.sending;
  const uint32_t rail = entry->rail;
  const uint32_t slice = entry->slice;
  runtime_->ops.Release(op);
  const bool ended = sending.ended();
  if (status.ok() || sending.ending() || sending.arrived()) {
    tracker_->OnCompleted(sending, runtime_->now);
  } else if (runtime_->backends[link.backend]->capabilities().rails_fail_alone &&
             link.rails.OnFailed(rail, status, Now())) {
    tracker_->OnSuspect(sending, rail, slice, OpFailed(*runtime_, outbound, status), Now());
  } else {
    tracker_->OnFailed(sending, OpFailed(*runtime_, outbound, status), Now());
  }
  if (ended && sending.ops() == 0) {
    posted_.LetMemoryGo(*outbound.record);
  }
}

// Carrying out one action may ask for others.
void TransferSet::Settle() {
  while (tracker_->has_actions()) {
    tracker_->TakeActions(actions_);
    for (const SendTracker::Action& action : actions_) Carry(action);
  }
}

void TransferSet::Carry(const SendTracker::Action& action) {
  SendTracker::Transfer& sending = *action.transfer;
  Outbound& outbound = OutboundOf(sending);
  using Kind = SendTracker::Action::Kind;
  switch (action.kind) {
    case Kind::kStop:
      return Stop(outbound);
    case Kind::kAbandon:
      return tracker_->OnAbandoned(sending, stager_.Abandon(outbound), Now());
    case Kind::kSend:
      return sender_.Start(outbound);
    case Kind::kEnd:
      return Publish(outbound, action);
    case Kind::kQuiet:
      return ClearQuarantine(outbound.record, sending.arrived());
    case Kind::kOrphan:
      return quarantined_.push_back(outbound.record);
    case Kind::kForget:
      return Forget(outbound);
  }
}

// It ends otherwise than done: nothing more of it is posted.
void TransferSet::Stop(Outbound& outbound) {
  sender_.Stop(outbound);
  const uint64_t id = outbound.record->id;
  parts_.paths->ForEachUpLink([id](Link& link) { link.endpoint->Fence({.transfer = id}); });
  if (outbound.staged) {
    const SendTransfer& sending = *outbound.sending;
    stager_.Cancel(outbound, sending.end().why(), sending.end().by(sending.ops()));
  }
}

void TransferSet::Publish(Outbound& outbound, const SendTracker::Action& end) {
  const TransferPtr record = outbound.record;
  const Time now = Now();
  if (outbound.alone && outbound.link != nullptr && end.state == TransferState::kDone &&
      outbound.link->seen->idle()) {
    outbound.link->seen->OnSmallDone(now - outbound.first_post, now);
  }
  const Time first = outbound.first_post == Time{} ? now : outbound.first_post;
  TransferStats stats{.bytes = record->blocks.total_bytes(),
                      .blocks = record->blocks.size(),
                      .slices = outbound.sending->slices(),
                      .queued = first - record->posted,
                      .wire = now - first,
                      .total = now - record->posted};
  if (outbound.link != nullptr) {
    stats.path = std::string(runtime_->backends[outbound.link->backend]->name());
    if (outbound.staged) stats.path += " staged";
  }
  // No op of it follows, but those in flight still walk its blocks: then the last completion, or
  // Forget, releases the ids.
  outbound.walk = SliceWalk();
  if (outbound.sending->ops() == 0) posted_.LetMemoryGo(*record);
  posted_.Leave(*record);
  internal::TransferRecord::End published{
      .state = end.state,
      .status = end.status,
      .delivery = end.delivery,
      .quarantined = end.quarantined || stager_.Outstanding(record),
      .stats = std::move(stats)};
  if (record->child) stager_.OnChildEnd(record->id, published, end.lent_in_use);
  runtime_->Publish(record, std::move(published));
}

void TransferSet::FailQueued(const TransferPtr& record, TransferState state, absl::Status status) {
  posted_.LetMemoryGo(*record);
  posted_.Leave(*record);
  const Duration waited = Now() - record->posted;
  runtime_->Publish(record,
                    {.state = state,
                     .status = std::move(status),
                     .delivery = record->options.notification.has_value() ? Delivery::kNotDelivered
                                                                          : Delivery::kNone,
                     .stats = {.bytes = record->blocks.total_bytes(),
                               .blocks = record->blocks.size(),
                               .queued = waited,
                               .total = waited}});
  replies_.End(record->id);
}

void TransferSet::OnRefused(const TransferPtr& record, absl::Status why) {
  FailQueued(record, TransferState::kFailed, std::move(why));
}

// A transfer has ended at both sides, or its other side will never say.
void TransferSet::Forget(Outbound& outbound) {
  const uint64_t id = outbound.record->id;
  const bool settled = !stager_.Outstanding(outbound.record);
  outbound.record->blocks.ReleaseIds(runtime_->ids);
  tracker_->Forget(*outbound.sending);
  outbounds_.Erase(outbound);
  if (settled) replies_.End(id);
}

// --- quiet ---

// Nothing of it is on the wire any more; `arrived`: for the target has it all. A GPU, here or
// there, may still copy for it: then OnSettled follows, or its last completion.
void TransferSet::ClearQuarantine(const TransferPtr& record, bool arrived) {
  const Outbound* const outbound = FindOutbound(*tracker_, record->id);
  if (outbound != nullptr && outbound->moving()) return;
  if (!stager_.Outstanding(record)) runtime_->ClearQuarantine(record);
  if (record->child) stager_.OnChildQuiet(record->id, arrived);
}

// No op of it moves bytes any more.
void TransferSet::OnSettled(const TransferPtr& whole) {
  runtime_->ClearQuarantine(whole);
  if (FindOutbound(*tracker_, whole->id) == nullptr) replies_.End(whole->id);
}

void TransferSet::OnQuiet() {
  stager_.OnQuiet();
  for (const TransferPtr& record : std::exchange(quarantined_, {})) ClearQuarantine(record, false);
  tracker_->OnQuiet();
}

// The target takes a new session only when every connection of the one before is down at its side.
void TransferSet::Inherit(const TransferSet& before) {
  quarantined_.insert(quarantined_.end(), before.quarantined_.begin(), before.quarantined_.end());
  before.stager_.ForEachOutstanding([this](const auto& one) { quarantined_.push_back(one); });
  for (const Outbound& outbound : before.outbounds_) {
    // One that is moving clears by itself.
    if (outbound.record->quarantined() && !outbound.moving()) {
      quarantined_.push_back(outbound.record);
    }
  }
  if (parts_.paths->UpLink() != nullptr) OnQuiet();
}

}  // namespace kvxfer
