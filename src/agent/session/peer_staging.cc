// Which paths reach the memory of a transfer, and what the stager does with those that do not.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"

namespace kvxfer {
bool Peer::ReachesLocal(const Path& path, const RegionView& region) const {
  if (region.kind == MemoryKind::kHost) return path.host;
  return runtime_->memory.Find(region.id, path.backend) != nullptr;
}

// A backend that takes GPU memory natively has a key for each such region. One that is gone by now
// is refused by name later.
bool Peer::ReachesRemote(const Path& path, const RegionView& region) const {
  if (region.kind == MemoryKind::kHost) return path.host;
  if (path.link && path.link->beyond.contains(region.id)) return false;
  const auto known = regions_by_id_.find(static_cast<uint32_t>(region.id));
  const std::string name(runtime_->backends[path.backend]->name());
  return known == regions_by_id_.end() || known->second->keys.contains(name);
}

absl::Status Peer::WhyBeyond(const Link* link, const internal::TransferRecord& record) {
  if (link == nullptr || link->beyond.empty()) return absl::OkStatus();
  for (const uint32_t index : record.blocks.remote_regions()) {
    const auto beyond = link->beyond.find(record.remote->regions()[index].id);
    if (beyond != link->beyond.end()) return beyond->second;
  }
  return absl::OkStatus();
}

Peer::Reach Peer::ReachOf(const Path& path, const internal::TransferRecord& record) const {
  if (record.blocks.total_bytes() == 0) return Reach::kNative;
  if (!record.cuda) return path.host ? Reach::kNative : Reach::kNone;
  bool native = true;
  bool staged_here = false;
  bool staged_there = false;
  for (const uint32_t index : record.blocks.local_regions()) {
    const RegionView& region = record.local->regions()[index];
    native &= ReachesLocal(path, region);
    staged_here |= region.kind == MemoryKind::kCuda;
  }
  for (const uint32_t index : record.blocks.remote_regions()) {
    const RegionView& region = record.remote->regions()[index];
    native &= ReachesRemote(path, region);
    staged_there |= region.kind == MemoryKind::kCuda;
  }
  if (native) return Reach::kNative;
  const bool can = path.host && (!staged_here || runtime_->memory.StagesOver(path.backend)) &&
                   (!staged_there || staging_buffers_ > 0);
  return can ? Reach::kStaged : Reach::kNone;
}

// A path that reaches the memory itself, or else one that is staged over. The first of these that
// fails gives way to the second, with a warning (TellStaged), and is tried again beside it.
absl::StatusOr<Link*> Peer::LinkFor(const internal::TransferRecord& record, Time now) {
  const std::string& backend = record.options.backend;
  const uint64_t bytes = record.blocks.total_bytes();
  const auto is = [&](Reach reach) {
    return [this, &record, reach](const Path& path) { return ReachOf(path, record) == reach; };
  };
  const auto staged = is(Reach::kStaged);
  Link* second = nullptr;
  if (record.cuda) {
    for (const uint8_t index : Preferred(bytes, now)) {
      const Path& path = paths_[index];
      if (second == nullptr && IsOf(path, backend) && Ready(path) && staged(path)) {
        second = path.link.get();
      }
    }
  }
  auto link = LinkFor(backend, bytes, record.posted, now, is(Reach::kNative), second);
  if (link.ok() || !record.cuda) return link;
  const auto may = [&](const Path& path) { return IsOf(path, backend) && staged(path); };
  if (std::ranges::any_of(paths_, may)) return LinkFor(backend, bytes, record.posted, now, staged);
  return NoWay(record, link.status());
}

// Why a transfer of GPU memory can go no way, where no path could be made that reaches it.
absl::Status Peer::NoWay(const internal::TransferRecord& record,
                         const absl::Status& unreachable) const {
  const std::string& backend = record.options.backend;
  absl::Status why = absl::FailedPreconditionError(absl::StrCat("peer ", metadata_.name));
  bool any = false;
  for (const Path& path : paths_) {
    if (!IsOf(path, backend)) continue;
    any = true;
    if (ReachOf(path, record) == Reach::kNative) why = unreachable;
    if (absl::Status beyond = WhyBeyond(path.link.get(), record); !beyond.ok()) why = beyond;
  }
  if (!any) return unreachable;
  const auto cuda = [](const auto& table, std::span<const uint32_t> regions) {
    return std::ranges::any_of(
        regions, [&](uint32_t index) { return table->regions()[index].kind == MemoryKind::kCuda; });
  };
  std::string_view no_stage = backend.empty() ? "no backend in common takes host memory"
                                              : "that backend takes no host memory";
  if (cuda(record.remote, record.blocks.remote_regions()) && staging_buffers_ == 0) {
    no_stage = "the peer lends no staging memory";
  }
  if (cuda(record.local, record.blocks.local_regions()) && !runtime_->staging.open()) {
    no_stage = "this agent has none (AgentOptions::staging_bytes, KVXFER_STAGING_BYTES)";
  }
  return absl::Status(why.code(), absl::StrCat(why.message(),
                                               ": no backend takes this GPU memory at both ends, "
                                               "and it cannot be staged: ",
                                               ToAbsl(no_stage)));
}

// Once for each backend that it changes to: no silent fallback.
void Peer::TellStaged(const internal::TransferRecord& record, const Link& link) {
  const std::string name(runtime_->backends[link.backend]->name());
  if (std::exchange(logged_staged_, name) == name) return;
  std::string why;
  for (const Path& path : paths_) {
    absl::Status cause = WhyBeyond(path.link.get(), record);
    if (ReachOf(path, record) == Reach::kNative) cause.Update(path.last_error);
    if (cause.ok()) continue;
    absl::StrAppend(&why, "; ", ToAbsl(runtime_->backends[path.backend]->name()), ": ",
                    cause.message());
  }
  Log(LogLevel::kWarning,
      "peer {}: GPU memory goes over {} by way of host memory, for no backend that reaches the "
      "peer "
      "takes it at both ends{}",
      metadata_.name, name, why);
}

const StagedMemory* Peer::StagedLocal(const internal::TransferRecord& record,
                                      uint32_t index) const {
  return runtime_->memory.FindStaged(record.local->regions()[index].id);
}

absl::StatusOr<const StagedKey*> Peer::StagedRemote(const RegionView& region) {
  const auto known = LiveRegion(region.id);
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
