// Which peers are reachable, over all connections in both directions, and the queue of peer events.
//
// Thread-safety: LinkUp, LinkDown, Suspect, Heard and Forget by the driver only; Pop and
// SetCallback from any thread.

#ifndef KVXFER_AGENT_ENGINE_PRESENCE_H_
#define KVXFER_AGENT_ENGINE_PRESENCE_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kvxfer/peer.h"
#include "src/agent/engine/dispatcher.h"

namespace kvxfer {

// The reason with which transfers and connections end when the application destroys the agent. The
// text goes to the peers, which recognise by it that nothing failed.
inline constexpr char kAgentClosed[] = "the agent was closed";
// The same when the application removes a peer.
inline constexpr char kPeerRemoved[] = "the peer was removed";

class Presence {
 public:
  explicit Presence(Dispatcher* dispatcher) : dispatcher_(dispatcher) {}

  void LinkUp(const std::string& peer, const Incarnation& incarnation);
  void LinkDown(const std::string& peer, const Incarnation& incarnation, const absl::Status& why);
  void Suspect(const std::string& peer, const Incarnation& incarnation, const absl::Status& why);
  void Heard(const std::string& peer, const Incarnation& incarnation);
  // Drops the state of a peer that has no connection.
  void Forget(const std::string& peer, const Incarnation& incarnation);

  std::optional<PeerEvent> Pop();
  void SetCallback(std::function<void(const PeerEvent&)> callback);

 private:
  enum class State : uint8_t { kNew, kUp, kSuspect, kLost };
  struct Entry {
    State state = State::kNew;
    uint32_t links = 0;
  };
  using Key = std::pair<std::string, Incarnation>;

  void Tell(const Key& key, PeerEventKind kind, const absl::Status& why);

  Dispatcher* const dispatcher_;
  std::map<Key, Entry> entries_;
  uint32_t suspects_ = 0;  // entries in kSuspect; while it is 0, Heard needs no look-up
  std::mutex mu_;          // guards events_ and callback_
  std::deque<PeerEvent> events_;
  std::shared_ptr<std::function<void(const PeerEvent&)>> callback_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_PRESENCE_H_
