// One peer as an initiator sees it: the connections to it, the session with its incarnation, and
// every transfer posted to it from queue to end.
//
// A session is one order of notifications and one numbered control channel. It outlives
// connections; it ends with the peer's incarnation, with RemovePeer, or when the target no longer
// knows it.
//
// Its parts are classes of their own: what becomes of a transfer (SendTracker), which link it takes
// (PathSet), what the peer's memory is (RemoteRegions), which rails are up (RailFences, of each
// link).
//
// Thread-safety: none; owned by the engine. Split by event: peer_links.cc (keeping connections
// alive, loss), peer_session.cc (hello, refusal, reset), peer_send.cc (from queue to OPEN),
// peer_rails.cc (rails that fail and come back), peer_control.cc (what the target says),
// peer_end.cc (completions, aborts, ends, quiet).

#ifndef KVXFER_AGENT_SESSION_PEER_H_
#define KVXFER_AGENT_SESSION_PEER_H_

#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kvxfer/peer.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/engine/transfer_record.h"
#include "src/agent/session/asked_book.h"
#include "src/agent/session/link.h"
#include "src/agent/session/path_set.h"
#include "src/agent/session/remote_regions.h"
#include "src/agent/session/send_queue.h"
#include "src/agent/staging/stager.h"
#include "src/core/plan/slice_walk.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/send_tracker.h"
#include "src/core/protocol/session.h"

namespace kvxfer {

// What the API threads need to plan a transfer to a peer. Immutable but for `queued`.
struct PeerView {
  std::string name{};
  Incarnation incarnation{};
  std::shared_ptr<const RegionTable> regions{};
  std::shared_ptr<const KvCacheTable> kv_caches{};
  std::shared_ptr<std::atomic<uint32_t>> queued{};  // posted and not ended
};

// One transfer that has left the queue: how its bytes go. What became of it is in SendTracker.
struct Outbound {
  // Of each rail, for what `local` and `remote` hold; see Endpoint::rail_distance.
  struct Distances {
    const Registration* local = nullptr;
    const RemoteKey* remote = nullptr;
    absl::InlinedVector<uint32_t, 4> of_rails{};
  };

  TransferPtr record;
  SendTracker::Transfer* sending = nullptr;  // whose context this is
  std::list<Outbound>::iterator self{};
  Link* link = nullptr;  // carries the data; null once that is done or lost
  BlockView blocks{};    // of record->blocks; ops that are in flight point to it
  SliceWalk walk;
  SliceLimits limits;
  absl::InlinedVector<const Registration*, 4> registrations{};  // by index in record->local
  absl::InlinedVector<const RemoteKey*, 4> keys{};              // by index in record->remote
  uint64_t prepared = 0;    // the op of the prepared slice; 0: none
  uint32_t home = kNoRail;  // a transfer that is too small to be striped stays on one rail
  Distances distances{};
  Time first_post{};                // zero: no byte of it was sent
  bool alone = false;               // small, and nothing was on its way when it began
  bool staged = false;              // its ops go to the stager
  bool holds_layer_stream = false;  // of its record
  // It has ended, and its regions are in use until the last op is over.
  bool moving() const { return sending->ended() && sending->ops() > 0; }
};

class Peer : private PathSet::User {
 public:
  Peer(Runtime* runtime, AgentMetadata metadata);
  ~Peer() override;

  const AgentMetadata& metadata() const { return metadata_; }
  // Newer metadata of the same incarnation.
  void Update(AgentMetadata metadata);
  std::shared_ptr<const PeerView> view() const { return view_; }

  // Whether `session` is the present one, with this incarnation.
  bool Knows(const Incarnation& incarnation, uint64_t session) const {
    return session == session_.number() && incarnation == metadata_.incarnation;
  }
  // What the target says in the present session over a connection of its own.
  absl::Status OnPiggybacked(std::span<const std::byte> message);
  // One that took along what this agent said in the present session is lost.
  void PiggybackLinkLost() { session_.channel().Rewind(); }

