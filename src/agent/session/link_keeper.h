// Keeps the links to one peer: gives up one that does not become up, and sees to rails that fail
// alone and come back. docs/architecture.md, "A rail fails", says in which order.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_LINK_KEEPER_H_
#define KVXFER_AGENT_SESSION_LINK_KEEPER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/link.h"
#include "src/agent/session/path_set.h"
#include "src/core/base/clock.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/send_tracker.h"
#include "src/core/protocol/session.h"

namespace kvxfer {

class LinkKeeper {
 public:
  // All of them outlive it.
  struct Parts {
    Runtime* runtime = nullptr;
    const AgentMetadata* peer = nullptr;
    PathSet* paths = nullptr;
    const Session* session = nullptr;
    SendTracker* tracker = nullptr;
  };
  explicit LinkKeeper(const Parts& parts) : parts_(parts) {}

  void OnRailDown(Link& link, uint32_t rail, const absl::Status& why);
  // True: it was not up.
  bool OnRailUp(Link& link, uint32_t rail);
  // The target's answer to a fence. An error: it broke the protocol.
  absl::Status OnRailFenced(Link& link, const RailFrame& frame);
  // Asks the target for the fences that are due. False: a connection has no room for it yet.
  bool SendFences();
  // Rails whose time is over.
  void OnRailTimer(Time now);
  // Links that take too long to become up.
  void OnConnectTimer(Time now);

 private:
  const Parts parts_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_LINK_KEEPER_H_
