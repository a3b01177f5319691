// The session with one incarnation of a peer, as this agent's two halves share it: Peer, for what
// the agent initiates, and InboundSession, for what it is the target of. Control frames of both
// halves go over the best link that is up and carries them, whoever dialled it.
//
// A link that answers nothing is avoided while another one carries: a path may let nothing through
// and stay open. FrameWatch finds it out; what waits is sent again over another one.
//
// A peer that says nothing over any link is reported. PeerWatch finds that out, by pings that go
// over all of them; how often depends on whether either half waits for the peer's word.
//
// The session ends for both halves at once. Each closes its links; when the last one is down,
// nothing can land any more, and the next session may begin.
//
// Thread-safety: none; owned by the engine.

#ifndef KVXFER_AGENT_SESSION_SHARED_SESSION_H_
#define KVXFER_AGENT_SESSION_SHARED_SESSION_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "kvxfer/backend.h"
#include "src/agent/engine/runtime.h"
#include "src/core/base/clock.h"
#include "src/core/base/timer_heap.h"
#include "src/core/protocol/frame_watch.h"
#include "src/core/protocol/peer_watch.h"
#include "src/core/protocol/session.h"

namespace kvxfer {

// A connection that may carry the frames of a session.
class SessionLink : public EndpointUser {
 public:
  SessionLink(size_t backend_index, bool dialled_here, bool carries_control,
              std::unique_ptr<Endpoint> link_endpoint)
      : backend(backend_index),
        dialled(dialled_here),
        carries(carries_control),
        endpoint(std::move(link_endpoint)) {}
  // Frames may be sent over it.
  virtual bool open() const = 0;
  // kDown follows. Does nothing to one that is closing.
  virtual void Close(const absl::Status& why) = 0;
  // Asks for a pong. Without room for it the link owes one all the same, until a later ping.
  void Ping(const Session& session, Time now);

  const size_t backend;  // its place in Runtime::backends
  const bool dialled;    // by this agent
  const bool carries;    // control frames too, as AgentOptions::control has it; else only data
  std::unique_ptr<Endpoint> endpoint;
  Time heard{};       // the peer's last message over it
  Time unanswered{};  // when the oldest unanswered ping went out; zero: none
  FrameWatch::Carrier health() const { return {.owes = unanswered != Time{}, .avoided = avoided}; }
  bool avoided = false;  // it answers nothing: frames take another link, if there is one
};

class SessionHalf {
 public:
  // Which of the transfers that have not begun end with the session: all, or only those that were
  // posted before its last connection was lost.
  enum class Ends : uint8_t { kAll, kPreceding };

  virtual ~SessionHalf() = default;
  // It has something to do: it flushes the session in the next pass.
  virtual void Mark() = 0;
  // Something of it waits for the peer's word. When that begins, SharedSession::Await is called.
  virtual bool Awaits() const = 0;
  // A frame for this half, in order. An error: the peer broke the protocol.
  virtual absl::Status OnFrame(const ReliableChannel::Incoming& frame) = 0;
  // Frames have been taken, for whichever half: carries out what follows from them.
  virtual void OnFramesTaken() = 0;
  // The session is over: closes the half's links.
  virtual void OnSessionEnd(const absl::Status& why, Ends which) = 0;
};

class InitiatorHalf : public SessionHalf {
 public:
  // A session has begun of which the peer knows nothing.
  virtual void OnSessionRenewed() = 0;
};

class SharedSession : private ReliableChannel::User, private TimerHeap::Timer::User {
 public:
  using Ends = SessionHalf::Ends;

  class User {
   public:
    virtual ~User() = default;
    // The peer is awaited, or pinged, and has said nothing since `heard`. Called at each look until
    // the peer speaks.
    virtual void OnSilent(SharedSession& shared, Time heard) = 0;
    // The last link is down. The session goes on, until it ends kSweepAfter from now.
    virtual void OnUnlinked(SharedSession& shared, const absl::Status& why) = 0;
    // It is over, and nothing of it can land any more. The target half is there for the last time.
    virtual void OnOver(SharedSession& shared) = 0;
  };

