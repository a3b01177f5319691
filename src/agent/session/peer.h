// One peer as an initiator sees it: the connections to it, the session with its incarnation, and
// every transfer posted to it from queue to end.
//
// A session is one order of notifications and one numbered control channel. It outlives
// connections; it ends with the peer's incarnation, with RemovePeer, or when the target no longer
// knows it.
//
// Its parts are classes of their own: which link a transfer takes (PathSet), what the peer's memory
// is (RemoteRegions), which rails are up (RailFences, of each link).
//
// Thread-safety: none; owned by the engine. Split by event: peer_links.cc (keeping connections
// alive, loss), peer_session.cc (hello, refusal, reset), peer_send.cc (from queue to OPEN),
// peer_rails.cc (rails that fail and come back), peer_control.cc (what the target says),
// peer_end.cc (completions, aborts, ends, quiet).

#ifndef KVXFER_AGENT_SESSION_PEER_H_
#define KVXFER_AGENT_SESSION_PEER_H_

#include <deque>
#include <map>
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
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/send_book.h"
#include "src/core/protocol/slot_pool.h"

namespace kvxfer {

// What the API threads need to plan a transfer to a peer. Immutable but for `queued`.
struct PeerView {
  std::string name{};
  Incarnation incarnation{};
  std::shared_ptr<const RegionTable> regions{};
  std::shared_ptr<const KvCacheTable> kv_caches{};
  std::shared_ptr<std::atomic<uint32_t>> queued{};  // posted and not ended
};

// One transfer that has left the queue.
struct Outbound {
  // An op that failed as those of a failing rail do. Without kRailDown the transfer fails.
  struct Unexplained {
    uint32_t rail = 0;
    absl::Status status{};
  };

  // Of each rail, for what `local` and `remote` hold; see Endpoint::rail_distance.
  struct Distances {
    const Registration* local = nullptr;
    const RemoteKey* remote = nullptr;
    absl::InlinedVector<uint32_t, 4> of_rails{};
  };

  TransferPtr record;
  uint64_t order = 0;
  Link* link = nullptr;  // carries the data; null once that is done or lost

  // Sending.
  BlockView blocks{};  // of record->blocks; ops that are in flight point to it
  SliceWalk walk;
  SliceLimits limits;
  SendBook book{};
  absl::InlinedVector<const Registration*, 4> registrations{};  // by index in record->local
  absl::InlinedVector<const RemoteKey*, 4> keys{};              // by index in record->remote
  uint64_t prepared = 0;    // op that waits to be accepted; 0: none
  SendBook::Slice slice{};  // what it carries
  uint32_t ops = 0;         // accepted, not completed
  uint64_t slices = 0;
  uint32_t home = kNoRail;  // a transfer that is too small to be striped stays on one rail
  Distances distances{};
  std::vector<Unexplained> unexplained{};
  Time first_post{};    // as long as it is 0, no byte of it was sent
  bool alone = false;   // small, and nothing was on its way when it began
  bool staged = false;  // its ops go to the stager
  bool all_posted = false;
  bool holds_layer_stream = false;  // of its record
  bool opened = false;
  bool arrived = false;
  // Of one under a lease: the owner is told before the first byte is read, and asked after the
  // last.
  enum class Fetch : uint8_t { kBeginning, kReading, kAsked, kHeld };
  std::optional<Fetch> fetch{};
  absl::Status refused{};  // the target took the bytes, and not what they are part of

  // Ending otherwise than done.
  bool ending = false;
  bool published = false;
  bool abort_due = false;   // an ABORT is on its way and not acknowledged
  bool orphan = false;      // its session ended before the target's word, and may land yet
  bool unreported = false;  // its session ended before the target's word
  TransferState end_state = TransferState::kActive;
  absl::Status end_status{};
  Time give_up{};  // publish then, quiet or not
  // Publish then though ops are in flight, which is what a GPU that stands still leaves. All others
  // end by themselves, and are waited for.
  Time copies_until = Time::max();
  // It was, and its regions are in use until the last op is over.
  bool moving() const { return published && ops > 0; }
};

class Peer : private PathSet::User {
 public:
  // A session without a connection is given up before the target sweeps it
  // (InboundHub::kSweepAfter), so that both never disagree on what was delivered.
  static constexpr Duration kAbandonAfter = std::chrono::seconds(30);

