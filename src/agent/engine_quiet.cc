// Registered memory, and when it is quiet: registration, deregistration, Quiesce.
#include <algorithm>
#include <set>
#include <utility>

#include "src/agent/engine.h"
#include "src/core/strings.h"
#include "src/cuda/memory.h"

namespace kvxfer {
namespace {

// Registered in one turn of the driver, so that transfers go on in between.
constexpr size_t kAtOnce = 256;
// For what was registered of a list that is refused: nobody can have learnt of much of it.
constexpr Duration kTakeBack = std::chrono::seconds(5);

}  // namespace

absl::StatusOr<std::vector<RegionId>> Engine::RegisterMemory(std::span<const MemorySpan> spans,
                                                             Access access) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  if (runtime_.loop.stopped()) return ClosedError();
  if (auto status = CheckNotDraining(); !status.ok()) return status;
  std::vector<RegionId> made;
  const auto host = [](const MemorySpan& span) { return span.kind != MemoryKind::kCuda; };
  while (made.size() < spans.size()) {
    const auto left = spans.subspan(made.size());
    const auto end = std::ranges::find_if_not(left.first(std::min(left.size(), kAtOnce)), host);
    const auto some = left.first(static_cast<size_t>(end - left.begin()));
    auto regions = some.empty() ? RegisterCuda(left.front(), access) : RegisterHost(some, access);
    if (!regions.ok()) {
      if (!made.empty()) DeregisterMemory(made, kTakeBack, nullptr).IgnoreError();
      return regions.status();
    }
    made.insert(made.end(), regions->begin(), regions->end());
  }
  return made;
}

// All or none.
absl::StatusOr<std::vector<RegionId>> Engine::RegisterHost(std::span<const MemorySpan> spans,
                                                           Access access) {
  // What takes long is done here, for transfers go on meanwhile.
  std::vector<MemoryRegistry::Ahead> ahead;
  for (const MemorySpan& span : spans) {
    if (auto status = MemoryRegistry::CheckSpan(span); !status.ok()) return status;
    if (auto status = cuda::CheckHostSpan(span); !status.ok()) return status;
    ahead.push_back(MemoryRegistry::Prepare(span, access, runtime_.backends));
  }
  using Made = absl::StatusOr<std::vector<RegionId>>;
  return CallFor<Made>([&]() -> Made {
    ++runtime_.revision;
    std::vector<RegionId> made;
    for (size_t i = 0; i < spans.size(); ++i) {
      auto region = runtime_.memory.Register(spans[i], access, runtime_.backends, ahead[i], {});
      if (region.ok()) {
        made.push_back(*region);
        continue;
      }
      // Nobody has learnt of them.
      for (const RegionId id : made) {
        runtime_.memory.Close(id).IgnoreError();
        runtime_.memory.Remove(id);
      }
      return region.status();
    }
    return made;
  });
}

// The staging memory is registered before the first region that may need it: whoever knows that one
// knows this one too.
absl::StatusOr<std::vector<RegionId>> Engine::RegisterCuda(const MemorySpan& span, Access access) {
  if (auto status = MemoryRegistry::CheckSpan(span); !status.ok()) return status;
  auto device = cuda::Examine(span);
  if (!device.ok()) return device.status();
  const auto driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  if (auto status = cuda::SetSyncMemops(**driver, *device); !status.ok()) return status;
  MemoryRegistry::Staging staging{.possible = runtime_.staging.Open(span.device_id)};
  const MemorySpan slots = runtime_.staging.span();
  MemoryRegistry::Ahead slots_ahead;
  if (staging.possible.ok() && !staging_registered_) {
    slots_ahead = MemoryRegistry::Prepare(slots, Access::kReadWrite, runtime_.backends);
  }
  const auto ahead = MemoryRegistry::Prepare(span, access, runtime_.backends);
  using Made = absl::StatusOr<std::vector<RegionId>>;
  return CallFor<Made>([&]() -> Made {
    if (staging.possible.ok() && !staging_registered_) {
      staging.possible =
          runtime_.memory
              .Register(slots, Access::kReadWrite, runtime_.backends, slots_ahead, {.slots = true})
              .status();
      staging_registered_ = staging.possible.ok();
    }
    ++runtime_.revision;
    auto region = runtime_.memory.Register(span, access, runtime_.backends, ahead, staging);
    if (!region.ok()) return region.status();
    runtime_.staging.AddRegion(*region, *std::move(device));
    return std::vector<RegionId>{*region};
  });
}