  // How long a session is kept without a connection.
  static constexpr Duration kSweepAfter = std::chrono::seconds(60);

  // Both outlive it.
  SharedSession(TimerHeap* timers, User* user, const Session::Party& self,
                const Session::Party& peer, const PeerWatch::Pace& pace);

  Session& session() { return session_; }
  const Session& session() const { return session_; }
  const Incarnation& peer() const { return session_.peer().incarnation; }

  // --- its halves ---
  // Null: there is none.
  void SetTarget(SessionHalf* target) { target_ = target; }
  // A peer that is removed stays until it is closed, and one that is added again waits behind it.
  // What has entered lets go when nothing of it points here any more.
  void Enter(InitiatorHalf* half) {
    initiators_.push_back(half);
    ++holders_;
  }
  void Leave(const InitiatorHalf* half);
  void LetGo() { --holders_; }
  bool IsActive(const InitiatorHalf* half) const {
    return !initiators_.empty() && initiators_.front() == half;
  }
  bool has_initiator() const { return !initiators_.empty(); }
  bool in_use() const { return holders_ > 0 || target_ != nullptr; }

  // --- links ---
  void OnLinkUp(SessionLink& link);
  // `link` was up.
  void OnLinkDown(const SessionLink& link, const absl::Status& why, Time now);
  // Frames can be sent.
  bool linked() const;
  // The peer has a connection of its own to this agent.
  bool PeerDialled() const;
  // A half waits for the peer's word; how soon its silence is noticed depends on that. Call it when
  // the wait begins; another call costs nothing.
  void Await(Time now);

  // --- messages ---
  // One that came over a link that is up. Those that are about this link alone (a rail and its
  // fence) are not handled here, except for their acknowledgement. An error: the peer broke the
  // protocol; see Fail.
  absl::Status OnMessage(SessionLink& link, const Envelope& envelope);
  // Sends what there is, as far as there is space. `over`: the link to take, if it carries and owes
  // no pong; null: the best one. `answers_wait`: nothing, if there are only answers to what the
  // peer initiates. False: flush again; there was no room, or an acknowledgement waits.
  bool Flush(SessionLink* over, bool answers_wait = false);

  // --- the end ---
  // The peer broke the protocol.
  void Fail(const absl::Status& why);
  // Does nothing to one that has ended.
  void End(const absl::Status& why, Ends which);

 private:
  // ReliableChannel::User.
  void OnPushed(FrameType type) override;
  void MarkBoth();
  // Finds out whether the link that frames take still answers, and whether the peer does at all;
  // and ends a session that nobody connects.
  void OnTimer(Time now) override;
  void Look(Time now);
  void LookAtPeer(Time now);
  void SetTimer();
  Time NextLook() const;
  Time NextPeerLook() const;
  // The same for both ends, where both have the same backends and all links answer: of two links
  // over one backend, that which the smaller incarnation dialled. So a conversation stays on one
  // connection.
  SessionLink* Best() const;
  bool HasChoice() const;
  void Avoid(SessionLink& link, Time now);
  void SendAgain();
  absl::Status OnPing(SessionLink& link, const Envelope& envelope);
  void OnPong(SessionLink& link);
  absl::Status OnNumbered(const Envelope& envelope);
  // False: there was no room for all of it.
  bool SendFrames(SessionLink& link);
  absl::Status Pass(const ReliableChannel::Incoming& frame);
  void CloseUncarried(const absl::Status& why);
  void RenewIfOver();

  User* const user_;
  TimerHeap::Timer timer_;
  Session session_;
  const bool smaller_;               // this incarnation
  std::vector<SessionLink*> links_;  // that are up, or closing
  SessionHalf* target_ = nullptr;
  std::deque<InitiatorHalf*> initiators_;  // the first is active
  size_t holders_ = 0;
  FrameWatch watch_{};  // while there is a choice of links
  PeerWatch peer_watch_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_SHARED_SESSION_H_
