// The way of an application's thread to the driver. Refuses the calls that may not be made: of a
// forked child, inside a callback, new work while the agent is being drained. Runs commands on the
// driver, and waits.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_ENGINE_CALL_GATE_H_
#define KVXFER_AGENT_ENGINE_CALL_GATE_H_

#include <atomic>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/agent/engine/fork_guard.h"
#include "src/agent/engine/progress_loop.h"
#include "src/core/base/clock.h"

namespace kvxfer {

class CallGate {
 public:
  // `loop` outlives the gate. `agent`: its name, for errors.
  CallGate(ProgressLoop* loop, std::string agent) : loop_(loop), agent_(std::move(agent)) {}

  bool InForkedChild() const { return fork_guard_.InChild(); }
  absl::Status CheckNotForked() const { return fork_guard_.Check(); }
  // FailedPrecondition inside a callback, which must not call `what` because `what` may wait.
  static absl::Status RefuseInCallback(std::string_view what);
  static absl::Status ClosedError();

  // FailedPrecondition once StopWork was called.
  absl::Status CheckTakesWork() const;
  // From now on no new work is accepted. Called on the driver, so that commands of work that was
  // accepted have run before.
  void StopWork() { stopped_work_.store(true); }

  // Runs `command` on the driver. FailedPrecondition: the agent was closed, or this process was
  // forked.
  absl::Status Call(absl::FunctionRef<void()> command) const;
  // The same, and returns what the command returns: a Status or a StatusOr.
  template <typename Said>
  Said CallFor(absl::FunctionRef<Said()> command) const {
    Said said = absl::UnknownError("");
    absl::Status called = Call([&] { said = command(); });
    return called.ok() ? said : Said(std::move(called));
  }
  // Drives or parks until done(). False: `done` did not become true by `deadline`. Cancelled: the
  // agent was closed. Inside a callback it is always refused, even if `done` is true already:
  // otherwise the mistake would show only under load. `answers`: see ProgressLoop::DriveUntil.
  absl::StatusOr<bool> WaitFor(const void* key, absl::FunctionRef<bool()> done, Time deadline,
                               bool answers = false) const;

 private:
  ProgressLoop* const loop_;
  const std::string agent_;
  const ForkGuard fork_guard_{};
  std::atomic<bool> stopped_work_{false};  // never false again
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_CALL_GATE_H_
