// Registered memory, and when it is quiet: registration, deregistration, Quiesce.
#include <utility>

#include "src/agent/engine.h"
#include "src/core/strings.h"
#include "src/cuda/memory.h"

namespace kvxfer {

absl::StatusOr<RegionId> Engine::RegisterMemory(const MemorySpan& span, Access access) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  if (runtime_.loop.stopped()) return ClosedError();
  if (auto status = CheckNotDraining(); !status.ok()) return status;
  if (auto status = MemoryRegistry::CheckSpan(span); !status.ok()) return status;
  if (span.kind == MemoryKind::kCuda) return RegisterCuda(span, access);
  if (auto status = cuda::CheckHostSpan(span); !status.ok()) return status;
  // What takes long is done here, for transfers go on meanwhile.
  const auto ahead = MemoryRegistry::Prepare(span, access, runtime_.backends);
  return CallFor<absl::StatusOr<RegionId>>([&] {
    ++runtime_.revision;
    return runtime_.memory.Register(span, access, runtime_.backends, ahead, {});
  });
}

// The staging memory is registered before the first region that may need it: whoever knows that one
// knows this one too.
absl::StatusOr<RegionId> Engine::RegisterCuda(const MemorySpan& span, Access access) {
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
  return CallFor<absl::StatusOr<RegionId>>([&]() -> absl::StatusOr<RegionId> {
    if (staging.possible.ok() && !staging_registered_) {
      staging.possible =
          runtime_.memory
              .Register(slots, Access::kReadWrite, runtime_.backends, slots_ahead, {.slots = true})
              .status();
      staging_registered_ = staging.possible.ok();
    }
    ++runtime_.revision;
    auto region = runtime_.memory.Register(span, access, runtime_.backends, ahead, staging);
    if (region.ok()) runtime_.staging.AddRegion(*region, *std::move(device));
    return region;
  });
}

absl::Status Engine::DeregisterMemory(RegionId region, Duration timeout) {
  if (auto status = RefuseInCallback("DeregisterMemory"); !status.ok()) return status;
  const Time deadline = After(timeout);
  auto begun = CallFor<absl::StatusOr<Flag>>([&] { return BeginDeregistration(region); });
  if (!begun.ok()) return begun.status();
  const Flag removed = *std::move(begun);
  const auto done = [&] { return removed->load(std::memory_order_acquire); };
  auto waited = WaitFor(removed.get(), done, deadline);
  if (!waited.ok()) return waited.status();
  if (*waited) return absl::OkStatus();
  std::string pending;
  absl::Status status = Call([&] { pending = LeaveDeregistration(region); });
  if (done()) return absl::OkStatus();
  if (!status.ok()) return status;
  return absl::DeadlineExceededError(
      absl::StrCat("region ", static_cast<uint32_t>(region), " is still in use by ", pending,
                   "; it stays registered and its memory must not be freed: call again"));
}

// Peers are asked once for each region: a call after one that timed out waits for the same answers.
absl::StatusOr<Engine::Flag> Engine::BeginDeregistration(RegionId region) {
  auto it = closing_.find(region);
  if (it == closing_.end()) {
    if (auto status = runtime_.kv.CheckFree(region); !status.ok()) return status;
    if (auto status = runtime_.memory.Close(region); !status.ok()) return status;
    ++runtime_.revision;
    auto question = inbound_.StartQuiesce({.regions = {region}}, true);
    if (!question.ok()) return question.status();
    it = closing_.emplace(region, Closing{.question = *std::move(question)}).first;
  } else if (it->second.awaited) {
    return absl::FailedPreconditionError(
        absl::StrCat("region ", static_cast<uint32_t>(region),
                     " is being deregistered by another call; wait for that one"));
  }
  it->second.awaited = true;
  Flag removed = it->second.removed;
  FinishDeregistrations();
  return removed;
}

// The caller waits no longer; the region stays as it is until the next call. Who is in the way, for
// a person; nothing when it was removed after all.
std::string Engine::LeaveDeregistration(RegionId region) {
  FinishDeregistrations();
  const auto it = closing_.find(region);
  if (it == closing_.end()) return "";
  it->second.awaited = false;
  std::string pending = inbound_.Pending(it->second.question.token);
  return pending.empty() ? "transfers of this agent" : pending;
}

void Engine::FinishDeregistrations() {
  for (auto it = closing_.begin(); it != closing_.end();) {
    const Closing& closing = it->second;
    if (!closing.awaited || !closing.question.quiet->load(std::memory_order_acquire) ||
        runtime_.memory.InUse(it->first) || runtime_.staging.InUse(it->first)) {
      ++it;
      continue;
    }
    (void)inbound_.IsQuiet(closing.question.token);  // forgets the question
    runtime_.memory.Remove(it->first);
    runtime_.staging.RemoveRegion(it->first);
    closing.removed->store(true, std::memory_order_release);
    runtime_.loop.Wake(closing.removed.get());
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
