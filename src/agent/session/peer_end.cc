// How transfers end: completions, arrivals, aborts, time-outs, and what is told of it.
#include <algorithm>
#include <memory>
#include <utility>

#include "src/agent/session/peer.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

constexpr size_t kMaxSpare = 64;

}  // namespace

void Peer::OnCompletion(Link& link, uint64_t op, const absl::Status& status) {
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
    tracker_.OnCompleted(sending, runtime_->now);
  } else if (runtime_->backends[link.backend]->capabilities().rails_fail_alone &&
             link.rails.OnFailed(rail, status, Now())) {
    tracker_.OnSuspect(sending, rail, slice, OpFailed(outbound, status), Now());
  } else {
    tracker_.OnFailed(sending, OpFailed(outbound, status), Now());
  }
  if (ended && sending.ops() == 0) {
    outbound.record->blocks.ReleaseIds(runtime_->ids);
    runtime_->memory.Unuse(*outbound.record->local, outbound.record->blocks.local_regions());
  }
}

absl::Status Peer::OpFailed(const Outbound& outbound, const absl::Status& status) const {
  return Annotate(
      status, absl::StrCat("transfer ", outbound.record->id, " to peer ", metadata_.name, " over ",
                           ToAbsl(runtime_->backends[outbound.link->backend]->name())));
}

// Carrying out one action may ask for others.
void Peer::Settle() {
  while (tracker_.has_actions()) {
    tracker_.TakeActions(actions_);
    for (const SendTracker::Action& action : actions_) Carry(action);
  }
}

void Peer::Carry(const SendTracker::Action& action) {
  SendTracker::Transfer& sending = *action.transfer;
  Outbound& outbound = OutboundOf(sending);
  using Kind = SendTracker::Action::Kind;
  switch (action.kind) {
    case Kind::kStop:
      return Stop(outbound);
    case Kind::kAbandon:
      return tracker_.OnAbandoned(sending, stager_.Abandon(outbound), Now());
    case Kind::kSend:
      return StartSending(outbound);
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
void Peer::Stop(Outbound& outbound) {
  std::erase(sending_, &outbound);
  ReleaseLayerStream(outbound);
  DropPrepared(outbound);
  const uint64_t id = outbound.record->id;
  paths_.ForEachUpLink([id](Link& link) { link.endpoint->Fence({.transfer = id}); });
  if (outbound.staged) {
    stager_.Cancel(outbound, outbound.sending->why(), outbound.sending->ends_by());
  }
}

void Peer::Publish(Outbound& outbound, const SendTracker::Action& end) {
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
  // Erase, releases the ids.
  outbound.walk = SliceWalk();
  if (outbound.sending->ops() == 0) {
    record->blocks.ReleaseIds(runtime_->ids);
    if (record->local != nullptr) {
      runtime_->memory.Unuse(*record->local, record->blocks.local_regions());
    }
  }
  deadlines_.erase({record->deadline, record->id});
  view_->queued->fetch_sub(1, std::memory_order_relaxed);
  internal::TransferRecord::End published{
      .state = end.state,
      .status = end.status,
      .delivery = end.delivery,
      .quarantined = end.quarantined || stager_.Outstanding(record),
      .stats = std::move(stats)};
  if (record->child) stager_.OnChildEnd(record->id, published);
  runtime_->Publish(record, std::move(published));
}

void Peer::FailQueued(const TransferPtr& record, TransferState state, absl::Status status) {
  deadlines_.erase({record->deadline, record->id});
  if (record->local != nullptr) {
    runtime_->memory.Unuse(*record->local, record->blocks.local_regions());
  }
  view_->queued->fetch_sub(1, std::memory_order_relaxed);
  asked_.End(record->id);
  const Duration waited = Now() - record->posted;
  record->blocks.ReleaseIds(runtime_->ids);
  runtime_->Publish(record,
                    {.state = state,
                     .status = std::move(status),
                     .delivery = record->options.notification.has_value() ? Delivery::kNotDelivered
                                                                          : Delivery::kNone,
                     .stats = {.bytes = record->blocks.total_bytes(),
                               .blocks = record->blocks.size(),
                               .queued = waited,
                               .total = waited}});
  AnswerQuiesce();
}

void Peer::DropPrepared(Outbound& outbound) {
  if (outbound.prepared == 0) return;
  runtime_->ops.Release(outbound.prepared);
  outbound.prepared = 0;
}

Outbound& Peer::NewOutbound() {
  if (spare_.empty()) spare_.emplace_back();
  active_.splice(active_.end(), spare_, spare_.begin());
  active_.back().self = std::prev(active_.end());
  return active_.back();
}

Outbound* Peer::Find(uint64_t id) {
  const SendTracker::Transfer* const sending = tracker_.Find(id);
  return sending == nullptr ? nullptr : &OutboundOf(*sending);
}

// A transfer has ended at both sides, or its other side will never say.
void Peer::Forget(Outbound& outbound) {
  const uint64_t id = outbound.record->id;
  const bool settled = !stager_.Outstanding(outbound.record);
  outbound.record->blocks.ReleaseIds(runtime_->ids);
  tracker_.Forget(*outbound.sending);
  Erase(outbound);
  if (settled) NoneAsks(id);
}

void Peer::Erase(Outbound& outbound) {
  const auto self = outbound.self;
  if (spare_.size() >= kMaxSpare) {
    active_.erase(self);
    return;
  }
  std::destroy_at(&outbound);
  std::construct_at(&outbound);
  spare_.splice(spare_.begin(), active_, self);
}

// What is asked of a transfer by a Quiesce is answered: it has ended and is quiet.
void Peer::NoneAsks(uint64_t id) {
  asked_.End(id);
  AnswerQuiesce();
}

void Peer::ClearQuarantines() {
  stager_.OnQuiet();
  for (const TransferPtr& record : std::exchange(quarantined_, {})) ClearQuarantine(record, false);
  tracker_.OnQuiet();
}

// The target takes a new session only when every connection of the one before is down at its side.
void Peer::Inherit(const Peer& before) {
  quarantined_.insert(quarantined_.end(), before.quarantined_.begin(), before.quarantined_.end());
  before.stager_.ForEachOutstanding([this](const auto& one) { quarantined_.push_back(one); });
  for (const Outbound& outbound : before.active_) {
    // One that is moving clears by itself.
    if (outbound.record->quarantined() && !outbound.moving()) {
      quarantined_.push_back(outbound.record);
    }
  }
  if (paths_.UpLink() != nullptr) ClearQuarantines();
}

std::string Peer::Stage(const Outbound& outbound) const {
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

}  // namespace kvxfer
