// What a program may act on beyond the code of a status, so that it need not read the message.
//
// Thread-safety: any thread.
//
// Example: blocks that a peer was to write may be used for others.
//   if (ReasonOf(transfer.status()) == Reason::kPeerGone) pool.Free(blocks);

#ifndef KVXFER_REASON_H_
#define KVXFER_REASON_H_

#include <cstdint>

#include "absl/status/status.h"

namespace kvxfer {

enum class Reason : uint8_t {
  kNone = 0,       // the code says all
  kAddressInUse,   // another process listens at the address
  kPeerRestarted,  // another incarnation is where the peer was
  kPeerGone,       // the peer's process has ended
};
const char* ToString(Reason reason);

Reason ReasonOf(const absl::Status& status);

}  // namespace kvxfer

#endif  // KVXFER_REASON_H_
