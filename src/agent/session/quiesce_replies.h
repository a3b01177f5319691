// The replies to a target's questions (QUIESCE). Each is answered (QUIET) once every transfer that
// it waits for has ended and is quiet. One that revokes GPU memory also waits until none of it is
// open here: its owner may free the memory after the answer, and that may be done only when nobody
// else has it open.
//
// Thread-safety: none; used by the driver.

#ifndef KVXFER_AGENT_SESSION_QUIESCE_REPLIES_H_
#define KVXFER_AGENT_SESSION_QUIESCE_REPLIES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "src/agent/session/asked_book.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class QuiesceReplies {
 public:
  class User {
   public:
    virtual ~User() = default;
    // No transfer uses these regions any more, and none can from now on.
    virtual void DropKeys(std::span<const uint32_t> regions) = 0;
    // GPU memory that is not needed any more is still open.
    virtual bool IsClosing() const = 0;
  };

  // Both outlive it; `channel` carries the answers.
  QuiesceReplies(ReliableChannel* channel, User* user) : channel_(channel), user_(user) {}

  // ResourceExhausted: more than a target asks at once.
  absl::Status CheckSpace(const QuiesceFrame& frame) const;
  // Requires CheckSpace. `transfers`: those that the question waits for, each once. `cuda`: it
  // names GPU memory.
  void Add(const QuiesceFrame& frame, bool cuda, std::span<const uint64_t> transfers);
  // The transfer has ended and is quiet.
  void End(uint64_t transfer);
  // Looks whether what was open is closed.
  void OnTimer();
  bool waits_closed() const { return !waits_closed_.empty(); }
  bool idle() const { return asked_.empty() && waits_closed_.empty(); }
  // The session has ended: nobody waits for answers.
  void Clear();

 private:
  void Answer();

  ReliableChannel* const channel_;
  User* const user_;
  AskedBook asked_;                     // those that wait for transfers
  std::vector<uint64_t> waits_closed_;  // those that wait only for memory that is still open
};

}  // namespace kvxfer

#endif  // KVXFER_AGENT_SESSION_QUIESCE_REPLIES_H_
