// Engine: registering and deregistering memory, and Quiesce.
#include <algorithm>
#include <utility>

#include "src/agent/engine/engine.h"
#include "src/core/base/strings.h"
#include "src/cuda/memory.h"

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

// Registers all of `spans` or none. Peers and transfers see the regions only once all of them
// exist, so a failed call can take them back without asking a peer.
absl::StatusOr<std::vector<RegionId>> Engine::RegisterMemory(std::span<const MemorySpan> spans,
                                                             Access access) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  if (runtime_.loop.stopped()) return ClosedError();
  if (auto status = CheckNotDraining(); !status.ok()) return status;
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
  // Publishes the regions, or takes back those of a call that failed.
  for (size_t at = 0; at < made.size(); at += kAtOnce) {
    const auto some = std::span(made).subspan(at, std::min(made.size() - at, kAtOnce));
    const auto called = Call([&] {
      if (status.ok()) {
        runtime_.memory.Publish(some);
        ++runtime_.revision;
        return;
      }
      for (const RegionId region : some) {
        runtime_.memory.Remove(region);
        runtime_.staging.RemoveRegion(region);
      }
    });
    if (!called.ok()) return called;
  }
  if (!status.ok()) return status;
  return made;
}

absl::Status Engine::RegisterHost(std::span<const MemorySpan> spans, Access access,
                                  std::vector<RegionId>& made) {
  std::vector<MemoryRegistry::Made> ready;
  for (const MemorySpan& span : spans) {
    ready.push_back(runtime_.memory.Make(span, access, runtime_.backends));
  }
  absl::Status status = CallFor<absl::Status>([&] {
    absl::Status added;
    for (MemoryRegistry::Made& one : std::exchange(ready, {})) {
      if (!added.ok()) {
        runtime_.memory.Drop(std::move(one));
        continue;
      }
      auto region = runtime_.memory.Add(std::move(one), runtime_.backends, {});
      added = region.status();
      if (region.ok()) made.push_back(*region);
    }
    return added;
  });
  runtime_.memory.Discard(std::move(ready));
  return status;
}

// The staging memory is registered before the first region that may need it. So a peer that knows
// such a region also knows the staging memory.
absl::Status Engine::RegisterCuda(const MemorySpan& span, Access access,
                                  std::vector<RegionId>& made) {
  auto device = cuda::Examine(span);
  if (!device.ok()) return device.status();
  const auto driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  if (auto status = cuda::SetSyncMemops(**driver, *device); !status.ok()) return status;
  MemoryRegistry::Staging staging{.possible = runtime_.staging.Open(span.device_id)};
  std::vector<MemoryRegistry::Made> ready;
  ready.push_back(runtime_.memory.Make(span, access, runtime_.backends));
  // Checked again in the command, because two threads may register at the same time.
  if (staging.possible.ok() && !staging_registered_) {
    ready.push_back(
        runtime_.memory.Make(runtime_.staging.span(), Access::kReadWrite, runtime_.backends));
  }
  absl::Status status = CallFor<absl::Status>([&] {
    std::vector<MemoryRegistry::Made> mine = std::exchange(ready, {});
    if (mine.size() > 1 && staging_registered_) {
      runtime_.memory.Drop(std::move(mine.back()));
    } else if (mine.size() > 1) {
      const auto registered =
          runtime_.memory.Add(std::move(mine.back()), runtime_.backends, {.is_staging = true});
      staging.possible = registered.status();
      staging_registered_ = registered.ok();
      if (registered.ok()) {
        runtime_.memory.Publish(std::span(&*registered, 1));
        ++runtime_.revision;
      }
    }
    auto region = runtime_.memory.Add(std::move(mine.front()), runtime_.backends, staging);
    if (!region.ok()) return region.status();
    runtime_.staging.AddRegion(*region, *std::move(device));
    made.push_back(*region);
    return absl::OkStatus();
  });
  runtime_.memory.Discard(std::move(ready));
  return status;
}

absl::Status Engine::DeregisterMemory(std::span<const RegionId> regions, Duration timeout,
                                      std::vector<RegionId>* in_use) {
  if (auto status = RefuseInCallback("DeregisterMemory"); !status.ok()) return status;
  const Time deadline = After(timeout);
  using Left = Deregistrations::Left;
  auto begun = CallFor<absl::StatusOr<Left>>([&] { return deregistrations_.Begin(regions); });
  if (!begun.ok()) return begun.status();
  const Left left = *std::move(begun);
  const auto done = [&] { return left->load(std::memory_order_acquire) == 0; };
  auto waited = WaitFor(left.get(), done, deadline);
  if (!waited.ok()) return waited.status();
  if (*waited) return absl::OkStatus();
  std::string pending;
  std::vector<RegionId> stay;
  // Regions that are free and only wait for their turn in Advance are not in use: let it forget
  // them before the rest is reported.
  for (bool more = true; more;) {
    const absl::Status status = Call([&] {
      deregistrations_.Advance();
      more = deregistrations_.due();
      if (more) return;
      stay = deregistrations_.Leave(regions);
      if (!stay.empty()) pending = deregistrations_.Pending(stay[0]);
    });
    if (done()) return absl::OkStatus();
    if (!status.ok()) return status;
  }
  const absl::Status status = TimedOutError(absl::StrCat(
      "region ", static_cast<uint32_t>(stay[0]), " is still in use by ", pending,
      stay.size() == 1 ? "" : absl::StrCat(" (and ", stay.size() - 1, " more of the call are)"),
      "; it stays registered and its memory must not be freed: call again"));
  if (in_use != nullptr) *in_use = std::move(stay);
  return status;
}

absl::StatusOr<QuiesceResult> Engine::Quiesce(const QuiesceScope& scope, Duration timeout) {
  if (auto status = RefuseInCallback("Quiesce"); !status.ok()) return status;
  const Time deadline = After(timeout);
  const auto question =
      CallFor<absl::StatusOr<QuestionBook::Question>>([&] { return inbound_.StartQuiesce(scope); });
  if (!question.ok()) return question.status();
  const auto quiet = [&] { return question->quiet->load(std::memory_order_acquire); };
  auto waited = WaitFor(question->quiet.get(), quiet, deadline);
  if (!waited.ok()) return waited.status();
  QuiesceResult result{.quiet = quiet(), .token = QuiesceToken{question->token}};
  const absl::Status status = Call([&] {
    result.quiet = inbound_.questions().IsQuiet(question->token).value_or(false);
    if (!result.quiet) result.pending = inbound_.Pending(question->token);
  });
  if (!status.ok()) return status;
  if (result.quiet) result.token = QuiesceToken::kNone;
  return result;
}

absl::StatusOr<bool> Engine::IsQuiet(QuiesceToken token) {
  return CallFor<absl::StatusOr<bool>>(
      [&] { return inbound_.questions().IsQuiet(static_cast<uint64_t>(token)); });
}

}  // namespace kvxfer
