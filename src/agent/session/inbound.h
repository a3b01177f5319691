// The target's side: connections that peers made to this agent, a session for each initiator's
// incarnation, what they bring, and the questions asked back (quiesce).
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_INBOUND_H_
#define KVXFER_AGENT_SESSION_INBOUND_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kvxfer/agent.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/staging/staging_target.h"
#include "src/core/protocol/arrival_capacity.h"
#include "src/core/protocol/arrival_tracker.h"
#include "src/core/protocol/handshake.h"
#include "src/core/protocol/handshake_budget.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/slot_table.h"

namespace kvxfer {

class InboundHub;
struct InboundSession;

// One connection that a peer made.
class InboundLink : public EndpointUser {
 public:
  InboundLink(InboundHub* link_hub, ArrivalCapacity* link_capacity,
              std::unique_ptr<Endpoint> link_endpoint)
      : hub(link_hub), space(link_capacity), endpoint(std::move(link_endpoint)) {}
  void OnEvent(Event& event) override;

  InboundHub* const hub;
  ArrivalCapacity* const space;  // of its backend
  std::unique_ptr<Endpoint> endpoint;
  std::unique_ptr<Handshake> handshake;  // until the initiator has proved who it is
  InboundSession* session = nullptr;     // from then on
  Time heard{};                          // of one without a session: when it was accepted
  bool closing = false;
  // Regions that it is still to be told of, whether they live: first to last; none where empty.
  RegionRun unlisted{.first = 1, .last = 0};
  bool carried = false;             // told the initiator what belongs to the session the other way
  std::vector<uint32_t> fencing{};  // rails whose kFenced event is awaited
  std::vector<uint32_t> fenced{};   // and those that the initiator is to be told of
  std::vector<uint64_t> waiting{};  // transfers that are fenced but for the rails in `fencing`
};

// What one incarnation of an initiator has going here. Outlives its connections for kSweepAfter.
struct InboundSession {
  InboundSession(SlotTable* slots, SlotTable::SessionId session_id)
      : local_id(session_id), tracker(slots, session_id) {}

  // Of the backends that it is connected over, each once.
  absl::InlinedVector<ArrivalCapacity*, 1> ArrivalCapacities() const;
  bool In(const ArrivalCapacity* space) const;

  // Under leases: the same in every session of its incarnation, which has one at a time.
  KvLeases::Reader reader() const;

  const SlotTable::SessionId local_id;  // of this agent; `id` is of the initiator
  uint64_t id = 0;
  Incarnation initiator{};
  std::string name{};
  std::vector<InboundLink*> links{};
  ReliableChannel channel;
  ArrivalTracker tracker;
  uint32_t ranges = 0;  // of slots granted
  std::shared_ptr<CreditAccount> account = std::make_shared<CreditAccount>();
  CreditFrame credit_reported{};
  CreditFrame delivered{};    // notifications given to the application, and their bytes
  bool wants_slots = false;   // asked when there were none
  bool rails_failed = false;  // of a connection of it
  std::map<uint64_t, std::set<const InboundLink*>> fencing{};  // transfer → links not yet fenced
  Time unlinked{};                                             // since when it has no connection
  // kFailed: the peer broke the protocol. kRemoved: the application removed the peer. Either way
  // nothing of it is handled any more, and its connections are closing.
  enum class State : uint8_t { kOpen, kFailed, kRemoved };
  State state = State::kOpen;
  bool over() const { return state != State::kOpen; }
};

class InboundHub {
 public:
  explicit InboundHub(Runtime* runtime)
      : runtime_(runtime), stages_(&runtime->staging, &runtime->memory) {}

  // The backends are there: what each can take in bounds what is granted to peers that come by it.
  void OpenArrivalCapacities();
  // `backend`: its place in Runtime::backends.
  void Accept(size_t backend, std::unique_ptr<Endpoint> endpoint);
  // Sends what is due: acknowledgements, credit, frames.
  void Pump();
  // See ReverseSession.
  ReverseSession::Piggyback PiggybackTo(const Incarnation& initiator);
  bool IsConnected(const Incarnation& initiator) const;
  void PiggybackLinkLost(const Incarnation& initiator);
  absl::Status OnPiggybacked(const Incarnation& initiator, uint64_t id,
                             std::span<const std::byte> message);
  void OnTimer(Time now);
  Time NextTimer() const;
  void Close(const absl::Status& why);
  // Ends the sessions of every incarnation of `peer`. Its transfers that are in progress fail; what
  // it starts later comes in a new session. Nothing of a session is kept once its connections are
  // down. False: there is no session.
  bool Remove(std::string_view peer, const absl::Status& why);
  bool Finished() const { return links_.empty(); }

