// How transfers end: completions, arrivals, aborts, time-outs, and what is told of it.
#include <algorithm>
#include <utility>

#include "src/agent/session/peer.h"
#include "src/core/base/strings.h"

namespace kvxfer {

void Peer::OnCompletion(Link& link, uint64_t op, const absl::Status& status) {
  OpTable::Entry* entry = runtime_->ops.Find(op);
  if (entry == nullptr) return;
  Outbound& outbound = *entry->outbound;
  // The time matters only for a rail that is not up; to read the clock costs.
  link.rails.OnCompleted(entry->rail, link.rails.up(entry->rail) ? runtime_->now : Now());
  const bool measured = status.ok() && !entry->sole;
  link.choice.OnCompleted(entry->rail, entry->blocks.bytes, runtime_->now, measured);
  link.seen->OnCompleted(entry->blocks.bytes, runtime_->now, measured);
  const bool failed = !status.ok() && !outbound.ending && !outbound.arrived;
  const bool fatal = failed && !AwaitRailDown(outbound, *entry, status);
  runtime_->ops.Release(op);
  --outbound.ops;
  if (fatal) {
    return EndSoon(outbound, TransferState::kFailed, OpFailed(outbound, status));
  }
  if (outbound.ops > 0) return;
  if (outbound.published) {
    outbound.record->blocks.ReleaseIds(runtime_->ids);
    runtime_->memory.Unuse(*outbound.record->local, outbound.record->blocks.local_regions());
    ClearQuarantine(outbound.record, outbound.arrived);
  }
  OnNoOps(outbound);
}

// The last of its ops has ended. May erase `outbound`.
void Peer::OnNoOps(Outbound& outbound) {
  if (outbound.ending) return AdvanceEnd(outbound, Now());
  Advance(outbound);
}

absl::Status Peer::OpFailed(const Outbound& outbound, const absl::Status& status) const {
  return Annotate(
      status, absl::StrCat("transfer ", outbound.record->id, " to peer ", metadata_.name, " over ",
                           ToAbsl(runtime_->backends[outbound.link->backend]->name())));
}

// One step nearer to done, where nothing has gone wrong.
void Peer::Advance(Outbound& outbound) {
  if (outbound.ending || !outbound.all_posted || !FetchHeld(outbound)) return;
  const bool counted = outbound.book.counted();
  const bool notifies = outbound.record->options.notification.has_value();
  outbound.book.LetSlotsGo(slots_);
  if (!outbound.opened) {
    if (!counted && (outbound.ops > 0 || !outbound.unexplained.empty())) return;
    if (outbound.book.awaits_discarded()) return;
    if (counted || notifies) PushOpen(outbound);
  } else if (!outbound.arrived) {
    PushAmend(outbound);
  }
  if (outbound.ops > 0 || (outbound.opened && !outbound.arrived)) return;
  if (outbound.alone && outbound.link != nullptr && outbound.link->seen->idle()) {
    const Time now = Now();
    outbound.link->seen->OnSmallDone(now - outbound.first_post, now);
  }
  if (outbound.refused.ok()) {
    Publish(outbound, TransferState::kDone, absl::OkStatus(),
            notifies ? Delivery::kDelivered : Delivery::kNone, false);
  } else {
    Publish(outbound, TransferState::kFailed, outbound.refused, Delivery::kNotDelivered, false);
  }
  Erase(outbound);
}

// Whether what was read under a lease is known to be what was leased; asks, once it is all read.
bool Peer::FetchHeld(Outbound& outbound) {
  const internal::TransferRecord& record = *outbound.record;
  if (!outbound.fetch.has_value() || outbound.fetch == Outbound::Fetch::kHeld) return true;
  const bool read = outbound.ops == 0 && outbound.unexplained.empty();
  if (outbound.fetch == Outbound::Fetch::kReading && read) {
    outbound.fetch = Outbound::Fetch::kAsked;
    PushFetchEnd(record, record.fetch->readers);
  }
  return false;
}

void Peer::PushFetchEnd(const internal::TransferRecord& record, uint32_t readers) {
  channel_.Push(
      FrameType::kFetchEnd,
      FetchEndFrame{.transfer = record.id, .lease = record.fetch->lease, .readers = readers});
}

// Ends a transfer as `state`: stops its data, takes its number back, and tells the application when
// both sides are quiet, or at `give_up` without that. May erase `outbound`.
void Peer::BeginEnd(Outbound& outbound, TransferState state, absl::Status why, Time give_up) {
  const Time now = Now();
  if (outbound.record->cuda && outbound.ops > 0 && !outbound.staged &&
      CopiesItself(*outbound.link)) {
    // Where there is no time the copies get what a cancelled transfer gets.
    const Time until = give_up > now ? give_up : now + runtime_->options.cancel_grace;
    outbound.copies_until = std::min(outbound.copies_until, until);
  }
  if (outbound.ending) {
    outbound.give_up = std::min(outbound.give_up, give_up);
    AdvanceEnd(outbound, now);
    return;
  }
  outbound.ending = true;
  ++ending_;
  outbound.end_state = state;
  outbound.end_status = std::move(why);
  outbound.give_up = give_up;
  std::erase(sending_, &outbound);
  ReleaseLayerStream(outbound);
  DropPrepared(outbound);
  const uint64_t id = outbound.record->id;
  const AbortFrame abort{.transfer = id,
                         .order = outbound.order,
                         .opened = outbound.opened,
                         .slots = outbound.book.End(slots_)};
  const bool fetching =
      outbound.fetch == Outbound::Fetch::kBeginning || outbound.fetch == Outbound::Fetch::kReading;
  if (fetching) PushFetchEnd(*outbound.record, 0);
  // A transfer of which the target has seen nothing and that has no number needs no word of it.
  outbound.abort_due = outbound.opened || outbound.order != 0 || !abort.slots.empty();
  paths_.ForEachUpLink([id](Link& link) { link.endpoint->Fence({.transfer = id}); });
  if (outbound.staged) stager_.Cancel(outbound, outbound.end_status, give_up);
  if (outbound.abort_due) {
    channel_.Push(FrameType::kAbort, abort);
  } else {
    ReturnCredit(outbound.record->options);
  }
  AdvanceEnd(outbound, now);
}

// The same, with the time that a cancelled transfer gets.
void Peer::EndSoon(Outbound& outbound, TransferState state, absl::Status why) {
  BeginEnd(outbound, state, std::move(why),
           std::min(outbound.record->deadline, Now() + runtime_->options.cancel_grace));
}

// When an end is to be published at the latest, as far as it hangs on time.
Time Peer::EndsBy(const Outbound& outbound) {
  const bool copies = outbound.ops > 0 && outbound.copies_until != Time::max();
  return copies ? outbound.copies_until : outbound.give_up;
}

void Peer::AdvanceEnd(Outbound& outbound, Time now) {
  if (!outbound.ending) return;
  if (outbound.staged && outbound.ops > 0 && now >= outbound.give_up) stager_.Abandon(outbound);
  if (outbound.ops > 0 && now < outbound.copies_until) return;
  if (!outbound.published) {
    if (outbound.abort_due && now < outbound.give_up) return;
    const bool unsettled = outbound.abort_due || outbound.unreported;
    Delivery delivery = Delivery::kNone;
    if (outbound.record->options.notification.has_value()) {
      delivery = outbound.end_state == TransferState::kDone ? Delivery::kDelivered
                 : unsettled && outbound.opened             ? Delivery::kUnknown
                                                            : Delivery::kNotDelivered;
    }
    // Only bytes that were sent, and that the target lands by itself, can still come after this.
    const bool unheard = (outbound.abort_due || outbound.orphan) && outbound.book.counted() &&
                         outbound.first_post != Time{};
    if (unheard && outbound.orphan) quarantined_.push_back(outbound.record);
    const bool quarantined = unheard || outbound.ops > 0 || stager_.Outstanding(outbound.record);
    Publish(outbound, outbound.end_state, outbound.end_status, delivery, quarantined);
  }
  if (outbound.ops == 0 && !outbound.abort_due) Erase(outbound);
}

void Peer::Publish(Outbound& outbound, TransferState state, absl::Status status, Delivery delivery,
                   bool quarantined) {
  const TransferPtr record = outbound.record;
  const Time now = Now();
  const Time first = outbound.first_post == Time{} ? now : outbound.first_post;
  TransferStats stats{.bytes = record->blocks.total_bytes(),
                      .blocks = record->blocks.size(),
                      .slices = outbound.slices,
                      .queued = first - record->posted,
                      .wire = now - first,
                      .total = now - record->posted};
  if (outbound.link != nullptr) {
    stats.path = std::string(runtime_->backends[outbound.link->backend]->name());
    if (outbound.staged) stats.path += " staged";
  }
  outbound.published = true;
  // No op of it follows, but those in flight still walk its blocks: then the last completion, or
  // Erase, releases the ids.
  outbound.walk = SliceWalk();
  if (outbound.ops == 0) record->blocks.ReleaseIds(runtime_->ids);
  deadlines_.erase({record->deadline, record->id});
  if (record->local != nullptr && !outbound.moving()) {
    runtime_->memory.Unuse(*record->local, record->blocks.local_regions());
  }
  view_->queued->fetch_sub(1, std::memory_order_relaxed);
  internal::TransferRecord::End end{.state = state,
                                    .status = std::move(status),
                                    .delivery = delivery,
                                    .quarantined = quarantined,
                                    .stats = std::move(stats)};
  if (record->child) stager_.OnChildEnd(record->id, end);
  runtime_->Publish(record, std::move(end));
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

// Forgets a transfer that has ended at both sides, or whose other side will never say.
void Peer::Erase(Outbound& outbound) {
  const uint64_t id = outbound.record->id;
  const bool settled = !stager_.Outstanding(outbound.record);
  outbound.record->blocks.ReleaseIds(runtime_->ids);
  if (outbound.ending) --ending_;
  active_.erase(id);
  if (settled) NoneAsks(id);
}

// What is asked of a transfer by a Quiesce is answered: it has ended and is quiet.
void Peer::NoneAsks(uint64_t id) {
  asked_.End(id);
  AnswerQuiesce();
}

void Peer::ClearQuarantines() {
  stager_.OnQuiet();
  for (const TransferPtr& record : std::exchange(quarantined_, {})) ClearQuarantine(record, false);
  for (auto& [id, outbound] : active_) outbound.orphan = false;
}

// The target takes a new session only when every connection of the one before is down at its side.
void Peer::Inherit(const Peer& before) {
  quarantined_.insert(quarantined_.end(), before.quarantined_.begin(), before.quarantined_.end());
  before.stager_.ForEachOutstanding([this](const auto& one) { quarantined_.push_back(one); });
  for (const auto& [id, outbound] : before.active_) {
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
  if (outbound.ops > 0 || !outbound.all_posted) {
    return absl::StrCat("sending, ", outbound.slices, " slices posted, ", outbound.ops,
                        " not complete",
                        outbound.link == nullptr ? "" : outbound.link->rails.WhyNone());
  }
  if (outbound.opened) return "all sent, the peer has not confirmed the arrival";
  return "waiting to be sent";
}

}  // namespace kvxfer
