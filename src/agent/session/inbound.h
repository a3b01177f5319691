// The sessions with peers, the connections that peers made to this agent, what they bring, and the
// questions asked back (quiesce).
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_INBOUND_H_
#define KVXFER_AGENT_SESSION_INBOUND_H_

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "kvxfer/agent.h"
#include "src/agent/engine/runtime.h"
#include "src/agent/session/question_book.h"
#include "src/agent/session/shared_session.h"
#include "src/agent/staging/staging_target.h"
#include "src/core/protocol/arrival_capacity.h"
#include "src/core/protocol/handshake.h"
#include "src/core/protocol/handshake_budget.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/slot_table.h"
#include "src/core/protocol/target_session.h"

namespace kvxfer {

class InboundLink;
struct InboundSession;

// Receives what connections bring that belongs to no session, or to all of it.
class InboundUser {
 public:
  virtual ~InboundUser() = default;
  virtual void OnMessage(InboundLink& link, std::span<const std::byte> message) = 0;
  virtual void OnDown(InboundLink& link, const absl::Status& why) = 0;
  // Looks whether it has been silent for too long. When to look again; Time::max(): not at all.
  virtual Time OnTimer(InboundLink& link, Time now) = 0;
};

// One connection that a peer made.
class InboundLink : public SessionLink, private TimerHeap::Timer::User {
 public:
  InboundLink(TimerHeap* timers, InboundUser* link_user, uint64_t link_number, size_t backend_index,
              bool carries_control, ArrivalCapacity* link_capacity,
              std::unique_ptr<Endpoint> link_endpoint)
      : SessionLink(backend_index, false, carries_control, std::move(link_endpoint)),
        user(link_user),
        number(link_number),
        space(link_capacity),
        timer(timers, this) {}
  bool open() const override { return !closing; }
  void OnEvent(Event& event) override;
  void Close(const absl::Status& why) override;

  InboundUser* const user;
  const uint64_t number;                 // of those to this agent, from 1
  uint64_t dialled_number = 0;           // what the initiator calls it, once that is proved
  ArrivalCapacity* const space;          // of its backend
  std::unique_ptr<Handshake> handshake;  // until the initiator has proved who it is
  InboundSession* session = nullptr;     // from then on
  bool closing = false;
  // Regions that it is still to be told of, whether they live: first to last; none where empty.
  RegionRun unlisted{.first = 1, .last = 0};
  // Not moved by what is heard: when it comes, it looks how long ago that was.
  TimerHeap::Timer timer;

 private:
  void OnTimer(Time now) override { timer.Set(user->OnTimer(*this, now)); }
};

// The half of a session whose target this agent is: what one incarnation of an initiator has going
// here. It begins with the first connection that the initiator makes.
struct InboundSession final : SessionHalf, private ReadyList::Member::User {
  // Receives what concerns other sessions as well.
  class User {
   public:
    virtual ~User() = default;
    virtual void GrantSlots(InboundSession& session) = 0;
    virtual void OnQuiet(const InboundSession& session, uint64_t question) = 0;
    // Something here waits for what its initiator does.
    virtual bool Awaits(const InboundSession& session) const = 0;
  };

  // `shared_session` outlives it, as do the others.
  InboundSession(Runtime* agent_runtime, User* session_user, SharedSession* shared_session,
                 StagingTarget* agent_stages, SlotTable* slots, SlotTable::SessionId session_id)
      : local_id(session_id),
        shared(shared_session),
        initiator(shared_session->peer()),
        channel(shared_session->session().channel()),
        transfers(slots, session_id,
                  {.notifications = agent_runtime->options.max_notifications,
                   .notification_bytes = agent_runtime->options.max_notification_bytes,
                   .transfers = kMaxSessionTransfers}),
        runtime_(agent_runtime),
        user_(session_user),
        stages_(agent_stages),
        ready_(&agent_runtime->sessions, this) {
    account->ready = &ready_;
  }
  ~InboundSession() override { account->ready = nullptr; }

