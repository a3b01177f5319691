// What an agent tells its program, in one queue: notifications, ends of transfers, events about
// peers, and events about KV caches.
//
// Thread-safety: plain values.
//
// Example:
//   auto transfer = agent->Write(peer, blocks, {.user_word = 7});  // asks for an event at its end
//   std::array<kvxfer::AgentEvent, 16> events;
//   auto count = agent->WaitEvents(events, std::chrono::seconds(5));
//   for (auto& event : std::span(events).first(count.value_or(0))) {
//     if (auto* end = std::get_if<kvxfer::TransferEnd>(&event)) Finish(end->user_word);
//   }

#ifndef KVXFER_EVENT_H_
#define KVXFER_EVENT_H_

#include <cstddef>
#include <cstdint>
#include <variant>

#include "kvxfer/kv_cache.h"
#include "kvxfer/notification.h"
#include "kvxfer/peer.h"
#include "kvxfer/transfer.h"

namespace kvxfer {

// Kinds of events (bit mask).
enum class AgentEventKinds : uint8_t {
  kNone = 0,
  kNotification = 1,  // Notification
  kTransferEnd = 2,  // TransferEnd, of a transfer that was posted with a TransferOptions::user_word
  kPeer = 4,         // PeerEvent
  kKv = 8,           // KvEvent
  kAll = 15,         // the kinds above
  // TransferEnd, asked for by Transfer::Watch; for a layer that shares the agent with its program,
  // such as an adapter to an event loop. Not in kAll, so that neither takes the other's events.
  kWatchedEnd = 16,
};

constexpr AgentEventKinds operator|(AgentEventKinds a, AgentEventKinds b) {
  return static_cast<AgentEventKinds>(static_cast<uint8_t>(a) | static_cast<uint8_t>(b));
}
constexpr AgentEventKinds operator&(AgentEventKinds a, AgentEventKinds b) {
  return static_cast<AgentEventKinds>(static_cast<uint8_t>(a) & static_cast<uint8_t>(b));
}

// How many ends of transfers of one kind (kTransferEnd, kWatchedEnd) may be asked for and not
// taken: of transfers that are active, and of those that have ended.
inline constexpr size_t kMaxUnreadEnds = 65'536;

// A transfer has ended.
struct TransferEnd {
  uint64_t user_word = 0;  // as TransferOptions::user_word or Transfer::Watch gave it
  Transfer transfer{};     // says how it ended
};

// std::monostate: no event; PollEvents never returns it.
using AgentEvent = std::variant<std::monostate, Notification, TransferEnd, PeerEvent, KvEvent>;

}  // namespace kvxfer

#endif  // KVXFER_EVENT_H_