  // One question of Quiesce. `quiet` turns true once, when everybody has answered or is gone, and
  // is the key of ProgressLoop::Wake.
  struct Question {
    uint64_t token = 0;
    std::shared_ptr<std::atomic<bool>> quiet = std::make_shared<std::atomic<bool>>(false);
    std::set<SlotTable::SessionId> waiting{};
    bool revoke = false;
  };
  // Asks every initiator in `scope`; answers come in over time. InvalidArgument: more regions than
  // kMaxListedRegions, which one message lists; ResourceExhausted: too many questions are open.
  absl::StatusOr<Question> StartQuiesce(const QuiesceScope& scope);
  // Asks every initiator about closed regions, at most kMaxListedRegions, and that it begins
  // nothing more with them. Call it only while fewer than kMaxRevoking such questions are open.
  // Returns the token that TakeRevoked will name.
  static constexpr size_t kMaxRevoking = kMaxRevocations / 2;
  uint64_t StartRevoke(std::span<const RegionId> regions);
  size_t revoking() const { return revoking_; }
  // Questions of StartRevoke that are quiet now, each once.
  bool any_revoked() const { return !revoked_.empty(); }
  std::vector<uint64_t> TakeRevoked();
  // Who has not answered, for a person.
  std::string Pending(uint64_t token) const;
  // NotFound: unknown, or answered true before.
  absl::StatusOr<bool> IsQuiet(uint64_t token);

  // How long a session is kept without a connection.
  static constexpr Duration kSweepAfter = std::chrono::seconds(60);

 private:
  friend class InboundLink;

  void OnMessage(InboundLink& link, std::span<const std::byte> message);
  void OnHandshake(InboundLink& link, std::span<const std::byte> message);
  void OnProved(InboundLink& link);
  void Refuse(InboundLink& link, RefuseReason reason, const std::string& text);
  InboundSession* Attach(InboundLink& link, const HelloFrame& hello);
  void SendHelloAck(InboundLink& link, uint16_t version);
  void SendPages(InboundLink& link);
  void OnPiggyback(InboundLink& link, std::span<const std::byte> body);
  void OnNumberedMessage(InboundSession& session, const Envelope& envelope);
  absl::Status OnNumbered(InboundSession& session, const ReliableChannel::Incoming& frame);
  void OnImmediate(InboundLink& link, uint32_t immediate);
  void OnFenced(InboundLink& link, uint64_t transfer);
  void OnFenceRail(InboundLink& link, std::span<const std::byte> body);
  void OnRailFenced(InboundLink& link, uint32_t rail);
  void TellFencedRails(InboundSession& session);
  void OnDown(InboundLink& link, const absl::Status& why);
  void OnUnlinked(InboundSession& session);
  absl::Status CheckBounds(const InboundSession& session) const;
  void Act(InboundSession& session);
  // nullopt: the answer comes later, by AnswerLate.
  static void Answer(InboundSession& session, std::optional<LeaseAnswerFrame> answer);
  void AnswerLate();
  void Deliver(InboundSession& session, ArrivalTracker::Deliveries all);
  void DeliverPart(InboundSession& session, const ArrivalTracker::Delivered& delivered);
  void StartFence(InboundSession& session, uint64_t transfer);
  void FenceDone(InboundSession& session, InboundLink& link, uint64_t transfer);
  static bool Fits(const InboundSession& session, const InboundLink& link);
  static void Join(InboundSession& session, InboundLink& link);
  void Leave(InboundSession& session, InboundLink& link);
  void GrantSlots(InboundSession& session);
  void GrantWaiting();
  void Pump(InboundSession& session);
  void TellCredit(InboundSession& session);
  void Flush(InboundSession& session);
  void Fail(InboundSession& session, const absl::Status& why);
  void CloseLink(InboundLink& link, const absl::Status& why);
  Duration HelloWithin() const;
  void Sweep(Incarnation initiator);
  void SweepBeyondBound();
  void SweepHolders();
  Question& Ask(const QuiesceScope& scope, bool revoke);
  void Answered(Question& question, SlotTable::SessionId session_id);
  void OnQuiet(Question& question);

  Runtime* const runtime_;
  StagingTarget stages_;
  // In place of sessions that are over, in Question::waiting, while copies for them are not.
  static constexpr SlotTable::SessionId kGone = 0;
  bool gone_copies_ = false;
  SlotTable slots_;
  std::vector<ArrivalCapacity> arrival_capacities_{};  // by backend
  SlotTable::SessionId last_session_id_ = 0;
  std::map<Incarnation, std::unique_ptr<InboundSession>> sessions_;
  Incarnation pumped_first_{};  // the session that Pump began with
  std::map<const InboundLink*, std::unique_ptr<InboundLink>> links_;
  std::vector<InboundLink*> unproved_;  // of them, in the order of Accept; none that is closing
  HandshakeBudget handshakes_{Now()};
  uint64_t last_question_ = 0;
  std::map<uint64_t, Question> questions_;  // until IsQuiet has answered true, or TakeRevoked
  size_t revoking_ = 0;                     // of them, those of StartRevoke that are not quiet
  std::vector<uint64_t> revoked_;           // and those that are
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_INBOUND_H_
