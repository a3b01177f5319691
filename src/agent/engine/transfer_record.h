// One transfer as the application's handles and the progress engine share it: what was asked
// (immutable) and what became of it (published once).
//
// Thread-safety: the immutable part freely; the published part through its methods.

#ifndef KVXFER_AGENT_ENGINE_TRANSFER_RECORD_H_
#define KVXFER_AGENT_ENGINE_TRANSFER_RECORD_H_

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
#include "src/core/protocol/wire_format.h"
#include "src/cuda/stream_order.h"
#include "src/cuda/stream_word.h"

namespace kvxfer {

class Engine;

enum class TransferKind : uint8_t { kWrite, kRead, kNotify };

// Of one that moves blocks.
inline Direction DirectionOf(TransferKind kind) {
  return kind == TransferKind::kWrite ? Direction::kWrite : Direction::kRead;
}

namespace internal {

class TransferGroup;

class TransferRecord {
 public:
  TransferRecord();
  ~TransferRecord();

  // Reads under a lease that the peer holds.
  struct Fetch {
    std::string lease;
    std::string contents;
    uint64_t blocks_hash = 0;
    Duration wait{};  // for the grant
    uint32_t readers = 0;
  };

  // --- What was asked: set before submission, then constant. ---
  uint64_t id = 0;
  std::string peer;
  TransferKind kind = TransferKind::kWrite;
  TransferOptions options;
  Notice notice = Notice::kNotification;  // what options.notification is, where there is one
  std::optional<Fetch> fetch;
  uint64_t stream = 0;  // those of one are sent in order, one after the other; 0: of none
  // What must be over in a CUDA stream before it begins; null: nothing. Members of a group share
  // it.
  std::shared_ptr<cuda::StreamPoint> after;
  BlockList blocks;                          // lets go of its ids before the end is published
  std::shared_ptr<const RegionTable> local;  // that `blocks` indexes
  std::shared_ptr<const RegionTable> remote;
  Incarnation incarnation;  // of the peer whose regions `blocks` names
  Time posted{};
  Time deadline{};
  bool cuda = false;                      // some of the memory is a GPU's
  bool child = false;                     // of the stager
  std::shared_ptr<TransferRecord> whole;  // of which this is a member
  std::unique_ptr<TransferGroup> group;   // of the members of this one
  // Where handles find the engine; empty once the agent is gone.
  std::weak_ptr<Engine> engine;

  // --- What became of it. ---
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

  // Publishes the one end and returns the callback to run, if any. Engine only, once.
  std::function<void(const Transfer&)> Publish(End end);
  void ClearQuarantine() { quarantined_.store(false, std::memory_order_release); }
  // As Transfer::StreamWait.
  absl::Status StreamWait(const CudaStream& stream);
  // True when it has ended already: the caller runs the callback itself.
  bool SetCallback(std::function<void(const Transfer&)> callback);

 private:
  absl::StatusOr<std::optional<cuda::StreamWord::Name>> EndWord();

  std::atomic<TransferState> state_{TransferState::kActive};
  std::atomic<bool> quarantined_{false};
  End end_;        // constant once `state_` says so
  std::mutex mu_;  // guards all below
  std::function<void(const Transfer&)> callback_;
  std::optional<cuda::StreamWord> word_;  // set at the end; from the first StreamWait on
};

}  // namespace internal

using TransferPtr = std::shared_ptr<internal::TransferRecord>;

}  // namespace kvxfer

#endif  // KVXFER_AGENT_ENGINE_TRANSFER_RECORD_H_
