#include "src/agent/kv/kv_parties.h"

#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

absl::Status Anew(std::string_view whose, std::string_view cache) {
  return absl::FailedPreconditionError(
      absl::StrCat(ToAbsl(whose), " has registered KV cache \"", ToAbsl(cache),
                   "\" anew since these blocks were prepared; prepare them again"));
}

}  // namespace

absl::StatusOr<KvParties> KvParties::Find(const KvRegistry& kv, const PeerViews& views,
                                          std::span<const std::string> group,
                                          std::string_view cache, Direction direction) {
  KvParties parties{.caches = kv.table()};
  const auto own = FindKvCache(*parties.caches, cache, kThisAgent);
  if (!own.ok()) return own.status();
  parties.own = *own;
  for (const std::string& name : group) {
    auto view = views.Find(name);
    if (!view.ok()) return view.status();
    const auto theirs = FindKvCache(*(*view)->kv_caches, cache, "peer " + name);
    if (!theirs.ok()) return theirs.status();
    parties.views.push_back(*std::move(view));
    parties.theirs.push_back(*theirs);
    parties.ranks.push_back({.peer = parties.views.back()->name, .layout = &(*theirs)->layout});
  }
  if (auto status = CheckKvGroup(parties.own->layout, parties.ranks, direction); !status.ok())
    return status;
  return parties;
}

absl::Status KvParties::CheckOwn(const KvRegistry& kv, std::string_view cache) const {
  const auto now = kv.table();
  if (now == caches) return absl::OkStatus();  // no cache has come or gone
  const auto found = FindKvCache(*now, cache, kThisAgent);
  if (!found.ok()) return found.status();
  return (*found)->id == own->id ? absl::OkStatus() : Anew(kThisAgent, cache);
}

// Newer metadata may leave the cache as it is. Its regions are then those of the earlier metadata:
// a region in which a cache lies cannot be deregistered.
absl::StatusOr<std::shared_ptr<const PeerView>> KvParties::CheckRank(size_t rank,
                                                                     const PeerViews& now,
                                                                     std::string_view cache) const {
  const PeerView& then = *views[rank];
  auto view = now.Find(then.name);
  if (!view.ok() || *view == views[rank]) return view;  // no newer metadata
  const std::string whose = "peer " + then.name;
  if ((*view)->incarnation != then.incarnation) {
    return absl::FailedPreconditionError(
        absl::StrCat(whose,
                     " was replaced by a new incarnation since these blocks were prepared; "
                     "prepare them again"));
  }
  const auto found = FindKvCache(*(*view)->kv_caches, cache, whose);
  if (!found.ok()) return found.status();
  if ((*found)->id != theirs[rank]->id) return Anew(whose, cache);
  return view;
}

}  // namespace kvxfer
