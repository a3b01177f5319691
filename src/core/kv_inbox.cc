#include "src/core/kv_inbox.h"

#include <algorithm>
#include <utility>

#include "src/core/strings.h"

namespace kvxfer {
namespace {

std::string From(uint32_t first, uint32_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, " from ", first, " on");
}

bool Within(uint32_t first, uint32_t count, uint32_t whole_first, uint32_t whole_count) {
  return count > 0 && first >= whole_first && count <= whole_count &&
         first - whole_first <= whole_count - count;
}

template <typename... Why>
absl::Status Refuse(const KvPart& part, std::string_view peer, const Why&... why) {
  return absl::InvalidArgumentError(
      absl::StrCat("KV request ", part.request, ", part from ", ToAbsl(peer), ": ", why...));
}

}  // namespace

absl::StatusOr<bool> KvInbox::Take(const KvPart& part, std::string_view peer, Time expires) {
  if (part.request.empty() || part.request.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("KV request from ", ToAbsl(peer),
                                                   ": its name has ", part.request.size(),
                                                   " bytes, must be 1 to ", kMaxNameBytes));
  }
  if (told_.contains(part.request)) {
    return absl::FailedPreconditionError(
        absl::StrCat("KV request ", part.request, ": a part from ", ToAbsl(peer),
                     " came after its end; every attempt needs a name of its own"));
  }
  auto at = requests_.find(part.request);
  if (absl::Status status = CheckOfCache(part, peer); !status.ok()) {
    if (at != requests_.end()) End(at);
    return status;
  }
  if (at == requests_.end()) {
    if (requests_.size() >= kMaxRequests) {
      Remember(part.request);
      return absl::ResourceExhaustedError(
          absl::StrCat("KV request ", part.request, ": ", kMaxRequests, " others are under way"));
    }
    const uint32_t wanted = layers_ * heads_.count;
    at = requests_
             .emplace(part.request, Request{.blocks_hash = part.blocks_hash,
                                            .there = std::vector<bool>(wanted),
                                            .missing = wanted,
                                            .expires = expires})
             .first;
    by_expiry_.emplace(expires, part.request);
  }
  Request& request = at->second;
  if (absl::Status status = CheckNew(part, peer, request); !status.ok()) {
    End(at);
    return status;
  }
  for (uint32_t layer = 0; layer < part.layers; ++layer) {
    const size_t first =
        At(part.first_layer - first_layer_ + layer, part.heads.first - heads_.first);
    std::fill_n(request.there.begin() + static_cast<ptrdiff_t>(first), part.heads.count, true);
  }
  request.missing -= part.layers * part.heads.count;
  if (request.missing == 0) {
    End(at);
    return true;
  }
  Advance(request);
  if (expires > request.expires) {
    by_expiry_.erase({request.expires, part.request});
    by_expiry_.emplace(request.expires = expires, part.request);
  }
  return false;
}

// Whether this cache has such heads and layers. Nobody remembers a request that never had any.
absl::Status KvInbox::CheckOfCache(const KvPart& part, std::string_view peer) const {
  if (!Within(part.heads.first, part.heads.count, heads_.first, heads_.count)) {
    return Refuse(part, peer, "it has ", From(part.heads.first, part.heads.count, "heads"),
                  ", and this cache ", From(heads_.first, heads_.count, "heads"));
  }
  if (!Within(part.first_layer, part.layers, first_layer_, layers_)) {
    return Refuse(part, peer, "it has ", From(part.first_layer, part.layers, "layers"),
                  ", and this cache ", From(first_layer_, layers_, "layers"));
  }
  return absl::OkStatus();
}

// Whether it goes together with the parts before.
absl::Status KvInbox::CheckNew(const KvPart& part, std::string_view peer,
                               const Request& request) const {
  if (part.blocks_hash != request.blocks_hash) {
    return Refuse(part, peer, "it went to other blocks or tokens than the parts before");
  }
  for (uint32_t layer = 0; layer < part.layers; ++layer) {
    for (uint32_t head = 0; head < part.heads.count; ++head) {
      const uint32_t of_shard = part.first_layer - first_layer_ + layer;
      if (!request.there[At(of_shard, part.heads.first - heads_.first + head)]) continue;
      return Refuse(part, peer, "head ", part.heads.first + head, " of layer ",
                    part.first_layer + layer, " was there already");
    }
  }
  return absl::OkStatus();
}

void KvInbox::Advance(Request& request) const {
  const auto begin = request.there.begin();
  while (request.ready < layers_) {
    const auto layer = begin + static_cast<ptrdiff_t>(At(request.ready, 0));
    if (!std::all_of(layer, layer + heads_.count, [](bool there) { return there; })) return;
    ++request.ready;
  }
}

uint32_t KvInbox::LayersReady(std::string_view request) const {
  const auto at = requests_.find(request);
  return at == requests_.end() ? 0 : at->second.ready;
}

bool KvInbox::Drop(std::string_view request) {
  const auto at = requests_.find(request);
  if (at == requests_.end()) {
    Remember(std::string(request));
    return false;
  }
  End(at);
  return true;
}

void KvInbox::End(Requests::iterator at) {
  by_expiry_.erase({at->second.expires, at->first});
  Remember(at->first);
  requests_.erase(at);
}

// Whole, refused, dropped or expired: the name is not taken again while it is remembered.
void KvInbox::Remember(const std::string& request) {
  if (!told_.insert(request).second) return;
  told_order_.push_back(request);
  if (told_order_.size() <= kMaxTold) return;
  told_.erase(told_order_.front());
  told_order_.pop_front();
}

std::vector<KvInbox::Lost> KvInbox::Expire(Time now) {
  std::vector<Lost> lost;
  while (!by_expiry_.empty() && by_expiry_.begin()->first <= now) {
    const auto at = requests_.find(by_expiry_.begin()->second);
    lost.push_back({.request = at->first, .missing = Missing(at->second)});
    End(at);
  }
  return lost;
}

std::optional<Time> KvInbox::NextExpiry() const {
  if (by_expiry_.empty()) return std::nullopt;
  return by_expiry_.begin()->first;
}

// The first gap, and how much there is of it in all.
std::string KvInbox::Missing(const Request& request) const {
  const auto gap = std::ranges::find(request.there, false);
  const auto index = static_cast<size_t>(gap - request.there.begin());
  return absl::StrCat(request.missing, " of ", layers_ * heads_.count,
                      " heads and layers are missing, the first of them head ",
                      heads_.first + index % heads_.count, " of layer ",
                      first_layer_ + index / heads_.count);
}

}  // namespace kvxfer
