// What the application asks about peers.
//
// Thread-safety: all methods from any thread.

#ifndef KVXFER_AGENT_ENGINE_PEER_SERVICE_H_
#define KVXFER_AGENT_ENGINE_PEER_SERVICE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/peer.h"
#include "src/agent/engine/call_gate.h"
#include "src/agent/engine/peer_table.h"
#include "src/agent/engine/peer_views.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/inbound.h"

namespace kvxfer {

class PeerService {
 public:
  // All of them outlive it.
  struct Parts {
    const Runtime* runtime = nullptr;
    const CallGate* gate = nullptr;
    PeerTable* table = nullptr;
    const PeerViews* views = nullptr;
    InboundHub* inbound = nullptr;
  };
  explicit PeerService(const Parts& parts) : parts_(parts) {}

  // See Agent.
  absl::StatusOr<std::string> Add(std::string_view metadata_bytes);
  absl::Status Remove(std::string_view peer);
  absl::StatusOr<Explanation> Explain(std::string_view peer);
  absl::StatusOr<std::vector<PeerRegion>> Regions(std::string_view peer) const;

 private:
  const Parts parts_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_PEER_SERVICE_H_
