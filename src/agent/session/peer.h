// One peer as an initiator sees it: the connections to it and the transfers to it. It is one half
// of the session with the peer's incarnation, which outlives connections; the session ends with
// that incarnation, with RemovePeer, or when the peer no longer knows it.
//
// The class passes what happens on to its parts, and carries out what they say follows: which link
// there is (PathSet) and how it is kept (LinkKeeper), what the peer's memory is (RemoteRegions),
// what the session is and how its frames go (SharedSession), what becomes of transfers
// (SendTracker) and what they do (TransferSet).
//
// Thread-safety: none; owned by the engine. Split by event: peer.cc (rounds, time, closing),
// peer_links.cc (events of links, connecting, loss), peer_session.cc (hello, refusal, reset),
// peer_control.cc (messages).

#ifndef KVXFER_AGENT_SESSION_PEER_H_
#define KVXFER_AGENT_SESSION_PEER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/peer.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/session/inbound.h"
#include "src/agent/session/link.h"
#include "src/agent/session/link_keeper.h"
#include "src/agent/session/path_set.h"
#include "src/agent/session/remote_regions.h"
#include "src/agent/session/shared_session.h"
#include "src/agent/session/transfer_set.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/send_tracker.h"

namespace kvxfer {

// What the API threads need to plan a transfer to a peer. Immutable but for `queued`.
struct PeerView {
  std::string name{};
  Incarnation incarnation{};
  std::shared_ptr<const RegionTable> regions{};
  std::shared_ptr<const KvCacheTable> kv_caches{};
  std::shared_ptr<std::atomic<uint32_t>> queued{};  // posted and not ended
};

class Peer : private PathSet::User,
             private InitiatorHalf,
             private ReadyList::Member::User,
             private TimerHeap::Timer::User {
 public:
  // Both outlive it. `sessions` has the session with its incarnation.
  Peer(Runtime* runtime, InboundHub* sessions, AgentMetadata metadata);
  ~Peer() override;

  const AgentMetadata& metadata() const { return metadata_; }
  // Newer metadata of the same incarnation.
  void Update(AgentMetadata metadata);
  std::shared_ptr<const PeerView> view() const { return view_; }

  void Submit(TransferPtr record);
  // The transfer `id` of this agent, if this peer has it and it has not ended.
  void Cancel(uint64_t id, const absl::Status& why);
  // Ends every transfer as `state`, and closes every connection once the target has said that it
  // lets go of them, or `within` from now. Passes go on; call Finished until true.
  void Close(TransferState state, const absl::Status& why, Duration within);
  bool Finished() const { return paths_.links() == 0 && !transfers_.copies(); }
  // Takes over the quarantines of `before`, which knew the same incarnation and is finished.
  void Inherit(const Peer& before);

  // The incarnation is proven dead: nothing of its transfers can land any more.
  void OnDeath(const absl::Status& why);

  const PathSet& paths() const { return paths_; }

 private:
  // peer_links.cc
  void OnLinkEvent(Link& link, Event& event) override;
  bool MayConnect() const override;
  bool PeerIsConnected() const override { return shared_.PeerDialled(); }
  bool MaySpeak() const override { return shared_.linked(); }
  void OnDown(Link& link, const absl::Status& why);
  void FinishClosing(Time now);
  // ReadyList::Member::User: sends what can be sent.
  void Pump(Time now) override;
  // For what nothing announces: it is looked at in each pass.
  bool Waits() const;
  void OnTimer(Time now) override;
  Time NextTimer() const;
  void OnMetadata();
  void KeepAlive(Time now);

  // peer_session.cc
  void OnConnected(Link& link);
  void OnProving(Link& link, std::span<const std::byte> message);
  void OnHelloAck(Link& link, const Envelope& envelope);
  void OnRefuse(Link& link, const Envelope& envelope);
  void OnRegions(Link& link, const Envelope& envelope);
  void GoUp(Link& link);
  void CheckDeath(const absl::Status& why);
  void EndSession(const absl::Status& why, Ends which);
  // InitiatorHalf.
  void Mark() override { ready_.Mark(); }
  bool Awaits() const override { return transfers_.waits() || transfers_.queued(); }
  absl::Status OnFrame(const ReliableChannel::Incoming& frame) override {
    return transfers_.OnNumbered(frame);
  }
  void OnFramesTaken() override { transfers_.Settle(); }
  void OnSessionEnd(const absl::Status& why, Ends which) override;
  void OnSessionRenewed() override;

  // peer_control.cc
  void OnMessage(Link& link, std::span<const std::byte> message);
  void OnInSession(Link& link, const Envelope& envelope);
  void KeepEarly(Link& link, std::span<const std::byte> message);
  void TakeEarly(Link& link);
  void ProtocolError(Link& link, const absl::Status& why);

  Runtime* const runtime_;
  InboundHub* const sessions_;
  ReadyList::Member ready_;
  TimerHeap::Timer timer_;
  AgentMetadata metadata_;
  RemoteRegions regions_;
  PathSet paths_;
  SharedSession& shared_;
  Session& session_;  // of shared_
  SendTracker tracker_;
  TransferSet transfers_;
  LinkKeeper keeper_;
  std::shared_ptr<const PeerView> view_;
  bool closing_ = false;
  Time close_by_{};
  TransferState close_state_ = TransferState::kActive;
  absl::Status close_why_{};
  Time death_asked_{};
  Time pumped_{};  // timers up to then have been seen to
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_PEER_H_