  Peer(Runtime* runtime, AgentMetadata metadata);
  ~Peer() override;

  const AgentMetadata& metadata() const { return metadata_; }
  // Newer metadata of the same incarnation.
  void Update(AgentMetadata metadata);
  std::shared_ptr<const PeerView> view() const { return view_; }

  // Whether `session` is the present one, with this incarnation.
  bool Knows(const Incarnation& incarnation, uint64_t session) const {
    return session == session_ && incarnation == metadata_.incarnation;
  }
  // What the target says in the present session over a connection of its own.
  absl::Status OnPiggybacked(std::span<const std::byte> message);
  // One that took along what this agent said in the present session is lost.
  void PiggybackLinkLost() { channel_.Rewind(); }

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
  void OnDown(Link& link, const absl::Status& why);
  void LoseData(Link& link, const absl::Status& why);
  // Of those that `which` picks, in the order of their ids: the end of one may erase it, and its
  // children, which come after it.
  static bool Any(const Outbound& outbound);
  void ForEachActive(absl::FunctionRef<bool(const Outbound&)> which,
                     absl::FunctionRef<void(Outbound&)> end);
  void FinishClosing(Time now);
  void OnMetadata();
  void KeepAlive(Time now);
  void Heartbeat(Link& link, Time now);

  // peer_session.cc
  void OnConnected(Link& link);
  void OnHelloAck(Link& link, const Envelope& envelope);
  void OnRefuse(Link& link, const Envelope& envelope);
  void OnRegions(Link& link, const Envelope& envelope);
  void GoUp(Link& link);
  void CheckDeath(const absl::Status& why);
  void ResetSession(const absl::Status& why, Time posted_until = Time::max());
  void NewSession();
  bool SessionIsIdle() const;

  // peer_send.cc
  void Admit(Time now);
  bool HasCredit(const TransferOptions& options) const;
  void ReturnCredit(const TransferOptions& options);
  absl::Status Begin(const TransferPtr& record, Link* link);
  absl::Status ResolveRegions(Outbound& outbound);
  absl::StatusOr<const RemoteKey*> KeyOf(Link& link, RegionId id);
  void DropDeadKeys();
  void DropKeys(std::span<const uint32_t> regions);
  void SendData(Time now);
  // kEnded: it failed, and is not in sending_ any more, perhaps nowhere.
  enum class Turn : uint8_t { kPosted, kFinished, kBlocked, kEnded };
  Turn TakeTurn(Outbound& outbound, Time now);
  std::optional<Turn> HeldBack(Outbound& outbound);
  void StartSending(Outbound& outbound);
  void ReleaseLayerStream(Outbound& outbound);
  bool Prepare(Outbound& outbound);
  std::span<const uint32_t> DistancesFor(Outbound& outbound, const BlockRange& blocks);
  bool PostPrepared(Outbound& outbound);
  bool PostPreparedOn(Outbound& outbound, OpTable::Entry& entry, uint32_t rail);
  bool CloseLanes(Outbound& outbound);
  void RequestSlots();
  bool PostOn(Outbound& outbound, const Op& op);
  void PushOpen(Outbound& outbound);
  void PushLeaseRead(const internal::TransferRecord& record);
  void PushFetchEnd(const internal::TransferRecord& record, uint32_t readers);
  void PushAmend(Outbound& outbound);
  bool SendPiggybacked(Link& link);
  void FlushControl();