  void Submit(TransferPtr record);
  // The transfer `id` of this agent, if this peer has it and it has not ended.
  void Cancel(uint64_t id, const absl::Status& why);
  // Ends every transfer as `state`, and closes every connection once the target has said that it
  // lets go of them, or `within` from now. Pump goes on; call Finished until true.
  void Close(TransferState state, const absl::Status& why, Duration within);
  bool Finished() const { return paths_.links() == 0 && !stager_.moving(); }
  // Takes over the quarantines of `before`, which knew the same incarnation and is finished.
  void Inherit(const Peer& before);

  // The incarnation is proven dead: nothing of its transfers can land any more.
  void OnDeath(const absl::Status& why);

  // Sends what can be sent.
  void Pump(Time now);
  void OnTimer(Time now);
  Time NextTimer() const;

  Explanation Explain() const { return paths_.Explain(Now()); }
  // OK when one of `backends` could reach it (all: empty).
  absl::Status CheckReachable(const std::vector<std::string>& backends) const {
    return paths_.CheckReachable(backends);
  }

 private:
  friend class Stager;

  // peer_links.cc
  void OnLinkEvent(Link& link, Event& event) override;
  void OnFirstLink() override;
  bool PeerIsConnected() const override {
    return runtime_->reverse_session->IsConnected(metadata_.incarnation);
  }
  void OnDown(Link& link, const absl::Status& why);
  void LoseData(Link& link, const absl::Status& why);
  void FinishClosing(Time now);
  void OnMetadata();
  void KeepAlive(Time now);
  void Heartbeat(Link& link, Time now);

  // peer_session.cc
  void OnConnected(Link& link);
  void OnProving(Link& link, std::span<const std::byte> message);
  void OnHelloAck(Link& link, const Envelope& envelope);
  void OnRefuse(Link& link, const Envelope& envelope);
  void OnRegions(Link& link, const Envelope& envelope);
  void GoUp(Link& link);
  void CheckDeath(const absl::Status& why);
  // What of the queue ends with it: all, or only what was posted before its last connection was
  // lost.
  enum class Ends : uint8_t { kAll, kPreceding };
  void ResetSession(const absl::Status& why, Ends which);
  void NewSession();
  bool SessionIsIdle() const;

  // peer_send.cc
  void Admit(Time now);
  absl::Status Begin(const TransferPtr& record, Link* link);
  absl::Status ResolveRegions(Outbound& outbound);
  std::optional<LaneBook> PrepareData(Outbound& outbound);
  absl::StatusOr<const RemoteKey*> KeyOf(Link& link, RegionId id);
  void DropDeadKeys();
  void DropKeys(std::span<const uint32_t> regions);
  void SendData(Time now);
  // False: it could not post anything now.
  bool TakeTurn(Outbound& outbound, Time now);
  bool HeldBack(Outbound& outbound);
  void StartSending(Outbound& outbound);
  void ReleaseLayerStream(Outbound& outbound);
  bool Prepare(Outbound& outbound);
  std::span<const uint32_t> DistancesFor(Outbound& outbound, const BlockRange& blocks);
  bool PostPrepared(Outbound& outbound);
  bool PostPreparedOn(Outbound& outbound, OpTable::Entry& entry, uint32_t rail,
                      const SendTracker::Offered& offered);
  void CloseLanes(Outbound& outbound);
  static bool PostOn(Outbound& outbound, const Op& op);
  bool SendPiggybacked(Link& link);
  void FlushControl();

  // peer_staging.cc
  bool CopiesItself(const Link& link) const;
  bool PostStaged(Outbound& outbound);
  absl::Status BeginChild(const TransferPtr& record, Link* link);
  void EndChild(uint64_t child, const absl::Status& why, Time give_up);
  void OnStaged(uint64_t op, const absl::Status& status);
  // What the stager has to say, and what follows from it.
  void TellStagedEnds();
  void ClearQuarantine(const TransferPtr& record, bool arrived);
  void OnSettled(const TransferPtr& record);
  const StagedMemory* StagedLocal(const internal::TransferRecord& record, uint32_t index) const;
  absl::StatusOr<const StagedKey*> StagedRemote(const RegionView& region);

