#include "src/agent/engine/quiet_service.h"

#include <algorithm>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// How often Drain checks whether anything is left.
constexpr Duration kLookAgain = std::chrono::milliseconds(2);

using Question = QuestionBook::Question;

}  // namespace

absl::StatusOr<QuiesceResult> QuietService::Quiesce(const QuiesceScope& scope, Duration timeout) {
  if (auto status = CallGate::RefuseInCallback("Quiesce"); !status.ok()) return status;
  InboundHub& inbound = *parts_.inbound;
  const Time deadline = After(timeout);
  const auto question =
      parts_.gate->CallFor<absl::StatusOr<Question>>([&] { return inbound.StartQuiesce(scope); });
  if (!question.ok()) return question.status();
  const auto quiet = [&] { return question->quiet->load(std::memory_order_acquire); };
  auto waited = parts_.gate->WaitFor(question->quiet.get(), quiet, deadline);
  if (!waited.ok()) return waited.status();
  QuiesceResult result{.quiet = quiet(), .token = QuiesceToken{question->token}};
  const absl::Status status = parts_.gate->Call([&] {
    result.quiet = inbound.questions().IsQuiet(question->token).value_or(false);
    if (!result.quiet) result.pending = inbound.Pending(question->token);
  });
  if (!status.ok()) return status;
  if (result.quiet) result.token = QuiesceToken::kNone;
  return result;
}

absl::StatusOr<bool> QuietService::IsQuiet(QuiesceToken token) {
  return parts_.gate->CallFor<absl::StatusOr<bool>>(
      [&] { return parts_.inbound->questions().IsQuiet(static_cast<uint64_t>(token)); });
}

absl::Status QuietService::Drain(Duration timeout) {
  if (auto status = parts_.gate->CheckNotForked(); !status.ok()) return status;
  if (auto status = CallGate::RefuseInCallback("Drain"); !status.ok()) return status;
  const Time deadline = After(timeout);
  // On the driver: commands that were accepted earlier run before this one, and their transfers are
  // kept.
  absl::Status status = parts_.gate->Call([this] { parts_.gate->StopWork(); });
  if (status.ok()) status = DrainOwn(deadline);
  if (status.ok()) status = DrainInbound(deadline);
  return status;
}

// Waits until this agent's transfers have ended, and its leases.
absl::Status QuietService::DrainOwn(Time deadline) {
  for (;;) {
    const auto left = LeftOfOwn();
    if (!left.ok()) return left.status();
    if (left->empty()) return absl::OkStatus();
    if (Now() >= deadline) return Late(*left);
    auto waited = parts_.gate->WaitFor(
        this, [] { return false; }, std::min(deadline, Now() + kLookAgain));
    if (!waited.ok()) return waited.status();
  }
}

// Counts leases first, and on the driver: this runs as a command, so every transfer that was
// enlisted before draining began is in `queued` afterwards. A peer's fetch under a lease is not a
// transfer of this agent, so the lease stands for it.
absl::StatusOr<std::string> QuietService::LeftOfOwn() {
  KvCounts counts;
  auto status = parts_.gate->Call([&] { parts_.runtime->leases.Count(counts); });
  if (!status.ok()) return status;
  const uint64_t held = counts.leases_granted - counts.leases_consumed - counts.leases_released -
                        counts.leases_expired;
  if (held > 0) return absl::StrCat(held, " KV leases that are not fetched");
  const PeerViews::Queued queued = parts_.views->CountQueued();
  if (queued.transfers == 0) return "";
  return absl::StrCat(queued.transfers, " transfers to ", queued.peers);
}

// Waits until no peer's write can come any more.
absl::Status QuietService::DrainInbound(Time deadline) {
  const auto question =
      parts_.gate->CallFor<absl::StatusOr<Question>>([&] { return AskToDrain(); });
  if (!question.ok()) return question.status();
  const auto quiet = [&] { return question->quiet->load(std::memory_order_acquire); };
  auto waited = parts_.gate->WaitFor(question->quiet.get(), quiet, deadline);
  if (!waited.ok()) return waited.status();
  bool over = false;
  std::string pending;
  absl::Status asked = parts_.gate->Call([&] {
    over = quiet();
    if (over) {
      (void)parts_.inbound->questions().IsQuiet(question->token);  // forgets the question
      drain_question_.reset();
    } else {
      pending = parts_.inbound->Pending(question->token);
    }
  });
  if (!asked.ok()) return asked;
  return over ? absl::OkStatus() : Late(absl::StrCat("writes of ", pending));
}

// All calls share one question. It covers what peers had begun when the first call asked it.
absl::StatusOr<Question> QuietService::AskToDrain() {
  if (!drain_question_.has_value()) {
    auto started = parts_.inbound->StartQuiesce({});
    if (!started.ok()) return started.status();
    drain_question_ = *std::move(started);
  }
  return *drain_question_;
}

absl::Status QuietService::Late(std::string_view left) const {
  return TimedOutError(absl::StrCat("agent ", parts_.runtime->options.name,
                                    " is not drained yet: ", ToAbsl(left),
                                    "; it takes no new work: call again, or destroy it"));
}

}  // namespace kvxfer
