#include "src/agent/engine/peer_service.h"

#include <utility>

#include "src/core/base/strings.h"
#include "src/core/protocol/metadata.h"

namespace kvxfer {

absl::StatusOr<std::string> PeerService::Add(std::string_view metadata_bytes) {
  auto metadata = DecodeMetadata(metadata_bytes);
  if (!metadata.ok()) return metadata.status();
  const std::string& own = parts_.runtime->options.name;
  if (metadata->incarnation == parts_.runtime->incarnation) {
    return absl::InvalidArgumentError(absl::StrCat("the metadata is of this agent itself, ", own));
  }
  std::string name = metadata->name;
  if (name == own) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer is called ", name, " as this agent is; give agents unique names"));
  }
  const auto installed = parts_.gate->CallFor<absl::Status>(
      [&] { return parts_.table->Install(*std::move(metadata)); });
  if (!installed.ok()) return installed;
  return name;
}

absl::Status PeerService::Remove(std::string_view peer) {
  return parts_.gate->CallFor<absl::Status>([&] {
    const auto why = absl::CancelledError(absl::StrCat("peer ", ToAbsl(peer), ": ", kPeerRemoved));
    const bool inbound = parts_.inbound->Remove(peer, why);
    if (parts_.table->Remove(peer, why) || inbound) return absl::OkStatus();
    return absl::NotFoundError(absl::StrCat("no peer ", ToAbsl(peer)));
  });
}

absl::StatusOr<Explanation> PeerService::Explain(std::string_view peer) {
  return parts_.gate->CallFor<absl::StatusOr<Explanation>>([&]() -> absl::StatusOr<Explanation> {
    Peer* const found = parts_.table->Find(peer);
    if (found == nullptr) return PeerViews::Unknown(peer);
    Explanation explanation = found->paths().Explain(Now());
    const auto& unusable = parts_.runtime->unusable;
    explanation.paths.insert(explanation.paths.end(), unusable.begin(), unusable.end());
    return explanation;
  });
}

absl::StatusOr<std::vector<PeerRegion>> PeerService::Regions(std::string_view peer) const {
  if (auto status = parts_.gate->CheckNotForked(); !status.ok()) return status;
  const auto view = parts_.views->Find(peer);
  if (!view.ok()) return view.status();
  std::vector<PeerRegion> regions;
  for (const RegionView& region : (*view)->regions->regions()) {
    if (region.access == Access::kNone || region.staging) continue;
    regions.push_back({.id = region.id,
                       .address = region.base,
                       .bytes = region.bytes,
                       .kind = region.kind,
                       .device_id = region.device_id,
                       .access = region.access});
  }
  return regions;
}

}  // namespace kvxfer
