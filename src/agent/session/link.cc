#include "src/agent/session/link.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer {

void Link::LearnRails(Duration fence_within, Time now) {
  const std::vector<RailInfo> infos = endpoint->Describe().rails;
  choice = RailPicker(infos);
  rails = RailFences(infos, fence_within, now);
}

void Link::Close(const absl::Status& why) {
  if (state == State::kClosing) return;
  state = State::kClosing;
  endpoint->Shutdown(why);
}

absl::StatusOr<const RemoteKey*> Link::KeyOf(const RemoteRegions& regions, RegionId id,
                                             const Backend& its_backend) {
  // A transfer may have been posted before its region was revoked, and begin after: no key is made
  // for it, for DropKeys may have been here.
  const auto known = regions.Live(id);
  if (!known.ok()) return known.status();
  if (const auto it = keys_.find(id); it != keys_.end()) return it->second.get();
  const AgentMetadata::Region& region = **known;
  const auto extra = region.keys.find(std::string(its_backend.name()));
  auto key = endpoint->Import(region.region,
                              extra == region.keys.end() ? std::string_view() : extra->second);
  if (!key.ok()) {
    absl::Status why = Annotate(key.status(), absl::StrCat("region ", static_cast<uint32_t>(id),
                                                           " of peer ", regions.peer()));
    // Not yet here, or wrong metadata, are no reason to go another way.
    const bool beyond = region.region.kind == MemoryKind::kCuda && !absl::IsUnavailable(why) &&
                        !absl::IsInvalidArgument(why);
    if (beyond) beyond_.emplace(id, why);
    return why;
  }
  return keys_.emplace(id, *std::move(key)).first->second.get();
}

void Link::DropKeys(std::span<const uint32_t> regions) {
  for (const uint32_t region : regions) keys_.erase(RegionId{region});
}

void Link::DropDeadKeys(const RemoteRegions& regions,
                        const std::unordered_set<const RemoteKey*>& used) {
  std::erase_if(keys_, [&](const auto& entry) {
    return !regions.Usable(entry.first) && !used.contains(entry.second.get());
  });
}

absl::Status Link::WhyBeyond() const {
  return beyond_.empty() ? absl::OkStatus() : beyond_.begin()->second;
}

absl::Status Link::WhyBeyond(RegionId region) const {
  const auto it = beyond_.find(region);
  return it == beyond_.end() ? absl::OkStatus() : it->second;
}

}  // namespace kvxfer