  // --- SessionHalf ---
  void Mark() override { ready_.Mark(); }
  bool Awaits() const override { return user_->Awaits(*this); }
  absl::Status OnFrame(const ReliableChannel::Incoming& frame) override;
  void OnFramesTaken() override { Act(absl::OkStatus()); }
  void OnSessionEnd(const absl::Status& why, Ends which) override;

  // --- connections ---
  // Whether there is room for what the session was granted to come in by `link`.
  bool Fits(const InboundLink& link) const;
  void Join(InboundLink& link);
  void OnImmediate(uint32_t immediate);
  void OnFenced(const InboundLink& link, uint64_t transfer);
  // A rail failed at the initiator, which asks for its fence; and that fence is over.
  void OnFenceRail(const InboundLink& link, std::span<const std::byte> body);
  void OnRailFenced(const InboundLink& link, uint32_t rail);
  // A connection has ended at the initiator, which says so over another one.
  void OnLinkGone(uint64_t dialled_number);
  // False: there was no room for all of them.
  bool SendPages(InboundLink& link) const;

  // --- what it brings ---
  // Carries out what an event led to; `status`: what `transfers` returned for it.
  void Act(absl::Status status);
  // Moves the notifications out of `all`.
  void Deliver(std::span<ArrivalTracker::Delivered> all);
  // nullopt: the answer comes later, by InboundHub::AnswerLate.
  void Answer(std::optional<LeaseAnswerFrame> answer);
  void TellCredit();

  // Of the backends that it is connected over, each once.
  absl::InlinedVector<ArrivalCapacity*, 1> ArrivalCapacities() const;
  bool In(const ArrivalCapacity* space) const;

  // Under leases: the same in every session of its incarnation, which has one at a time.
  KvLeases::Reader reader() const;

  const SlotTable::SessionId local_id;  // of this agent
  SharedSession* const shared;
  const Incarnation initiator;
  std::string name{};
  std::vector<InboundLink*> links{};
  ReliableChannel& channel;  // of shared
  TargetSession transfers;
  uint32_t ranges = 0;  // of slots granted
  std::shared_ptr<CreditAccount> account = std::make_shared<CreditAccount>();
  bool wants_slots = false;  // asked when there were none
  // kEnded: the session is over. kBroken: the same, for the initiator broke the protocol.
  // kRemoved: the application removed the peer. In each of them nothing of it is handled any more,
  // and its connections are closing.
  enum class State : uint8_t { kOpen, kEnded, kBroken, kRemoved };
  State state = State::kOpen;
  bool over() const { return state != State::kOpen; }

 private:
  // ReadyList::Member::User: sends what is due.
  void Pump(Time now) override;
  void DeliverPart(const ArrivalTracker::Delivered& sent);
  void ForgetActions();
  void StartFence(const TargetSession::Fence& fence);
  // False, of both: there was no room for all of it.
  bool TellFencedRails();
  bool SendPages();
  absl::Status TakeFrame(const ReliableChannel::Incoming& frame);
  // The initiator broke the protocol.
  void Fail(const absl::Status& why);

  Runtime* const runtime_;
  User* const user_;
  StagingTarget* const stages_;
  ReadyList::Member ready_;
  TargetSession::Actions actions_;  // that Act carries out
};

class InboundHub : private InboundUser, private InboundSession::User, private SharedSession::User {
 public:
  explicit InboundHub(Runtime* runtime)
      : runtime_(runtime),
        stages_(&runtime->staging, &runtime->memory),
        questions_(&runtime->loop) {}

  // The session with an incarnation, which stays until Release.
  SharedSession& SessionWith(const Incarnation& peer, const std::string& name);
  // Forgets the session, unless something is left of it.
  void Release(const Incarnation& peer);

