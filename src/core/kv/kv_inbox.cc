#include "src/core/kv/kv_inbox.h"

#include <algorithm>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

template <typename... Why>
absl::Status Refuse(const KvPart& part, std::string_view peer, const Why&... why) {
  return absl::InvalidArgumentError(
      absl::StrCat("KV request ", part.request, ", part from ", ToAbsl(peer), ": ", why...));
}

}  // namespace

absl::StatusOr<KvInbox::Taken> KvInbox::Take(KvPart part, std::string_view peer, Time expires) {
  if (auto status = CheckName("KV request", part.request); !status.ok()) {
    return Annotate(status, absl::StrCat("from ", ToAbsl(peer)));
  }
  // An ended request never begins again, so a late part cannot revive it.
  if (reported_.contains(part.request)) {
    return absl::FailedPreconditionError(
        absl::StrCat("KV request ", part.request, ": a part from ", ToAbsl(peer),
                     " came after its end; every attempt needs a name of its own"));
  }
  auto at = requests_.find(part.request);
  if (absl::Status status = CheckOfCache(part, peer); !status.ok()) {
    // A part that does not fit the cache ends its whole request: the request could never become
    // complete, and the name must not be used for a second attempt.
    if (at == requests_.end()) Remember(part.request, false);
    if (at != requests_.end()) End(at, false);
    return status;
  }
  if (at == requests_.end()) {
    if (requests_.size() >= kMaxRequests) {
      // Remembered as lost, so that later parts of the same request are refused too.
      Remember(part.request, false);
      return absl::ResourceExhaustedError(
          absl::StrCat("KV request ", part.request, ": ", kMaxRequests, " others are under way"));
    }
    const uint32_t wanted = has_.layers * has_.heads.count;
    at = requests_
             .emplace(part.request, Request{.blocks_hash = part.blocks_hash,
                                            .there = std::vector<bool>(wanted),
                                            .missing = wanted,
                                            .expires = expires})
             .first;
    by_expiry_.emplace(expires, part.request);
  }
  // Everything is checked before anything is stored. A refused part gives up the whole request.
  Request& request = at->second;
  absl::Status status = CheckNew(part, peer, request);
  if (status.ok()) status = Keep(request, part, peer);
  if (!status.ok()) {
    End(at, false);
    return status;
  }
  const KvRange& range = part.range;
  for (uint32_t layer = 0; layer < range.layers; ++layer) {
    const size_t first =
        At(range.first_layer - has_.first_layer + layer, range.heads.first - has_.heads.first);
    std::fill_n(request.there.begin() + static_cast<ptrdiff_t>(first), range.heads.count, true);
  }
  request.missing -= range.layers * range.heads.count;
  if (request.missing == 0) {
    Taken taken{.whole = true, .notification = request.notification};
    End(at, true);
    return taken;
  }
  // Not complete yet: a part that arrives extends the request's life, and never shortens it.
  Advance(request);
  if (expires > request.expires) {
    by_expiry_.erase({request.expires, part.request});
    by_expiry_.emplace(request.expires = expires, part.request);
  }
  return Taken{};
}

// Whether this cache has the part's heads and layers.
absl::Status KvInbox::CheckOfCache(const KvPart& part, std::string_view peer) const {
  const auto misfit = MisfitOf(part.range, has_);
  if (!misfit) return absl::OkStatus();
  return Refuse(part, peer, "it has ", misfit->count, " ", misfit->axis, " from ", misfit->first,
                " on, and this cache ", misfit->has_count, " ", misfit->axis, " from ",
                misfit->has_first, " on");
}

