// Engine::Drain, the orderly end of a worker: it accepts no new work and completes what it has
// accepted.
#include <algorithm>

#include "src/agent/engine/engine.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// How often Drain checks whether anything is left.
constexpr Duration kLookAgain = std::chrono::milliseconds(2);

}  // namespace

absl::Status Engine::CheckNotDraining() const {
  if (!draining_.load()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("agent ", runtime_.options.name, " is being drained: it takes no new work"));
}

// Counts leases first, and on the driver: CountKv runs as a command, so every transfer that was
// enlisted before draining began is in `queued` afterwards. A peer's fetch under a lease is not a
// transfer of this agent, so the lease stands for it.
absl::StatusOr<std::string> Engine::LeftToDrain() {
  const auto counts = CountKv();
  if (!counts.ok()) return counts.status();
  const uint64_t held = counts->leases_granted - counts->leases_consumed - counts->leases_released -
                        counts->leases_expired;
  if (held > 0) return absl::StrCat(held, " KV leases that are not fetched");
  uint64_t active = 0;
  std::string peers;
  std::lock_guard lock(views_mu_);
  for (const auto& [name, view] : views_) {
    const uint32_t queued = view->queued->load(std::memory_order_acquire);
    if (queued == 0) continue;
    active += queued;
    absl::StrAppend(&peers, peers.empty() ? "" : ", ", name);
  }
  if (active == 0) return "";
  return absl::StrCat(active, " transfers to ", peers);
}

absl::Status Engine::Drain(Duration timeout) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  if (auto status = RefuseInCallback("Drain"); !status.ok()) return status;
  const Time deadline = After(timeout);
  // On the driver: commands that were accepted earlier run before this one, and their transfers are
  // kept.
  if (auto status = Call([this] { draining_.store(true); }); !status.ok()) return status;
  const auto late = [this](std::string_view left) {
    return TimedOutError(absl::StrCat("agent ", runtime_.options.name,
                                      " is not drained yet: ", ToAbsl(left),
                                      "; it takes no new work: call again, or destroy it"));
  };
  for (;;) {
    const auto left = LeftToDrain();
    if (!left.ok()) return left.status();
    if (left->empty()) break;
    if (Now() >= deadline) return late(*left);
    auto waited = WaitFor(
        &draining_, [] { return false; }, std::min(deadline, Now() + kLookAgain));
    if (!waited.ok()) return waited.status();
  }
  // All calls share one question. It covers what peers had begun when the first call asked it.
  const auto question = CallFor<absl::StatusOr<QuestionBook::Question>>(
      [&]() -> absl::StatusOr<QuestionBook::Question> {
        if (!drain_question_.has_value()) {
          auto started = inbound_.StartQuiesce({});
          if (!started.ok()) return started.status();
          drain_question_ = *std::move(started);
        }
        return *drain_question_;
      });
  if (!question.ok()) return question.status();
  const auto quiet = [&] { return question->quiet->load(std::memory_order_acquire); };
  auto waited = WaitFor(question->quiet.get(), quiet, deadline);
  if (!waited.ok()) return waited.status();
  bool over = false;
  std::string pending;
  absl::Status asked = Call([&] {
    over = quiet();
    if (over) {
      (void)inbound_.questions().IsQuiet(question->token);  // forgets the question
      drain_question_.reset();
    } else {
      pending = inbound_.Pending(question->token);
    }
  });
  if (!asked.ok()) return asked;
  return over ? absl::OkStatus() : late(absl::StrCat("writes of ", pending));
}

}  // namespace kvxfer
