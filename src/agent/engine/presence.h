// Which peers are reachable, over all connections in both directions, and the events about that.
//
// Thread-safety: none; only the driver calls it.

#ifndef KVXFER_AGENT_ENGINE_PRESENCE_H_
#define KVXFER_AGENT_ENGINE_PRESENCE_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "kvxfer/peer.h"
#include "src/agent/engine/event_queue.h"
#include "src/core/base/clock.h"

namespace kvxfer {

// The reason with which transfers and connections end when the application destroys the agent. The
// text goes to the peers, which recognise by it that nothing failed.
inline constexpr char kAgentClosed[] = "the agent was closed";
// The same when the application removes a peer.
inline constexpr char kPeerRemoved[] = "the peer was removed";

class Presence {
 public:
  explicit Presence(EventQueue* events) : events_(events) {}

  void LinkUp(const std::string& peer, const Incarnation& incarnation);
  void LinkDown(const std::string& peer, const Incarnation& incarnation, const absl::Status& why);
  // It has said nothing since `heard`.
  void Suspect(const std::string& peer, const Incarnation& incarnation, Time heard, Time now);
  void Heard(const std::string& peer, const Incarnation& incarnation);
  // For the error of what waits for a peer: what there is to say of its silence, as text for a
  // person; empty: it is not suspect.
  std::string SilenceOf(const std::string& peer, const Incarnation& incarnation, Time now) const;
  // The same of all peers: "peer a: ..., peer b: ...", a few of them.
  std::string Silent(Time now) const;
  // Drops the state of a peer that has no connection.
  void Forget(const std::string& peer, const Incarnation& incarnation);

 private:
  enum class State : uint8_t { kNew, kUp, kSuspect, kLost };
  struct Entry {
    State state = State::kNew;
    uint32_t links = 0;
    Time heard{};  // in kSuspect: last
  };
  using Key = std::pair<std::string, Incarnation>;

  void Tell(const Key& key, PeerEventKind kind, const absl::Status& why);

  EventQueue* const events_;
  std::map<Key, Entry> entries_;
  uint32_t suspects_ = 0;  // entries in kSuspect; while it is 0, Heard needs no look-up
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_PRESENCE_H_
