// The backend `direct`: agents of one process; the initiator's thread copies into the target's
// memory while it polls. The least that keeps the rules of kvxfer/backend.h, and no faster.
//
// Thread-safety: the threads of two agents meet here, so one lock is held over every call.
#ifndef KVXFER_EXAMPLES_BACKEND_PLUGIN_DIRECT_H_
#define KVXFER_EXAMPLES_BACKEND_PLUGIN_DIRECT_H_

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kvxfer/backend.h"

namespace direct {

inline constexpr size_t kMaxMessages = 1024;     // to one agent, not yet taken
inline constexpr size_t kMaxOps = 64;            // of one connection, not yet done
inline constexpr uint64_t kPollBytes = 1 << 20;  // copied by one Poll; of one op at most
inline constexpr size_t kMaxPieces = 1024;       // of one op
inline constexpr size_t kMaxFenced = 256;        // side 0 is fenced soon after side 1

struct Item {
  kvxfer::Event event{};
  std::string message{};
};

struct Link;

// What an agent shows to the others. A shared_ptr: its backend and the links of peers hold it.
struct Node {
  Node();
  ~Node();
  void Put(Item item);  // and wakes its agent
  void Wake() const;
  bool HasOps() const;
  void Work();  // copies for some of its ops

  std::deque<Item> items{};
  size_t messages = 0;                       // among them
  bool starved = false;                      // a peer found no room for a message
  std::vector<std::weak_ptr<Link>> links{};  // that it connected
  std::map<uint32_t, kvxfer::LocalRegion> regions{};
  int fd = -1;
};

// One connection; side 0 connected, side 1 accepted.
struct Link {
  std::array<std::shared_ptr<Node>, 2> nodes{};
  std::array<kvxfer::Endpoint*, 2> ends{};  // null once destroyed
  std::deque<kvxfer::Op> ops{};             // posted by side 0
  std::deque<uint64_t> fenced{};            // transfers that side 1 takes nothing of, newest last
  bool authorized = false;
  bool down = false;
};

// Recursive: what is destroyed under it may take it too.
std::recursive_mutex& Lock();
// The agents of this process by address; Lock() is held.
std::map<std::string, std::weak_ptr<Node>, std::less<>>& Nodes();

// All of these with Lock() held.
void Tell(Link& link, size_t side, kvxfer::Event event, std::string message = {});
// Ends all ops and tells both sides, once.
void Close(Link& link, const absl::Status& why);
// Does ops from the front, as long as they have no more than `bytes`; returns how many it copied.
uint64_t Advance(Link& link, uint64_t bytes);
// Ends ops of `transfer` (0: all), which are not begun.
void Cancel(Link& link, uint64_t transfer);

std::unique_ptr<kvxfer::Endpoint> MakeEndpoint(std::shared_ptr<Link> link, size_t side);
// Closing it waits for a copy that is under way.
std::unique_ptr<kvxfer::Registration> MakeRegion(std::shared_ptr<Node> node,
                                                 const kvxfer::LocalRegion& region);

class Key final : public kvxfer::RemoteKey {
 public:
  explicit Key(uint32_t named) : rkey(named) {}
  const uint32_t rkey;
};

}  // namespace direct

#endif  // KVXFER_EXAMPLES_BACKEND_PLUGIN_DIRECT_H_
