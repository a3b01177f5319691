// One transfer, as the application's handles and the engine share it: the request (immutable) and
// its result (published once).
//
// Thread-safety: the request may be read by any thread; the result through its methods.

#ifndef KVXFER_AGENT_ENGINE_TRANSFER_RECORD_H_
#define KVXFER_AGENT_ENGINE_TRANSFER_RECORD_H_

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "kvxfer/transfer.h"
#include "src/core/base/clock.h"
#include "src/core/plan/block_list.h"
#include "src/core/protocol/send_tracker.h"
#include "src/core/protocol/wire_format.h"
#include "src/cuda/stream_order.h"
#include "src/cuda/stream_word.h"

namespace kvxfer {

class TransferService;

enum class TransferKind : uint8_t { kWrite, kRead, kNotify };

// `kind` must be one that moves blocks.
inline Direction DirectionOf(TransferKind kind) {
  return kind == TransferKind::kWrite ? Direction::kWrite : Direction::kRead;
}

// Where the event queue keeps ends: those of kTransferEnd, those of kWatchedEnd.
enum class EndLane : uint8_t { kPosted, kWatched };
inline constexpr size_t kEndLanes = 2;

namespace internal {

class TransferGroup;
class TransferRecord;

// A transfer's place in one lane of the event queue, which alone uses it.
struct EndPlace {
  uint64_t order = 0;
  uint64_t user_word = 0;
  bool queued = false;
  std::shared_ptr<TransferRecord> next{};  // the one behind it in the lane
};

class TransferRecord {
 public:
  TransferRecord();
  ~TransferRecord();

  // --- The request: set before submission, then constant. ---
  uint64_t id = 0;
  std::string peer;
  TransferKind kind = TransferKind::kWrite;
  TransferOptions options;
  Notice notice = Notice::kNotification;  // what options.notification contains, if it is set
  std::optional<LeasedRead> fetch;
  // Transfers of one layer stream are sent one after the other, in order; 0: none.
  uint64_t layer_stream = 0;
  // What the CUDA stream must have finished before the transfer begins; null: nothing. The members
  // of a group share it.
  std::shared_ptr<cuda::StreamPoint> after;
  BlockList blocks;  // releases its ids once it has ended and no op walks them
  std::shared_ptr<const RegionTable> local;   // the table that `blocks` indexes
  std::shared_ptr<const RegionTable> remote;  // likewise
  Incarnation incarnation;  // the incarnation of the peer whose regions `blocks` names
  Time posted{};
  Time deadline{};                        // of CLOCK_MONOTONIC
  bool cuda = false;                      // some of the memory is GPU memory
  bool child = false;                     // the stager made it
  bool from_lent = false;                 // and it reads out of a buffer that the target has lent
  std::shared_ptr<TransferRecord> whole;  // the record of the group that this is a member of
  std::unique_ptr<TransferGroup> group;   // set in the record of a group
  // How handles find the agent; expired once it is gone.
  std::weak_ptr<TransferService> service;
  TransferService* poster = nullptr;  // the same, for the driver: valid until the engine is closed

  std::array<EndPlace, kEndLanes> places{};  // guarded by the lock of the event queue

  // --- The result. ---
  struct End {
    TransferState state = TransferState::kActive;
    absl::Status status{};
    Delivery delivery = Delivery::kNone;
    bool quarantined = false;
    TransferStats stats{};
  };

  TransferState state() const { return state_.load(std::memory_order_acquire); }
  bool ended() const { return state() != TransferState::kActive; }
  bool quarantined() const { return quarantined_.load(std::memory_order_acquire); }
  End end() const;

  static Transfer Handle(std::shared_ptr<TransferRecord> record) {
    return Transfer(std::move(record));
  }

  using UserWords = std::array<std::optional<uint64_t>, kEndLanes>;
  // What is due once the end is published: the callback, if there is one, and the event of each
  // lane that has a word.
  struct Due {
    std::function<void(const Transfer&)> callback{};
    UserWords words{};
  };
  // Publishes the end. The driver calls it, once.
  Due Publish(End&& end);
  // Asks that Publish returns `user_word` for `lane`. kEnded: it has been called.
  enum class Asked : uint8_t { kFirst, kAgain, kEnded };
  Asked AskEnd(EndLane lane, uint64_t user_word);
  void ClearQuarantine() { quarantined_.store(false, std::memory_order_release); }
  // See Transfer::StreamWait.
  absl::Status StreamWait(const CudaStream& stream);
  // True: the transfer has ended already, and the caller runs the callback itself.
  bool SetCallback(std::function<void(const Transfer&)> callback);

 private:
  absl::StatusOr<std::optional<cuda::StreamWord::Name>> EndWord();

  std::atomic<TransferState> state_{TransferState::kActive};
  std::atomic<bool> quarantined_{false};
  End end_;        // constant once `state_` says that the transfer has ended
  std::mutex mu_;  // guards everything below
  std::function<void(const Transfer&)> callback_;
  UserWords words_;
  std::optional<cuda::StreamWord> word_;  // from the first StreamWait on; set at the end
};

}  // namespace internal

using TransferPtr = std::shared_ptr<internal::TransferRecord>;

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_TRANSFER_RECORD_H_
