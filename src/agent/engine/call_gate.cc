#include "src/agent/engine/call_gate.h"

#include "src/agent/engine/dispatcher.h"
#include "src/agent/engine/presence.h"
#include "src/core/base/strings.h"

namespace kvxfer {

absl::Status CallGate::RefuseInCallback(std::string_view what) {
  if (!Dispatcher::InCallback()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      ToAbsl(what), " inside a callback is refused: it would stop every other callback"));
}

absl::Status CallGate::ClosedError() {
  return absl::FailedPreconditionError("the agent is closed");
}

absl::Status CallGate::CheckTakesWork() const {
  if (!stopped_work_.load()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("agent ", agent_, " is being drained: it takes no new work"));
}

absl::Status CallGate::Call(absl::FunctionRef<void()> command) const {
  if (auto status = CheckNotForked(); !status.ok()) return status;
  if (loop_->Call(command)) return absl::OkStatus();
  return ClosedError();
}

absl::StatusOr<bool> CallGate::WaitFor(const void* key, absl::FunctionRef<bool()> done,
                                       Time deadline, bool answers) const {
  if (auto status = CheckNotForked(); !status.ok()) return status;
  if (auto status = RefuseInCallback("waiting"); !status.ok()) return status;
  if (done()) return true;
  if (loop_->DriveUntil(key, done, deadline, answers)) return true;
  if (loop_->stopped()) return absl::CancelledError(kAgentClosed);
  return false;
}

}  // namespace kvxfer
