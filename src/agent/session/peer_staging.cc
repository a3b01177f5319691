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
  ++outbound.ops;
  ++outbound.slices;
  outbound.prepared = 0;
  outbound.book.OnPosted(outbound.slice, 0);
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
  const auto it = active_.find(child);
  if (it == active_.end()) return;
  BeginEnd(it->second, TransferState::kCancelled, why, give_up);
}

// An op that went to the stager is over.
void Peer::OnStaged(uint64_t op, const absl::Status& status) {
  OpTable::Entry* entry = runtime_->ops.Find(op);
  if (entry == nullptr) return;
  Outbound& outbound = *entry->outbound;
  runtime_->ops.Release(op);
  --outbound.ops;
  if (!status.ok() && !outbound.ending) {
    EndSoon(outbound, TransferState::kFailed,
            Annotate(status, absl::StrCat("transfer ", outbound.record->id, " to peer ",
                                          metadata_.name, ", staged")));
  } else if (outbound.ops == 0) {
    OnNoOps(outbound);
  }
}

// Nothing of it is on the wire any more; `arrived`: for the target has it all. A GPU, here or
// there, may still copy for it: then OnSettled follows, or its last completion.
void Peer::ClearQuarantine(const TransferPtr& record, bool arrived) {
  const auto it = active_.find(record->id);
  const bool moving = it != active_.end() && it->second.moving();
  if (!moving && !stager_.Outstanding(record)) runtime_->ClearQuarantine(record);
  if (record->child) stager_.OnChildQuiet(record->id, arrived);
}

// No op of it moves bytes any more.
void Peer::OnSettled(const TransferPtr& record) {
  runtime_->ClearQuarantine(record);
  if (!active_.contains(record->id)) NoneAsks(record->id);
}

}  // namespace kvxfer
