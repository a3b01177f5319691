#include "src/agent/engine/event_service.h"

#include "src/core/base/strings.h"

namespace kvxfer {

// Sessions tell credit when they are visited. The application's thread requests that.
EventService::EventService(Runtime* runtime, const CallGate* gate)
    : runtime_(runtime), gate_(gate), pace_(runtime->options) {
  runtime_->events.set_on_drained([this](const Credit& credit) {
    returned_.Add(credit.account);
    if (pace_.OnDrained(credit.bytes)) runtime_->loop.Submit([this] { MarkReturned(); });
  });
}

void EventService::MarkReturned() {
  for (const auto& account : returned_.Take()) {
    if (account->ready != nullptr) account->ready->Mark();
  }
}

size_t EventService::Poll(std::span<AgentEvent> events, AgentEventKinds kinds) {
  if (gate_->InForkedChild()) return 0;
  if (!runtime_->events.Has(kinds)) runtime_->loop.Progress();
  return runtime_->events.Poll(events, kinds);
}

absl::StatusOr<size_t> EventService::Wait(std::span<AgentEvent> events, Duration timeout,
                                          AgentEventKinds kinds) {
  if (events.empty() || kinds == AgentEventKinds::kNone) {
    return absl::InvalidArgumentError(
        "WaitEvents needs room for an event, and a kind of event to wait for");
  }
  const Time deadline = After(timeout);
  // Who waits for notifications usually answers them.
  const bool answers = (kinds & AgentEventKinds::kNotification) != AgentEventKinds::kNone;
  for (;;) {
    const auto waited = gate_->WaitFor(
        &runtime_->events, [&] { return runtime_->events.Has(kinds); }, deadline, answers);
    if (!waited.ok()) return waited.status();
    // None if another thread has taken them meanwhile: wait again.
    if (const size_t count = runtime_->events.Poll(events, kinds); count > 0) return count;
    if (Now() >= deadline) return TimedOutError("no event within the time-out");
  }
}

absl::StatusOr<int> EventService::Fd(AgentEventKinds kinds) {
  if (auto status = gate_->CheckNotForked(); !status.ok()) return status;
  return runtime_->events.Fd(kinds);
}

}  // namespace kvxfer
