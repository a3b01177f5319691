#include "src/agent/kv/kv_service.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "src/core/base/strings.h"
#include "src/core/kv/kv_blocks_hash.h"
#include "src/core/kv/kv_tensors.h"

namespace kvxfer {

absl::Status KvService::Register(std::string_view name, const KvLayout& layout,
                                 std::span<const uint64_t> tensors) {
  if (auto status = CheckKvTensors(name, layout, tensors); !status.ok()) return status;
  return gate_->CallFor<absl::Status>([&] {
    ++runtime_->revision;
    return runtime_->kv.Register(name, layout, tensors, *runtime_->memory.table());
  });
}

absl::Status KvService::Deregister(std::string_view name) {
  return gate_->CallFor<absl::Status>([&] {
    ++runtime_->revision;
    return runtime_->kv.Deregister(name);
  });
}

absl::Status KvService::WaitLayers(std::string_view cache, std::string_view request,
                                   uint32_t layers, Duration timeout) {
  if (auto status = CallGate::RefuseInCallback("WaitLayers"); !status.ok()) return status;
  const Time deadline = After(timeout);
  const auto watch = gate_->CallFor<absl::StatusOr<std::shared_ptr<KvRegistry::Watch>>>([&] {
    const bool watched = runtime_->kv.watched();
    auto started = runtime_->kv.StartWatch(cache, request, layers);
    if (started.ok() && !watched) inbound_->AwaitWriters();
    return started;
  });
  if (!watch.ok()) return watch.status();
  const KvRegistry::Watch& watched = **watch;
  const auto waited = gate_->WaitFor(
      &watched,
      [&] {
        return watched.ready.load(std::memory_order_acquire) >= layers ||
               watched.given_up.load(std::memory_order_acquire);
      },
      deadline);
  // If the agent was closed meanwhile, the watch is gone with it.
  std::string silent;
  (void)gate_->Call([&] {
    runtime_->kv.EndWatch(cache, request, &watched);
    if (waited.ok() && !*waited) silent = runtime_->presence.Silent(Now());
  });
  if (!waited.ok()) return waited.status();
  const uint32_t ready = watched.ready.load(std::memory_order_acquire);
  if (ready >= layers) return absl::OkStatus();
  const std::string text = absl::StrCat("KV request ", ToAbsl(request), ": ", ready, " of ", layers,
                                        " layers are there");
  if (watched.given_up) return absl::AbortedError(absl::StrCat(text, ", and it was given up"));
  return TimedOutError(
      absl::StrCat(text, " within the time-out", silent.empty() ? "" : "; ", silent));
}

absl::Status KvService::DropRequest(std::string_view cache, std::string_view request) {
  return gate_->CallFor<absl::Status>([&] { return runtime_->kv.Drop(cache, request); });
}

absl::Status KvService::LeaseBlocks(std::string_view cache, std::string_view lease,
                                    std::span<const uint32_t> ids, Duration hold,
                                    std::string_view contents) {
  if (auto status = gate_->CheckNotForked(); !status.ok()) return status;
  const auto caches = runtime_->kv.table();
  const auto own = FindKvCache(*caches, cache, kThisAgent);
  if (!own.ok()) return own.status();
  if (ids.empty()) return absl::InvalidArgumentError("a KV lease of no blocks");
  if (hold <= Duration::zero()) return absl::InvalidArgumentError("a KV lease of no time");
  const uint32_t last = *std::ranges::max_element(ids);
  if (last >= (*own)->layout.blocks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV lease of block ", last, ", and the cache has ", (*own)->layout.blocks()));
  }
  return gate_->CallFor<absl::Status>([&] {
    absl::Status status = gate_->CheckTakesWork();
    if (status.ok()) {
      status = runtime_->leases.Grant(
          lease, {.hash = HashLeased((*own)->id, ids), .contents = contents}, After(hold), Now());
    }
    return status;
  });
}

absl::Status KvService::RenewLease(std::string_view lease, Duration hold) {
  return gate_->CallFor<absl::Status>(
      [&] { return runtime_->leases.Renew(lease, After(hold), Now()); });
}

absl::Status KvService::ReleaseLease(std::string_view lease) {
  return gate_->CallFor<absl::Status>([&] { return runtime_->leases.Release(lease, Now()); });
}

absl::Status KvService::RevokeLease(std::string_view lease) {
  return gate_->CallFor<absl::Status>([&] { return runtime_->leases.Revoke(lease, Now()); });
}

absl::StatusOr<KvCounts> KvService::Count() {
  return gate_->CallFor<absl::StatusOr<KvCounts>>([&] {
    KvCounts counts{.requests_whole = runtime_->kv.whole(), .requests_lost = runtime_->kv.lost()};
    runtime_->leases.Count(counts);
    return counts;
  });
}

}  // namespace kvxfer
