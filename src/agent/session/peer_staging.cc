// What the stager does for transfers whose memory no path reaches itself.
#include "src/agent/session/peer.h"
#include "src/core/base/strings.h"

namespace kvxfer {

const StagedMemory* Peer::StagedLocal(const internal::TransferRecord& record,
                                      uint32_t index) const {
  return runtime_->memory.FindStaged(record.local->regions()[index].id);
}

absl::StatusOr<const StagedKey*> Peer::StagedRemote(const RegionView& region) {
  const auto known = regions_.Live(region.id);
  if (!known.ok()) return known.status();
  const auto id = static_cast<uint32_t>(region.id);
  const uint32_t rkey = (*known)->region.rkey;
  return &staged_keys_.try_emplace(id, rkey, region.kind == MemoryKind::kHost).first->second;
}

bool Peer::CopiesItself(const Link& link) const {
  return runtime_->backends[link.backend]->capabilities().arrival == Arrival::kCopied;
}

bool Peer::PostStaged(Outbound& outbound) {
  const OpTable::Entry& entry = *runtime_->ops.Find(outbound.prepared);
  if (!stager_.Post(outbound, outbound.prepared, entry.blocks)) return false;
  outbound.prepared = 0;
  SendTracker::OnAccepted(*outbound.sending, 0);
  return true;
}

// A part of a transfer that has begun: it waits neither in the queue nor for the application's
// regions to be open still.
absl::Status Peer::BeginChild(const TransferPtr& record, Link* link) {
  view_->queued->fetch_add(1, std::memory_order_relaxed);
  runtime_->memory.UseAgain(*record->local, record->blocks.local_regions());
  deadlines_.emplace(record->deadline, record->id);
  absl::Status status = Begin(record, link);
  if (status.ok()) return status;
  deadlines_.erase({record->deadline, record->id});
  runtime_->memory.Unuse(*record->local, record->blocks.local_regions());
  view_->queued->fetch_sub(1, std::memory_order_relaxed);
  return status;
}

void Peer::EndChild(uint64_t child, const absl::Status& why, Time give_up) {
  if (SendTracker::Transfer* const sending = tracker_.Find(child)) {
    tracker_.End(*sending, TransferState::kCancelled, why, give_up, Now());
  }
}

// An op that went to the stager is over.
void Peer::OnStaged(uint64_t op, const absl::Status& status) {
  OpTable::Entry* entry = runtime_->ops.Find(op);
  if (entry == nullptr) return;
  SendTracker::Transfer& sending = *entry->outbound->sending;
  runtime_->ops.Release(op);
  if (status.ok()) return tracker_.OnCompleted(sending, Now());
  tracker_.OnFailed(sending,
                    Annotate(status, absl::StrCat("transfer ", sending.id(), " to peer ",
                                                  metadata_.name, ", staged")),
                    Now());
}

void Peer::TellStagedEnds() {
  while (stager_.has_ends()) {
    stager_.TellEnds();
    Settle();
  }
}

// Nothing of it is on the wire any more; `arrived`: for the target has it all. A GPU, here or
// there, may still copy for it: then OnSettled follows, or its last completion.
void Peer::ClearQuarantine(const TransferPtr& record, bool arrived) {
  const Outbound* const outbound = Find(record->id);
  const bool moving = outbound != nullptr && outbound->moving();
  if (!moving && !stager_.Outstanding(record)) runtime_->ClearQuarantine(record);
  if (record->child) stager_.OnChildQuiet(record->id, arrived);
}

// No op of it moves bytes any more.
void Peer::OnSettled(const TransferPtr& record) {
  runtime_->ClearQuarantine(record);
  if (Find(record->id) == nullptr) NoneAsks(record->id);
}

}  // namespace kvxfer
