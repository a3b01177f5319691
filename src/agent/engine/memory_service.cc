#include "src/agent/engine/memory_service.h"

#include <algorithm>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// How many regions one command handles. The driver makes progress on transfers between two
// commands.
constexpr size_t kAtOnce = Deregistrations::kAtOnce;

bool IsHost(const MemorySpan& span) { return span.kind != MemoryKind::kCuda; }

// Refuses spans that are wrong by themselves before anything is registered.
absl::Status CheckSpans(std::span<const MemorySpan> spans) {
  for (const MemorySpan& span : spans) {
    absl::Status status = MemoryRegistry::CheckSpan(span);
    if (status.ok() && IsHost(span)) status = cuda::CheckHostSpan(span);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<RegionId>> MemoryService::Register(std::span<const MemorySpan> spans,
                                                              Access access) {
  if (auto status = gate_->CheckNotForked(); !status.ok()) return status;
  if (runtime_->loop.stopped()) return CallGate::ClosedError();
  if (auto status = gate_->CheckTakesWork(); !status.ok()) return status;
  if (auto status = CheckSpans(spans); !status.ok()) return status;
  std::vector<RegionId> made;
  absl::Status status;
  while (status.ok() && made.size() < spans.size()) {
    const auto left = spans.subspan(made.size());
    // The host spans up to the next GPU span; a GPU span is registered alone.
    const auto end = std::ranges::find_if_not(left.first(std::min(left.size(), kAtOnce)), IsHost);
    const auto some = left.first(static_cast<size_t>(end - left.begin()));
    status =
        some.empty() ? RegisterCuda(left.front(), access, made) : RegisterHost(some, access, made);
  }
  if (auto settled = Settle(made, status); !settled.ok()) return settled;
  if (!status.ok()) return status;
  return made;
}

absl::Status MemoryService::Settle(std::span<const RegionId> made, const absl::Status& registered) {
  for (size_t at = 0; at < made.size(); at += kAtOnce) {
    const auto some = made.subspan(at, std::min(made.size() - at, kAtOnce));
    auto called = gate_->Call([&] {
      if (registered.ok()) {
        runtime_->memory.Publish(some);
        ++runtime_->revision;
        return;
      }
      for (const RegionId region : some) {
        runtime_->memory.Remove(region);
        runtime_->staging.RemoveRegion(region);
      }
    });
    if (!called.ok()) return called;
  }
  return absl::OkStatus();
}

absl::Status MemoryService::RegisterHost(std::span<const MemorySpan> spans, Access access,
                                         std::vector<RegionId>& made) {
  MemoryRegistry& memory = runtime_->memory;
  std::vector<MemoryRegistry::Made> ready;
  for (const MemorySpan& span : spans) {
    ready.push_back(memory.Make(span, access, runtime_->backends));
  }
  absl::Status status = gate_->CallFor<absl::Status>([&] {
    absl::Status added;
    for (MemoryRegistry::Made& one : std::exchange(ready, {})) {
      if (!added.ok()) {
        memory.Drop(std::move(one));
        continue;
      }
      auto region = memory.Add(std::move(one), runtime_->backends, {});
      added = region.status();
      if (region.ok()) made.push_back(*region);
    }
    return added;
  });
  memory.Discard(std::move(ready));
  return status;
}

// The staging memory is registered before the first region that may need it. So a peer that knows
// such a region also knows the staging memory.
absl::Status MemoryService::RegisterCuda(const MemorySpan& span, Access access,
                                         std::vector<RegionId>& made) {
  auto device = cuda::Examine(span);
  if (!device.ok()) return device.status();
  const auto driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  if (auto status = cuda::SetSyncMemops(**driver, *device); !status.ok()) return status;
  MemoryRegistry& memory = runtime_->memory;
  MemoryRegistry::Staging staging{.possible = runtime_->staging.Open(span.device_id)};
  std::vector<MemoryRegistry::Made> ready;
  ready.push_back(memory.Make(span, access, runtime_->backends));
  // Checked again in the command, because two threads may register at the same time.
  if (staging.possible.ok() && !staging_registered_) {
    ready.push_back(memory.Make(runtime_->staging.span(), Access::kReadWrite, runtime_->backends));
  }
  absl::Status status = gate_->CallFor<absl::Status>([&] {
    auto region = AddCuda(std::exchange(ready, {}), std::move(staging), *std::move(device));
    if (region.ok()) made.push_back(*region);
    return region.status();
  });
  memory.Discard(std::move(ready));
  return status;
}

absl::StatusOr<RegionId> MemoryService::AddCuda(std::vector<MemoryRegistry::Made> made,
                                                MemoryRegistry::Staging staging,
                                                cuda::DeviceSpan device) {
  MemoryRegistry& memory = runtime_->memory;
  if (made.size() > 1 && staging_registered_) {
    memory.Drop(std::move(made.back()));
  } else if (made.size() > 1) {
    const auto registered =
        memory.Add(std::move(made.back()), runtime_->backends, {.is_staging = true});
    staging.possible = registered.status();
    staging_registered_ = registered.ok();
    if (registered.ok()) {
      memory.Publish(std::span(&*registered, 1));
      ++runtime_->revision;
    }
  }
  auto region = memory.Add(std::move(made.front()), runtime_->backends, staging);
  if (region.ok()) runtime_->staging.AddRegion(*region, std::move(device));
  return region;
}

absl::Status MemoryService::Deregister(std::span<const RegionId> regions, Duration timeout,
                                       std::vector<RegionId>* in_use) {
  if (auto status = CallGate::RefuseInCallback("DeregisterMemory"); !status.ok()) return status;
  const Time deadline = After(timeout);
  using Left = Deregistrations::Left;
  auto begun =
      gate_->CallFor<absl::StatusOr<Left>>([&] { return deregistrations_.Begin(regions); });
  if (!begun.ok()) return begun.status();
  const Left left = *std::move(begun);
  const auto done = [&] { return left->load(std::memory_order_acquire) == 0; };
  auto waited = gate_->WaitFor(left.get(), done, deadline);
  if (!waited.ok()) return waited.status();
  return *waited ? absl::OkStatus() : LeaveInUse(regions, left, in_use);
}

absl::Status MemoryService::LeaveInUse(std::span<const RegionId> regions,
                                       const Deregistrations::Left& left,
                                       std::vector<RegionId>* in_use) {
  std::string pending;
  std::vector<RegionId> stay;
  // Regions that are free and only wait for their turn in Advance are not in use: let it forget
  // them before the rest is reported.
  for (bool more = true; more;) {
    absl::Status status = gate_->Call([&] {
      more = Advance();
      if (more) return;
      stay = deregistrations_.Leave(regions);
      if (!stay.empty()) pending = deregistrations_.Pending(stay[0]);
    });
    if (left->load(std::memory_order_acquire) == 0) return absl::OkStatus();
    if (!status.ok()) return status;
  }
  absl::Status status = TimedOutError(absl::StrCat(
      "region ", static_cast<uint32_t>(stay[0]), " is still in use by ", pending,
      stay.size() == 1 ? "" : absl::StrCat(" (and ", stay.size() - 1, " more of the call are)"),
      "; it stays registered and its memory must not be freed: call again"));
  if (in_use != nullptr) *in_use = std::move(stay);
  return status;
}

}  // namespace kvxfer
