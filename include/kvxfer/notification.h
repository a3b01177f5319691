// What the target's application gets when data or a bare notification of a peer has arrived.
//
// Thread-safety: plain values.
//
// Example:
//   auto n = agent->WaitNotification(std::chrono::seconds(1));
//   if (n.ok()) StartDecoding(n->payload);

#ifndef KVXFER_NOTIFICATION_H_
#define KVXFER_NOTIFICATION_H_

#include <cstdint>
#include <string>

#include "kvxfer/types.h"

namespace kvxfer {

// The largest notification payload, in bytes.
inline constexpr size_t kMaxNotificationBytes = 64 * 1024;

// Delivered exactly once, after every byte of its transfer is visible in this process.
struct Notification {
  std::string peer{};         // the initiator's name
  Incarnation incarnation{};  // the initiator's incarnation
  uint64_t transfer = 0;      // the initiator's Transfer::id()
  std::string payload{};
  // Set if this notification is for a request that peers wrote into a KV cache (Agent::WriteBlocks)
  // and that is now complete: the request's name and its cache's name. `peer` is then the initiator
  // whose data arrived last; `transfer` identifies that data alone and matches no Transfer::id().
  RequestName request{};
  CacheName cache{};
};

}  // namespace kvxfer

#endif  // KVXFER_NOTIFICATION_H_