  // The backends are there: what each can take in bounds what is granted to peers that come by it.
  void OpenArrivalCapacities();
  // `backend`: its place in Runtime::backends.
  void Accept(size_t backend, std::unique_ptr<Endpoint> endpoint);
  // Has the sessions that have something to do send what is due: acknowledgements, credit, frames.
  void Pump(Time now);
  void Close(const absl::Status& why);
  // Ends what every incarnation of `peer` has going here. Its transfers that are in progress fail;
  // what it starts later comes in a new session. Nothing of it is kept once its connections are
  // down. The session itself ends here, or, where the agent has transfers to the peer, with these.
  // False: there is nothing.
  bool Remove(std::string_view peer, const absl::Status& why);
  bool Finished() const { return links_.empty(); }

  // Asks every initiator in `scope`; answers come in over time. InvalidArgument: more regions than
  // kMaxListedRegions, which one message lists; ResourceExhausted: too many questions are open.
  absl::StatusOr<QuestionBook::Question> StartQuiesce(const QuiesceScope& scope);
  // Asks every initiator about closed regions, at most kMaxListedRegions, and that it begins
  // nothing more with them. Call it only while fewer than QuestionBook::kMaxRevoking such questions
  // are open. Returns the token that QuestionBook::TakeRevoked will name.
  uint64_t StartRevoke(std::span<const RegionId> regions);
  QuestionBook& questions() { return questions_; }
  const QuestionBook& questions() const { return questions_; }
  // Somebody waits for layers of a KV request, which any of the initiators may be to write.
  void AwaitWriters();
  // Who has not answered, for a person.
  std::string Pending(uint64_t token) const;

 private:
  void OnMessage(InboundLink& link, std::span<const std::byte> message) override;
  void OnHandshake(InboundLink& link, std::span<const std::byte> message);
  void OnProved(InboundLink& link);
  void Refuse(InboundLink& link, RefuseReason reason, const std::string& text);
  InboundSession* Attach(InboundLink& link, const HelloFrame& hello);
  InboundSession* Begin(InboundLink& link, const HelloFrame& hello, SharedSession& shared);
  void SendHelloAck(InboundLink& link, uint16_t version);
  void OnDown(InboundLink& link, const absl::Status& why) override;
  Time OnTimer(InboundLink& link, Time now) override;
  void OnSilent(SharedSession& shared, Time heard) override;
  bool Awaits(const InboundSession& session) const override;
  void OnUnlinked(SharedSession& shared, const absl::Status& why) override;
  void OnOver(SharedSession& shared) override;
  void OnQuiet(const InboundSession& session, uint64_t question) override;
  void AnswerLate();
  void Leave(InboundSession& session, InboundLink& link);
  void GrantSlots(InboundSession& session) override;
  void GrantWaiting();
  void CloseLink(InboundLink& link, const absl::Status& why);
  Duration HelloWithin() const;
  void EndQuestions(const InboundSession& session);
  void SweepBeyondBound();
  void SweepHolders();
  QuestionBook::Question& Ask(const QuiesceScope& scope, bool revoke);

  Runtime* const runtime_;
  StagingTarget stages_;
  // In place of sessions that are over, in questions, while copies for them are not.
  static constexpr SlotTable::SessionId kGone = 0;
  bool gone_copies_ = false;
  SlotTable slots_;
  std::vector<ArrivalCapacity> arrival_capacities_{};  // by backend
  SlotTable::SessionId last_session_id_ = 0;
  std::map<Incarnation, std::unique_ptr<SharedSession>> shared_;
  // The halves whose target this agent is, of those sessions that have one.
  std::map<Incarnation, std::unique_ptr<InboundSession>> sessions_;
  std::vector<std::unique_ptr<InboundSession>> over_;  // destroyed in the next round
  std::vector<Incarnation> released_;                  // that Pump is to look at
  std::map<const InboundLink*, std::unique_ptr<InboundLink>> links_;
  uint64_t last_link_ = 0;
  std::vector<InboundLink*> unproved_;  // of them, in the order of Accept; none that is closing
  HandshakeBudget handshakes_;
  QuestionBook questions_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_INBOUND_H_
