// The peers of an agent: those that the application has added, and those that it has removed or
// replaced whose connections are closing.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_ENGINE_PEER_TABLE_H_
#define KVXFER_AGENT_ENGINE_PEER_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "src/agent/engine/peer_views.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/inbound.h"
#include "src/agent/session/peer.h"
#include "src/core/base/name_map.h"
#include "src/core/protocol/metadata.h"

namespace kvxfer {

class PeerTable {
 public:
  // All outlive the table. `sessions` has the session with each peer; `views` gets a view of it.
  PeerTable(Runtime* runtime, InboundHub* sessions, PeerViews* views)
      : runtime_(runtime), sessions_(sessions), views_(views) {}

  // Adds a peer, or takes newer metadata of one. If the name belonged to another incarnation, that
  // one is replaced. FailedPrecondition, Unavailable: see PathSet::CheckReachable and CheckCarrier.
  absl::Status Install(AgentMetadata metadata);
  // Its transfers end as cancelled. False: there is no such peer.
  bool Remove(std::string_view name, const absl::Status& why);
  // Null: there is none.
  Peer* Find(std::string_view name);

  // Cancels a transfer, or each member of a group.
  void Cancel(const internal::TransferRecord& transfer, const absl::Status& why);

  // Has the peers that have something to do send what can be sent.
  void Pump(Time now);
  // Forgets the peers whose connections have closed.
  void Sweep();

  // Ends every transfer as cancelled, and closes every connection `within` from now. Pump goes on
  // until Finished.
  void Close(const absl::Status& why, Duration within);
  bool closed() const { return closed_; }
  bool Finished() const;

 private:
  void Update(Peer& peer, AgentMetadata metadata);
  void Replace(Peer& old, const Peer& by);
  bool CancelBrokenGroups();

  Runtime* const runtime_;
  InboundHub* const sessions_;
  PeerViews* const views_;
  NameMap<std::unique_ptr<Peer>> peers_;
  // Removed or replaced peers whose connections are closing.
  std::vector<std::unique_ptr<Peer>> leaving_;
  bool closed_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_PEER_TABLE_H_
