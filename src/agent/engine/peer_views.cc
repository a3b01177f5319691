#include "src/agent/engine/peer_views.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "src/core/base/strings.h"

namespace kvxfer {

void PeerViews::Publish(std::shared_ptr<const PeerView> view) {
  std::lock_guard lock(mu_);
  views_[view->name] = std::move(view);
}

void PeerViews::Remove(std::string_view peer) {
  std::lock_guard lock(mu_);
  views_.erase(std::string(peer));
}

absl::StatusOr<std::shared_ptr<const PeerView>> PeerViews::Find(std::string_view peer) const {
  std::lock_guard lock(mu_);
  const auto it = views_.find(peer);
  if (it != views_.end()) return it->second;
  return Unknown(peer);
}

absl::Status PeerViews::Unknown(std::string_view peer) {
  return absl::NotFoundError(absl::StrCat("no peer ", ToAbsl(peer), "; add its metadata first"));
}

PeerViews::Queued PeerViews::CountQueued() const {
  Queued all;
  std::vector<std::string> names;
  std::lock_guard lock(mu_);
  for (const auto& [name, view] : views_) {
    const uint32_t queued = view->queued->load(std::memory_order_acquire);
    if (queued == 0) continue;
    all.transfers += queued;
    names.push_back(name);
  }
  std::ranges::sort(names);
  all.peers = absl::StrJoin(names, ", ");
  return all;
}

}  // namespace kvxfer
