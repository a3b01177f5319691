#include "src/agent/kv/kv_registry.h"

#include <algorithm>
#include <utility>

#include "kvxfer/kv_cache.h"
#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

absl::Status NoCache(std::string_view name) { return NoKvCache(kThisAgent, name); }

}  // namespace

std::shared_ptr<const KvCacheTable> KvRegistry::table() const {
  std::lock_guard lock(mu_);
  return table_;
}

absl::Status KvRegistry::Register(std::string_view name, const KvLayout& layout,
                                  std::span<const uint64_t> tensors, const RegionTable& regions) {
  if (auto status = CheckName("KV cache", name); !status.ok()) return status;
  if (caches_.contains(name)) {
    return absl::AlreadyExistsError(
        absl::StrCat("this agent has a KV cache \"", ToAbsl(name), "\" already"));
  }
  if (caches_.size() >= kMaxKvCaches) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this agent has ", kMaxKvCaches, " KV caches already"));
  }
  // Random, so that a peer with metadata of an earlier cache of this name is recognised (Take).
  Cache cache(layout);
  cache.id = RandomNonZero64();
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = layout.tensor_bytes(static_cast<uint32_t>(i % layout.tensors()));
    const auto region = regions.Find(tensors[i], bytes, Access::kNone);
    if (!region.ok()) {
      return Annotate(region.status(), absl::StrCat(ToAbsl(name), " KV cache, tensor ", i));
    }
    cache.regions.push_back(regions.regions()[*region].id);
  }
  const uint64_t id = cache.id;
  caches_.emplace(std::string(name), std::move(cache));
  // The table is copied: threads that plan a transfer keep the table that they took.
  std::lock_guard lock(mu_);
  auto table = std::make_shared<KvCacheTable>(*table_);
  table->emplace(
      std::string(name),
      KvCacheInfo{.id = id, .layout = layout, .tensors = {tensors.begin(), tensors.end()}});
  table_ = std::move(table);
  return absl::OkStatus();
}

absl::Status KvRegistry::Deregister(std::string_view name) {
  const auto at = caches_.find(name);
  if (at == caches_.end()) return NoCache(name);
  // Waiters hold the watch, so it outlives the cache.
  for (const auto& [request, watch] : at->second.watches) {
    watch->given_up.store(true, std::memory_order_release);
    loop_->Wake(watch.get());
  }
  lost_ += at->second.inbox.under_way();
  caches_.erase(at);
  std::lock_guard lock(mu_);
  auto table = std::make_shared<KvCacheTable>(*table_);
  table->erase(table->find(name));
  table_ = std::move(table);
  return absl::OkStatus();
}

absl::Status KvRegistry::CheckFree(RegionId region) const {
  for (const auto& [name, cache] : caches_) {
    if (std::ranges::find(cache.regions, region) == cache.regions.end()) continue;
    return absl::FailedPreconditionError(absl::StrCat("KV cache \"", name, "\" lies in region ",
                                                      static_cast<uint32_t>(region),
                                                      "; deregister the cache first"));
  }
  return absl::OkStatus();
}

absl::StatusOr<KvInbox::Taken> KvRegistry::Take(const KvPartFrame& frame, std::string_view peer,
                                                Time now) {
  const auto at = caches_.find(frame.cache);
  if (at == caches_.end()) return NoCache(frame.cache);
  if (frame.cache_id != at->second.id) {
    return absl::FailedPreconditionError(
        absl::StrCat("KV cache \"", frame.cache,
                     "\" was registered anew; take the metadata of its agent again"));
  }
  KvInbox& inbox = at->second.inbox;
  KvPart part{.request = frame.request, .blocks_hash = frame.blocks_hash, .range = frame.range};
  if (frame.has_notification) part.notification = frame.notification;
  // The request is reported as lost only if this part made it so.
  const bool lost_before = !inbox.LayersReady(frame.request).ok();
  auto taken = inbox.Take(std::move(part), peer, now + request_timeout_);
  if (!taken.ok() && !lost_before && !inbox.LayersReady(frame.request).ok()) {
    Lose(frame.cache, frame.request, ToStd(taken.status().message()));
  }
  Tell(at->second, frame.request);
  if (taken.ok() && taken->whole) ++whole_;
  return taken;
}

void KvRegistry::Lose(std::string_view cache, std::string_view request, std::string_view why) {
  ++lost_;
  Log(LogLevel::kInfo, "KV cache \"{}\": request {} is given up: {}", cache, request, why);
  events_->Push(KvEvent{.kind = KvEventKind::kRequestLost,
                        .request = RequestName(request),
                        .cache = CacheName(cache),
                        .why = std::string(why)});
}

absl::Status KvRegistry::Drop(std::string_view cache, std::string_view request) {
  const auto at = caches_.find(cache);
  if (at == caches_.end()) return NoCache(cache);
  KvInbox& inbox = at->second.inbox;
  if (inbox.Drop(request)) ++lost_;
  Tell(at->second, request);
  if (!inbox.LayersReady(request).ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("KV request ", ToAbsl(request), " is whole, and told of"));
}

void KvRegistry::Expire(Time now) {
  for (auto& [name, cache] : caches_) {
    for (const KvInbox::Lost& lost : cache.inbox.Expire(now)) {
      Lose(name, lost.request, ToStd(absl::StrCat("nothing more came in time: ", lost.missing)));
      Tell(cache, lost.request);
    }
  }
}

Time KvRegistry::NextExpiry() const {
  Time next = Time::max();
  for (const auto& [name, cache] : caches_) {
    next = std::min(next, cache.inbox.NextExpiry().value_or(Time::max()));
  }
  return next;
}

absl::StatusOr<std::shared_ptr<KvRegistry::Watch>> KvRegistry::StartWatch(std::string_view cache,
                                                                          std::string_view request,
                                                                          uint32_t layers) {
  const auto at = caches_.find(cache);
  if (at == caches_.end()) return NoCache(cache);
  const uint32_t has = at->second.inbox.layers();
  if (layers > has) {
    return absl::InvalidArgumentError(
        absl::StrCat(layers, " layers of KV cache \"", ToAbsl(cache), "\", which has ", has));
  }
  auto& watch = at->second.watches[std::string(request)];
  if (watch == nullptr) watch = std::make_shared<Watch>();
  ++watch->watchers;
  Tell(at->second, request);
  return watch;
}

void KvRegistry::EndWatch(std::string_view cache, std::string_view request, const Watch* watch) {
  const auto at = caches_.find(cache);
  if (at == caches_.end()) return;
  const auto mine = at->second.watches.find(request);
  // The watch belonged to an earlier cache of this name.
  if (mine == at->second.watches.end() || mine->second.get() != watch) return;
  if (--mine->second->watchers == 0) at->second.watches.erase(mine);
}

bool KvRegistry::watched() const {
  return std::ranges::any_of(caches_,
                             [](const auto& entry) { return !entry.second.watches.empty(); });
}

void KvRegistry::Tell(Cache& cache, std::string_view request) {
  const auto at = cache.watches.find(request);
  if (at == cache.watches.end()) return;
  Watch& watch = *at->second;
  const auto ready = cache.inbox.LayersReady(request);
  if (ready.ok()) {
    watch.ready.store(*ready, std::memory_order_release);
  } else {
    watch.given_up.store(true, std::memory_order_release);
  }
  loop_->Wake(&watch);
}

}  // namespace kvxfer
