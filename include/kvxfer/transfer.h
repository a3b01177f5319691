// A transfer: one Write or Read of many blocks, or a notification alone, from its posting to its
// one end.
//
// Thread-safety: every method may be called from any thread; copies of a Transfer are handles to
// the same transfer. A handle may outlive the agent (its calls then answer from the final state).
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

// What became of the notification at the target.
enum class Delivery : uint8_t {
  kNone,          // none was asked for
  kPending,       // the transfer is active
  kDelivered,     // the target has it (or will hand it out after those before it)
  kNotDelivered,  // the target never will
  kUnknown,       // the peer could not be asked
};

enum class NotifyOrder : uint8_t {
  kPosted,    // after every earlier kPosted notification of this agent to this peer
  kAnyOrder,  // as soon as its own bytes are visible
};

struct TransferOptions {
  // Reaches the target application after every byte is visible there. At most 64 KiB.
  std::optional<std::string> notification{};
  NotifyOrder order = NotifyOrder::kPosted;
  // Time from posting to the end; must be positive. The end comes within 10 % of it.
  Duration deadline = std::chrono::seconds(30);
  // Higher goes first among the transfers that are being sent to the same peer, and among those
  // that wait for that (beyond AgentOptions::max_active_transfers), but for notifications in
  // kPosted order, which begin in that order.
  int priority = 0;
  // Use this backend ("tcp", "shm", ...) or fail; empty: the best that reaches the peer.
  std::string backend{};
  // Ready fence: when set, nothing is sent before *ready is non-zero (the engine looks at least
  // once a millisecond, with acquire order). Must stay valid until the transfer has ended.
  const std::atomic<uint32_t>* ready = nullptr;
  // Stream order: nothing of the local memory is read (Write), or overwritten (Read), and no
  // notification told, before what is in this CUDA stream at the time of the call is over. For host
  // memory as well. Posting puts an event into the stream, on the calling thread, and returns an
  // error where that cannot be; should the work in the stream fail, the transfer does.
  std::optional<CudaStream> after{};
  // The same, for a CUevent (cudaEvent_t) of the application's, as a number, that was recorded
  // before the call; 0: none. It stays valid, and is not recorded anew, until the transfer has
  // ended.
  uint64_t after_event = 0;
};

struct TransferStats {
  uint64_t bytes = 0;
  uint64_t blocks = 0;
  uint64_t slices = 0;
  Duration queued{};   // posting → first slice handed to the backend
  Duration wire{};     // first slice → end
  Duration total{};    // posting → end
  std::string path{};  // backend that carried it, e.g. "tcp"
};

namespace internal {
class TransferRecord;
}

class Transfer {
 public:
  Transfer() = default;

  // Blocks until the transfer ends or `timeout` passes; drives the agent's progress meanwhile.
  // OK: done. DeadlineExceeded with the text "still active": `timeout` passed, the transfer goes
  // on. Else the transfer's own end: Unavailable (peer or path lost), ResourceExhausted (no
  // descriptors for a connection; the peer is not lost), DeadlineExceeded, Cancelled,
  // FailedPrecondition (peer restarted, region gone), PermissionDenied, Internal.
  // FailedPrecondition when called from a callback.
  absl::Status Wait(Duration timeout) const;

  // The state now; never blocks.
  TransferState Poll() const;

  // The end's status: OK while active or done.
  absl::Status status() const;

  // Asks for the transfer to end. It ends as done if the target already had all of it, else as
  // cancelled, when it is quiet or, marked quarantined, after AgentOptions::cancel_grace.
  void Cancel() const;

  // Runs `callback` once on the agent's dispatcher thread after the end (at once if it has
  // ended; never where the agent has been destroyed before the call). At most one callback a
  // transfer; a second replaces one that has not run.
  void OnEnd(std::function<void(const Transfer&)> callback) const;

  // Stream order: what is put into `stream` after this call begins after the transfer has ended,
  // however it ends: status() says how, also by the time that work runs. Returns at once; no thread
  // of the application waits. If it has ended, nothing is put into the stream.
  // InvalidArgument: not a stream that kvxfer can use, and why. Unimplemented, Unavailable: no
  // CUDA here. docs/gpu.md has what to mind.
  absl::Status StreamWait(const CudaStream& stream) const;

  // True from an end that could not be made quiet in time until the memory of both sides is quiet.
  bool quarantined() const;
  // Blocks until the transfer has ended and is not quarantined. DeadlineExceeded on time-out.
  absl::Status WaitQuiet(Duration timeout) const;

  Delivery delivery() const;
  TransferStats stats() const;
  uint64_t id() const;       // of this agent; rises with every posting
  std::string peer() const;  // the target's name; of several, with commas

 private:
  friend class internal::TransferRecord;
  explicit Transfer(std::shared_ptr<internal::TransferRecord> record)
      : record_(std::move(record)) {}

  // Shared between the application's handles and the progress engine, whichever lets go last.
  std::shared_ptr<internal::TransferRecord> record_;
};

const char* ToString(TransferState state);
const char* ToString(Delivery delivery);

}  // namespace kvxfer

#endif  // KVXFER_TRANSFER_H_
