// A transfer: one Write or Read of many blocks, or a bare notification. It begins when it is posted
// and ends exactly once.
//
// Thread-safety: every method may be called from any thread. Copies of a Transfer are handles to
// the same transfer.
// Lifetime: a handle may outlive the agent; its calls then answer from the final state.
//
// Example:
//   auto transfer = agent->Write("decode-0", blocks, {.notification = "request 7"});
//   if (!transfer.ok()) return transfer.status();
//   absl::Status end = transfer->Wait(std::chrono::seconds(5));

#ifndef KVXFER_TRANSFER_H_
#define KVXFER_TRANSFER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kvxfer/types.h"

namespace kvxfer {

enum class TransferState : uint8_t { kActive, kDone, kFailed, kCancelled, kDeadlineExceeded };

// What happened to the notification at the target.
enum class Delivery : uint8_t {
  kNone,          // the transfer has no notification
  kPending,       // the transfer is active
  kDelivered,     // the target has it; its application gets it after those ordered before it
  kNotDelivered,  // the target's application will never get it
  kUnknown,       // the target was told of the transfer, and did not answer in time
};

enum class NotifyOrder : uint8_t {
  kPosted,    // after every earlier kPosted notification of this agent to this peer
  kAnyOrder,  // as soon as the transfer's own bytes are visible
};

struct TransferOptions {
  // Delivered to the target's application after every byte is visible there. At most 64 KiB.
  std::optional<std::string> notification{};
  NotifyOrder order = NotifyOrder::kPosted;
  // Time from posting to the end; positive, and at most a year. The transfer ends at most
  // 10 % later, and up to 5 s later where a NIC keeps an operation.
  Duration deadline = std::chrono::seconds(30);
  // Transfers with a higher priority go first, among those that are being sent to the same peer and
  // among those that wait to be sent (beyond AgentOptions::max_active_transfers). Transfers whose
  // notification has kPosted order still begin in the order of posting.
  int priority = 0;
  // Use this backend ("tcp", "shm", ...) or fail; empty: the best one that reaches the peer.
  std::string backend{};
  // Ready flag: if set, nothing is sent before *ready is non-zero. The engine loads it with acquire
  // order at least once a millisecond. It must stay valid until the transfer has ended.
  const std::atomic<uint32_t>* ready = nullptr;
  // CUDA stream order: a Write does not read local memory, a Read does not overwrite local memory,
  // and no notification is delivered, before the work that is in this CUDA stream at the time of
  // the call has finished. This holds for host memory too. Posting records an event in the stream,
  // on the calling thread; if that fails, posting returns the error. If the work in the stream
  // fails, so does the transfer.
  std::optional<CudaStream> after{};
  // The same for an event: the number of a CUevent (cudaEvent_t) that the application recorded
  // before the call; 0: none. It must stay valid, and must not be recorded again, until the
  // transfer has ended.
  uint64_t after_event = 0;
  // If set, the end of the transfer is an event of the kind kTransferEnd with this word
  // (Agent::PollEvents). Its place in the queue is taken now, so the queue never overflows; posting
  // returns ResourceExhausted while kMaxUnreadEnds are taken. Empty: there is no such event, and
  // nothing to poll.
  std::optional<uint64_t> user_word{};
};

struct TransferStats {
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  uint64_t slices = 0;
  Duration queued{};   // posting → first slice handed to the backend
  Duration wire{};     // first slice → end
  Duration total{};    // posting → end
  std::string path{};  // the backend that moved the bytes, e.g. "tcp"
};

namespace internal {
class TransferRecord;
}

class Transfer {
 public:
  Transfer() = default;

  // Blocks until the transfer ends or `timeout` passes, and drives the agent's progress meanwhile.
  // OK: the transfer is done. kTimedOut: `timeout` passed and the transfer goes on.
  // FailedPrecondition: called from a callback. Otherwise the status that the transfer ended with:
  // Unavailable (peer or path lost, also by a restart of the peer), ResourceExhausted (no
  // descriptors for a connection; the peer is not lost), DeadlineExceeded (its deadline passed),
  // Cancelled, FailedPrecondition (the metadata is of an incarnation that is gone, region gone),
  // PermissionDenied, Internal.
  absl::Status Wait(Duration timeout) const;

  // The present state; never blocks.
  TransferState Poll() const;

  // The status that the transfer ended with; OK while it is active or if it is done.
  absl::Status status() const;

  // Asks the transfer to end; does not wait. If the target already had all of it, it ends as done.
  // Otherwise it ends as cancelled once it is quiet, or after AgentOptions::cancel_grace, marked
  // quarantined.
  void Cancel() const;

  // Calls `callback` once on the agent's dispatcher thread after the end; if the transfer has
  // already ended, the call is due at once. After the agent has been destroyed, OnEnd does nothing.
  // A transfer has at most one callback; a second one replaces a callback that has not run.
  void OnEnd(std::function<void(const Transfer&)> callback) const;

  // Asks for an event of the kind kWatchedEnd with this word once the transfer has ended, or now if
  // it has. Independent of TransferOptions::user_word and OnEnd. A transfer has at most one such
  // event in the queue: a second call before the event is polled replaces its word.
  // ResourceExhausted: kMaxUnreadEnds of these ends are asked for and not taken.
  // FailedPrecondition: the agent is gone.
  absl::Status Watch(uint64_t user_word) const;

  // CUDA stream order: work that is submitted to `stream` after this call starts after the transfer
  // has ended, however it ends; status() gives the result, also to code that runs as part of that
  // work. Returns at once; no application thread waits. If the transfer has already ended, nothing
  // is submitted to the stream.
  // InvalidArgument: kvxfer cannot use the stream; the message says why. Unimplemented,
  // Unavailable: no CUDA here. FailedPrecondition: CUDA_DEVICE_MAX_CONNECTIONS=1, where the stream
  // would hold up the transfer's own copies. docs/gpu.md lists what to watch for.
  absl::Status StreamWait(const CudaStream& stream) const;

  // True if the transfer ended before it could be made quiet: bytes of it may still be written at
  // its destination. Its source is free, unless something that does not stop, such as a GPU that
  // hangs, still reads it. Ends with the target's answer, with the proven death of the peer, or
  // with a new session of the two agents; without any of them it stays true. No event reports its
  // end.
  bool quarantined() const;
  // Blocks until the transfer has ended and is no longer quarantined. kTimedOut: not within
  // `timeout`.
  absl::Status WaitQuiet(Duration timeout) const;

  Delivery delivery() const;
  TransferStats stats() const;
  uint64_t id() const;       // unique within the agent; increases with every posting
  std::string peer() const;  // the target's name; for a group, all names separated by commas

 private:
  friend class internal::TransferRecord;
  explicit Transfer(std::shared_ptr<internal::TransferRecord> record)
      : record_(std::move(record)) {}

  // shared_ptr: the application's handles and the progress engine share the record, and any of them
  // may be the last to release it.
  std::shared_ptr<internal::TransferRecord> record_;
};

const char* ToString(TransferState state);
const char* ToString(Delivery delivery);

}  // namespace kvxfer

#endif  // KVXFER_TRANSFER_H_
