// Quiesce: asks the initiators whether late bytes can still be written to this agent's memory, and
// waits for their answers. And Drain, the orderly end of a worker, which ends with that question:
// the agent accepts no new work and completes what it has accepted.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_ENGINE_QUIET_SERVICE_H_
#define KVXFER_AGENT_ENGINE_QUIET_SERVICE_H_

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/peer_views.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/inbound.h"
#include "src/agent/session/question_book.h"

namespace kvxfer {

class QuietService {
 public:
  // All of them outlive it.
  struct Parts {
    const Runtime* runtime = nullptr;
    CallGate* gate = nullptr;
    const PeerViews* views = nullptr;
    InboundHub* inbound = nullptr;
  };
  explicit QuietService(const Parts& parts) : parts_(parts) {}

  // See Agent.
  absl::StatusOr<QuiesceResult> Quiesce(const QuiesceScope& scope, Duration timeout);
  absl::StatusOr<bool> IsQuiet(QuiesceToken token);
  absl::Status Drain(Duration timeout);

 private:
  absl::Status DrainOwn(Time deadline);
  absl::Status DrainInbound(Time deadline);
  // Text for people: what DrainOwn still waits for. Empty: nothing.
  absl::StatusOr<std::string> LeftOfOwn();
  absl::StatusOr<QuestionBook::Question> AskToDrain();
  absl::Status Late(std::string_view left) const;

  const Parts parts_;
  std::optional<QuestionBook::Question> drain_question_;  // used by the driver
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_QUIET_SERVICE_H_
