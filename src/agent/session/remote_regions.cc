#include "src/agent/session/remote_regions.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/agent/staging/staging.h"

namespace kvxfer {

void RemoteRegions::Learn(const AgentMetadata& metadata) {
  name_ = metadata.name;
  by_id_.clear();
  std::vector<RegionView> views;
  for (const auto& region : metadata.regions) {
    const auto& [remote, keys, staging] = region;
    const auto id = static_cast<uint32_t>(remote.id);
    by_id_.emplace(id, &region);
    if (staging) {
      staging_region_ = remote.id;
      staging_base_ = remote.base;
      staging_buffers_ = remote.bytes / Staging::kBufferBytes;
    }
    if (revoked_.Contains(id)) continue;
    views.push_back({remote.id, remote.base, remote.bytes, remote.access, remote.kind,
                     remote.device_id, staging});
  }
  table_ = std::make_shared<const RegionTable>(std::move(views), metadata.name);
}

const AgentMetadata::Region* RemoteRegions::Find(RegionId id) const {
  const auto known = by_id_.find(static_cast<uint32_t>(id));
  return known == by_id_.end() ? nullptr : known->second;
}

bool RemoteRegions::Usable(RegionId id) const {
  return Find(id) != nullptr && !revoked_.Contains(static_cast<uint32_t>(id));
}

absl::StatusOr<const AgentMetadata::Region*> RemoteRegions::Live(RegionId id) const {
  if (Usable(id)) return Find(id);
  return absl::FailedPreconditionError(
      absl::StrCat("region ", static_cast<uint32_t>(id), " of peer ", name_,
                   " was deregistered there; take its metadata again"));
}

absl::StatusOr<const StagedKey*> RemoteRegions::StagedKeyOf(const RegionView& region) {
  const auto known = Live(region.id);
  if (!known.ok()) return known.status();
  const auto id = static_cast<uint32_t>(region.id);
  const uint32_t rkey = (*known)->region.rkey;
  return &staged_keys_.try_emplace(id, rkey, region.kind == MemoryKind::kHost).first->second;
}

void RemoteRegions::DropStagedKeys(std::span<const uint32_t> regions) {
  for (const uint32_t region : regions) staged_keys_.erase(region);
}

void RemoteRegions::DropDeadStagedKeys(const std::unordered_set<const RemoteKey*>& used) {
  std::erase_if(staged_keys_, [&](const auto& entry) {
    return !Usable(RegionId{entry.first}) && !used.contains(&entry.second);
  });
}

void RemoteRegions::OnPage(const RegionsFrame& frame) {
  uint32_t next = frame.first;
  for (const RegionRun& run : frame.live) {
    if (run.first > next) revoked_.Add(next, run.first - 1);
    next = run.last + 1;
  }
  if (next != 0 && next <= frame.last) revoked_.Add(next, frame.last);
}

absl::Status RemoteRegions::CheckRevoked() const {
  if (revoked_.runs() <= kMaxDeadRuns) return absl::OkStatus();
  return absl::ResourceExhaustedError("more regions are gone than were");
}

}  // namespace kvxfer
