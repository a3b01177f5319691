// Engine: what the application asks the event queue for.
#include "src/agent/engine/engine.h"
#include "src/core/base/strings.h"

namespace kvxfer {

absl::Status Engine::NoPlaceForEnd() {
  return absl::ResourceExhaustedError(
      absl::StrCat(kMaxUnreadEnds,
                   " ends of transfers are asked for and not taken; call PollEvents more often"));
}

size_t Engine::PollEvents(std::span<AgentEvent> events, AgentEventKinds kinds) {
  if (InForkedChild()) return 0;
  if (!runtime_.events.Has(kinds)) runtime_.loop.Progress();
  return runtime_.events.Poll(events, kinds);
}

absl::StatusOr<size_t> Engine::WaitEvents(std::span<AgentEvent> events, Duration timeout,
                                          AgentEventKinds kinds) {
  if (events.empty() || kinds == AgentEventKinds::kNone) {
    return absl::InvalidArgumentError(
        "WaitEvents needs room for an event, and a kind of event to wait for");
  }
  const Time deadline = After(timeout);
  // Who waits for notifications usually answers them.
  const bool answers = (kinds & AgentEventKinds::kNotification) != AgentEventKinds::kNone;
  for (;;) {
    const auto waited = WaitFor(
        &runtime_.events, [&] { return runtime_.events.Has(kinds); }, deadline, answers);
    if (!waited.ok()) return waited.status();
    // None if another thread has taken them meanwhile: wait again.
    if (const size_t count = runtime_.events.Poll(events, kinds); count > 0) return count;
    if (Now() >= deadline) return TimedOutError("no event within the time-out");
  }
}

absl::StatusOr<int> Engine::EventFd(AgentEventKinds kinds) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  return runtime_.events.Fd(kinds);
}

absl::Status Engine::Watch(const TransferPtr& record, uint64_t user_word) {
  if (auto status = fork_guard_.Check(); !status.ok()) return status;
  EventQueue& events = runtime_.events;
  if (!events.ReserveEnd(EndLane::kWatched)) return NoPlaceForEnd();
  switch (record->AskEnd(EndLane::kWatched, user_word)) {
    case internal::TransferRecord::Asked::kFirst:
      break;
    case internal::TransferRecord::Asked::kAgain:
      events.ReturnPlace(EndLane::kWatched);
      break;
    case internal::TransferRecord::Asked::kEnded:
      events.PushEnd(record, EndLane::kWatched, user_word);
      break;
  }
  return absl::OkStatus();
}

}  // namespace kvxfer