// Whether the part fits the parts that arrived before.
absl::Status KvInbox::CheckNew(const KvPart& part, std::string_view peer,
                               const Request& request) const {
  if (part.blocks_hash != request.blocks_hash) {
    return Refuse(part, peer, "it went to other blocks or tokens than the parts before");
  }
  const KvRange& range = part.range;
  for (uint32_t layer = 0; layer < range.layers; ++layer) {
    for (uint32_t head = 0; head < range.heads.count; ++head) {
      const uint32_t of_shard = range.first_layer - has_.first_layer + layer;
      if (!request.there[At(of_shard, range.heads.first - has_.heads.first + head)]) continue;
      return Refuse(part, peer, "head ", range.heads.first + head, " of layer ",
                    range.first_layer + layer, " was there already");
    }
  }
  return absl::OkStatus();
}

// A notification replaces that of an earlier part, and its bytes count against one limit for all
// requests of the cache.
absl::Status KvInbox::Keep(Request& request, KvPart& part, std::string_view peer) {
  if (!part.notification.has_value()) return absl::OkStatus();
  const size_t before = request.notification.has_value() ? request.notification->size() : 0;
  const size_t bytes = notification_bytes_ - before + part.notification->size();
  if (bytes > kMaxNotificationBytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "KV request ", part.request, ", part from ", ToAbsl(peer),
        ": notifications of requests under way have more than ", kMaxNotificationBytes, " bytes"));
  }
  notification_bytes_ = bytes;
  request.notification = std::move(part.notification);
  return absl::OkStatus();
}

// Layers are ready in order: `ready` stops at the first layer that lacks a head.
void KvInbox::Advance(Request& request) const {
  const auto begin = request.there.begin();
  while (request.ready < has_.layers) {
    const auto layer = begin + static_cast<ptrdiff_t>(At(request.ready, 0));
    if (!std::all_of(layer, layer + has_.heads.count, [](bool there) { return there; })) return;
    ++request.ready;
  }
}

absl::StatusOr<uint32_t> KvInbox::LayersReady(std::string_view request) const {
  if (const auto at = requests_.find(request); at != requests_.end()) return at->second.ready;
  const auto told = reported_.find(request);
  if (told == reported_.end()) return 0;
  if (told->second) return has_.layers;
  return absl::AbortedError(absl::StrCat("KV request ", ToAbsl(request), " was given up"));
}

bool KvInbox::Drop(std::string_view request) {
  const auto at = requests_.find(request);
  // Also remembered if nothing of it has arrived yet, so that parts that arrive later are refused.
  if (at == requests_.end()) {
    Remember(std::string(request), false);
    return false;
  }
  End(at, false);
  return true;
}

void KvInbox::End(Requests::iterator at, bool whole) {
  by_expiry_.erase({at->second.expires, at->first});
  if (at->second.notification.has_value()) notification_bytes_ -= at->second.notification->size();
  Remember(at->first, whole);
  requests_.erase(at);
}

// A request has ended: complete, refused, dropped or expired. Its name is refused as long as it is
// remembered, which is for the last kMaxReported ends.
void KvInbox::Remember(const std::string& request, bool whole) {
  if (!reported_.emplace(request, whole).second) return;
  reported_order_.push_back(request);
  if (reported_order_.size() <= kMaxReported) return;
  reported_.erase(reported_order_.front());
  reported_order_.pop_front();
}

std::vector<KvInbox::Lost> KvInbox::Expire(Time now) {
  std::vector<Lost> lost;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const auto at = requests_.find(by_expiry_.begin()->second);
    lost.push_back({.request = at->first, .missing = Missing(at->second)});
    End(at, false);
  }
  return lost;
}

std::optional<Time> KvInbox::NextExpiry() const {
  if (by_expiry_.empty()) return std::nullopt;
  return by_expiry_.begin()->first;
}

// Text for a person: how many head-layer pairs are missing, and the first of them.
std::string KvInbox::Missing(const Request& request) const {
  const auto gap = std::ranges::find(request.there, false);
  const auto index = static_cast<size_t>(gap - request.there.begin());
  return absl::StrCat(request.missing, " of ", has_.layers * has_.heads.count,
                      " heads and layers are missing, the first of them head ",
                      has_.heads.first + index % has_.heads.count, " of layer ",
                      has_.first_layer + index / has_.heads.count);
}

}  // namespace kvxfer