  // peer_rails.cc
  void OnRailDown(Link& link, uint32_t rail, const absl::Status& why);
  void OnRailUp(Link& link, uint32_t rail);
  void OnRailFenced(Link& link, const Envelope& envelope);
  void SendRailFences();
  void RailTimers(Time now);

  // peer_control.cc
  void OnMessage(Link& link, std::span<const std::byte> message);
  void OnPiggyback(Link& link, std::span<const std::byte> body);
  absl::Status OnNumbered(const ReliableChannel::Incoming& frame);
  absl::Status OnKvAnswer(const KvAnswerFrame& frame);
  absl::Status OnLeaseAnswer(const LeaseAnswerFrame& frame);
  absl::Status OnQuiesce(const QuiesceFrame& frame);
  void AnswerQuiesce();
  void ProtocolError(Link& link, const absl::Status& why);
  absl::Status Broken(const absl::Status& why) const;

  // peer_end.cc
  void OnCompletion(Link& link, uint64_t op, const absl::Status& status);
  absl::Status OpFailed(const Outbound& outbound, const absl::Status& status) const;
  // Carries out what the tracker wants done. Called at the end of every event.
  void Settle();
  void Carry(const SendTracker::Action& action);
  void Stop(Outbound& outbound);
  void Publish(Outbound& outbound, const SendTracker::Action& end);
  void FailQueued(const TransferPtr& record, TransferState state, absl::Status status);
  void DropPrepared(Outbound& outbound);
  Outbound& NewOutbound();
  // Null: the transfer has not begun, or is forgotten.
  Outbound* Find(uint64_t id);
  static Outbound& OutboundOf(const SendTracker::Transfer& sending) {
    return *static_cast<Outbound*>(sending.context());
  }
  void Forget(Outbound& outbound);
  void Erase(Outbound& outbound);
  void NoneAsks(uint64_t id);
  void ClearQuarantines();
  std::string Stage(const Outbound& outbound) const;
  void ExpireQueued(const std::unordered_set<uint64_t>& ids);
  absl::Status DeadlineStatus(const internal::TransferRecord& record, std::string_view stage) const;

  Runtime* const runtime_;
  AgentMetadata metadata_;
  RemoteRegions regions_;
  std::shared_ptr<const PeerView> view_;
  PathSet paths_;
  bool closing_ = false;
  Time close_by_{};
  TransferState close_state_ = TransferState::kActive;
  absl::Status close_why_{};

  Session session_;
  Time death_asked_{};
  Time pumped_{};  // timers up to then have been seen to

  // Transfers.
  SendQueue queue_;
  bool layer_stream_moved_ = false;  // the next of a stream may begin
  SendTracker tracker_;
  std::vector<SendTracker::Action> actions_;  // that Settle carries out
  std::list<Outbound> active_;      // in the order in which they began; addresses last until Erase
  std::list<Outbound> spare_;       // at most kMaxSpare, so that steady state allocates nothing
  std::vector<Outbound*> sending_;  // have data to post; by priority, then posting
  std::set<std::pair<Time, uint64_t>> deadlines_;
  bool inline_data_ = false;  // posted, and waits for OPEN to go with it over the same connection
  bool waits_ready_ = false;  // a ready fence is not set yet
  cuda::PointPoll points_;    // what transfers wait for in CUDA streams
  bool waits_key_ = false;    // a region's key is not here yet
  Stager stager_;
  std::unordered_map<uint32_t, StagedKey> staged_keys_;  // by region
  // Transfers whose quiet was not learnt before their session ended.
  std::vector<TransferPtr> quarantined_;

  AskedBook asked_;  // Quiesce requests that wait for transfers
  // Those that wait for memory of the peer's only, which is not needed any more and still open.
  std::vector<uint64_t> waits_closed_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_PEER_H_