  // peer_staging.cc
  bool CopiesItself(const Link& link) const;
  bool PostStaged(Outbound& outbound);
  absl::Status BeginChild(const TransferPtr& record, Link* link);
  void EndChild(uint64_t child, const absl::Status& why, Time give_up);
  void OnStaged(uint64_t op, const absl::Status& status);
  void ClearQuarantine(const TransferPtr& record, bool arrived);
  void OnSettled(const TransferPtr& record);
  const StagedMemory* StagedLocal(const internal::TransferRecord& record, uint32_t index) const;
  absl::StatusOr<const StagedKey*> StagedRemote(const RegionView& region);

  // peer_rails.cc
  void OnRailDown(Link& link, uint32_t rail, const absl::Status& why);
  void OnRailUp(Link& link, uint32_t rail);
  void OnRailFenced(Link& link, const Envelope& envelope);
  void SendRailFences();
  void DiscardLanes(Outbound& outbound, uint32_t rail);
  absl::Status OnDiscarded(const DiscardAck& ack);
  void OnFreed(SlotRef slot);
  bool AwaitRailDown(Outbound& outbound, const OpTable::Entry& op, const absl::Status& status);
  void RailTimers(Time now);
  void ClearSuspicion(Link& link, uint32_t rail);

  // peer_control.cc
  void OnMessage(Link& link, std::span<const std::byte> message);
  void OnPiggyback(Link& link, std::span<const std::byte> body);
  absl::Status TakeNumbered(const Envelope& envelope);
  absl::Status TakeOneOfTwo(std::span<const std::byte> message);  // of a piggyback frame
  absl::Status OnNumbered(const ReliableChannel::Incoming& frame);
  absl::Status OnReleased(const ReleasedFrame& frame);
  absl::Status OnKvAnswer(const KvAnswerFrame& frame);
  absl::Status OnLeaseAnswer(const LeaseAnswerFrame& frame);
  absl::Status OnQuiesce(const QuiesceFrame& frame);
  void AnswerQuiesce();
  void ProtocolError(Link& link, const absl::Status& why);
  absl::Status Broken(const absl::Status& why) const;

  // peer_end.cc
  void OnCompletion(Link& link, uint64_t op, const absl::Status& status);
  absl::Status OpFailed(const Outbound& outbound, const absl::Status& status) const;
  void Advance(Outbound& outbound);
  void OnNoOps(Outbound& outbound);
  bool FetchHeld(Outbound& outbound);
  void BeginEnd(Outbound& outbound, TransferState state, absl::Status why, Time give_up);
  void EndSoon(Outbound& outbound, TransferState state, absl::Status why);
  static Time EndsBy(const Outbound& outbound);
  void AdvanceEnd(Outbound& outbound, Time now);
  void Publish(Outbound& outbound, TransferState state, absl::Status status, Delivery delivery,
               bool quarantined);
  void FailQueued(const TransferPtr& record, TransferState state, absl::Status status);
  void DropPrepared(Outbound& outbound);
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
  absl::Status close_why_{};

  // Session.
  uint64_t session_ = 0;
  bool session_known_ = false;  // the target has answered a hello of it
  uint16_t version_ = 0;        // of the protocol; all connections of a session agree on the same
  ReliableChannel channel_;
  SlotPool slots_;
  bool slots_requested_ = false;
  uint64_t last_order_ = 0;
  CreditFrame credit_;  // granted, totals
  CreditFrame credit_used_;
  Time unlinked_{};  // since when no link is up
  Time death_asked_{};
  Time pumped_{};  // timers up to then have been seen to

  // Transfers.
  SendQueue queue_;
  bool layer_stream_moved_ = false;      // the next of a stream may begin
  std::map<uint64_t, Outbound> active_;  // by id; addresses last until Erase
  std::vector<Outbound*> sending_;       // have data to post; by priority, then posting
  std::set<std::pair<Time, uint64_t>> deadlines_;
  uint32_t ending_ = 0;       // of active_, how many are ending
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