absl::Status Engine::DeregisterMemory(std::span<const RegionId> regions, Duration timeout,
                                      std::vector<RegionId>* in_use) {
  if (auto status = RefuseInCallback("DeregisterMemory"); !status.ok()) return status;
  const Time deadline = After(timeout);
  auto begun = CallFor<absl::StatusOr<Left>>([&] { return BeginDeregistration(regions); });
  if (!begun.ok()) return begun.status();
  const Left left = *std::move(begun);
  const auto done = [&] { return left->load(std::memory_order_acquire) == 0; };
  auto waited = WaitFor(left.get(), done, deadline);
  if (!waited.ok()) return waited.status();
  if (*waited) return absl::OkStatus();
  std::string pending;
  std::vector<RegionId> stay;
  absl::Status status = Call([&] {
    stay = LeaveDeregistration(regions);
    if (!stay.empty()) pending = inbound_.Pending(closing_.at(stay[0]).question.token);
  });
  if (done()) return absl::OkStatus();
  if (!status.ok()) return status;
  if (pending.empty()) pending = "transfers of this agent";
  status = absl::DeadlineExceededError(absl::StrCat(
      "region ", static_cast<uint32_t>(stay[0]), " is still in use by ", pending,
      stay.size() == 1 ? "" : absl::StrCat(" (and ", stay.size() - 1, " more of the call are)"),
      "; it stays registered and its memory must not be freed: call again"));
  if (in_use != nullptr) *in_use = std::move(stay);
  return status;
}

absl::Status Engine::CheckCanDeregister(std::span<const RegionId> regions) const {
  std::set<RegionId> named;
  for (const RegionId region : regions) {
    const auto number = static_cast<uint32_t>(region);
    if (!named.insert(region).second) {
      return absl::InvalidArgumentError(absl::StrCat("region ", number, " is named twice"));
    }
    const auto it = closing_.find(region);
    if (it == closing_.end()) {
      absl::Status status = runtime_.kv.CheckFree(region);
      if (status.ok()) status = runtime_.memory.CheckOpen(region);
      if (!status.ok()) return status;
    } else if (it->second.left != nullptr) {
      return absl::FailedPreconditionError(absl::StrCat(
          "region ", number, " is being deregistered by another call; wait for that one"));
    }
  }
  return absl::OkStatus();
}

// Peers are asked once for each region: a call after one that timed out waits for the same answers.
absl::StatusOr<Engine::Left> Engine::BeginDeregistration(std::span<const RegionId> regions) {
  if (auto status = CheckCanDeregister(regions); !status.ok()) return status;
  auto left = std::make_shared<std::atomic<size_t>>(regions.size());
  std::vector<RegionId> open;
  for (const RegionId region : regions) {
    const auto it = closing_.find(region);
    if (it == closing_.end()) {
      open.push_back(region);
    } else {
      it->second.left = left;
    }
  }
  if (!open.empty()) ++runtime_.revision;
  for (size_t at = 0; at < open.size(); at += kMaxListedRegions) {
    const auto some = std::span(open).subspan(at, std::min(open.size() - at, kMaxListedRegions));
    for (const RegionId region : some) runtime_.memory.Close(region).IgnoreError();  // looked at
    const auto question = inbound_.StartQuiesce({.regions = {some.begin(), some.end()}}, true);
    if (!question.ok()) return question.status();
    for (const RegionId region : some) {
      closing_.emplace(region, Closing{.question = *question, .left = left});
    }
  }
  FinishDeregistrations();
  return left;
}

// The caller waits no longer; what is in use, which is said, stays as it is until the next call.
std::vector<RegionId> Engine::LeaveDeregistration(std::span<const RegionId> regions) {
  FinishDeregistrations();
  std::vector<RegionId> stay;
  for (const RegionId region : regions) {
    const auto it = closing_.find(region);
    if (it == closing_.end()) continue;
    it->second.left.reset();
    stay.push_back(region);
  }
  return stay;
}

void Engine::FinishDeregistrations() {
  for (auto it = closing_.begin(); it != closing_.end();) {
    const Closing& closing = it->second;
    if (closing.left == nullptr || !closing.question.quiet->load(std::memory_order_acquire) ||
        runtime_.memory.InUse(it->first) || runtime_.staging.InUse(it->first)) {
      ++it;
      continue;
    }
    (void)inbound_.IsQuiet(closing.question.token);  // forgets the question
    runtime_.memory.Remove(it->first);
    runtime_.staging.RemoveRegion(it->first);
    if (closing.left->fetch_sub(1, std::memory_order_acq_rel) == 1) {
      runtime_.loop.Wake(closing.left.get());
    }
    it = closing_.erase(it);
  }
}

absl::StatusOr<QuiesceResult> Engine::Quiesce(const QuiesceScope& scope, Duration timeout) {
  if (auto status = RefuseInCallback("Quiesce"); !status.ok()) return status;
  const Time deadline = After(timeout);
  const auto question = CallFor<absl::StatusOr<InboundHub::Question>>(
      [&] { return inbound_.StartQuiesce(scope, false); });
  if (!question.ok()) return question.status();
  const auto quiet = [&] { return question->quiet->load(std::memory_order_acquire); };
  auto waited = WaitFor(question->quiet.get(), quiet, deadline);
  if (!waited.ok()) return waited.status();
  QuiesceResult result{.quiet = quiet(), .token = question->token};
  const absl::Status status = Call([&] {
    result.quiet = inbound_.IsQuiet(question->token).value_or(false);
    if (!result.quiet) result.pending = inbound_.Pending(question->token);
  });
  if (!status.ok()) return status;
  if (result.quiet) result.token = 0;
  return result;
}

absl::StatusOr<bool> Engine::IsQuiet(uint64_t token) {
  return CallFor<absl::StatusOr<bool>>([&] { return inbound_.IsQuiet(token); });
}

}  // namespace kvxfer
