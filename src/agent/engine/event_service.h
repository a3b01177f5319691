// What the application asks of the event queue; returns credit as the application takes
// notifications.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_ENGINE_EVENT_SERVICE_H_
#define KVXFER_AGENT_ENGINE_EVENT_SERVICE_H_

#include <cstddef>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "kvxfer/event.h"
#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/credit.h"
#include "src/agent/engine/credit_pace.h"
#include "src/agent/engine/runtime.h"

namespace kvxfer {

class EventService {
 public:
  // Both outlive it.
  EventService(Runtime* runtime, const CallGate* gate);

  // See Agent.
  size_t Poll(std::span<AgentEvent> events, AgentEventKinds kinds);
  absl::StatusOr<size_t> Wait(std::span<AgentEvent> events, Duration timeout,
                              AgentEventKinds kinds);
  absl::StatusOr<int> Fd(AgentEventKinds kinds);
  template <typename Callback>
  void SetCallback(Callback callback) {
    if (!gate_->InForkedChild()) runtime_->events.SetCallback(std::move(callback));
  }
  // One event of the one kind that `Kind` is.
  template <typename Kind>
  std::optional<Kind> PollOne(AgentEventKinds kind) {
    AgentEvent event;
    if (Poll(std::span(&event, 1), kind) == 0) return std::nullopt;
    return std::get<Kind>(std::move(event));
  }

 private:
  void MarkReturned();

  Runtime* const runtime_;
  const CallGate* const gate_;
  CreditPace pace_;
  ReturnedCredit returned_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_EVENT_SERVICE_H_
