// Which peers are there, over all connections of both directions, and the queue of peer events.
//
// Thread-safety: the Link… and Suspect/Heard methods from the engine only; the rest from any
// thread.

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

// Why transfers and connections of an agent end that is destroyed. Its peers are told in these
// words, and know by them that nothing is wrong.
inline constexpr char kAgentClosed[] = "the agent was closed";
// Likewise, where an application removes one peer.
inline constexpr char kPeerRemoved[] = "the peer was removed";

class Presence {
 public:
  explicit Presence(Dispatcher* dispatcher) : dispatcher_(dispatcher) {}

  void LinkUp(const std::string& peer, const Incarnation& incarnation);
  void LinkDown(const std::string& peer, const Incarnation& incarnation, const absl::Status& why);
  void Suspect(const std::string& peer, const Incarnation& incarnation, const absl::Status& why);
  void Heard(const std::string& peer, const Incarnation& incarnation);
  // Nothing is kept for it any more.
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
  uint32_t suspects_ = 0;  // of entries_, so that a sign of life is looked up only if that matters
  std::mutex mu_;          // guards the two below
  std::deque<PeerEvent> events_;
  std::shared_ptr<std::function<void(const PeerEvent&)>> callback_;
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_PRESENCE_H_
