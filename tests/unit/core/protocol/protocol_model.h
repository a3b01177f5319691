// A small world for the completion protocol: one initiator (SendBook, SlotPool, ReliableChannel),
// rails that deliver what is in flight when the schedule says so, a control connection that can be
// cut, and one target (ArrivalTracker, SlotTable, ReliableChannel). The schedule is chosen from
// outside, step by step; beside the real classes a plain oracle keeps the truth (which slices
// landed, which frames were taken) and every step is held to it:
//  - a transfer arrives, and its notification is given out, with every slice landed, nothing of it
//    in flight, once, in order, and as soon as that is so;
//  - a slot is freed and used again only with nothing of its lane in flight;
//  - nothing lands after a transfer has ended; an abort is answered with the truth;
//  - at rest every transfer has ended, every slot is free, and the target remembers nothing.
//
// Slices of one lane are interchangeable for the protocol, so they are posted and delivered lowest
// first; that loses no behaviour and keeps the number of states small.
//
// Thread-safety: none. A World is a value: copies go their own ways.

#ifndef KVXFER_TESTS_UNIT_CORE_PROTOCOL_PROTOCOL_MODEL_H_
#define KVXFER_TESTS_UNIT_CORE_PROTOCOL_PROTOCOL_MODEL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "src/core/protocol/arrival_tracker.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/send_book.h"
#include "src/core/protocol/slot_pool.h"
#include "src/core/protocol/slot_table.h"

namespace kvxfer::testing {

class StateWriter;

// The tests that drive the model do less under a sanitizer, and say so.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kModelSanitized = true;
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || \
    __has_feature(undefined_behavior_sanitizer)
inline constexpr bool kModelSanitized = true;
#else
inline constexpr bool kModelSanitized = false;
#endif
#else
inline constexpr bool kModelSanitized = false;
#endif

struct TransferSpec {
  uint8_t slices = 1;  // up to 16; 0: a notification alone
  bool ordered = true;
  bool notification = true;
  bool copied = false;  // the initiator's CPU lands the slices: no lanes
  bool may_abort = false;
};

struct ModelConfig {
  std::string name;
  std::vector<TransferSpec> transfers;
  uint32_t rails = 1;  // 1 or 2
  bool rail_keeps_order = false;
  uint32_t slots = 4;  // of one grant, at most kRangeSlots
  uint32_t first_generation = 0;
  bool interleave = false;        // any transfer may post next; else the first that can
  bool control_reorders = false;  // control messages may overtake each other
  uint32_t idle_lanes = 0;        // how many lanes may be opened before anything is posted to them
  uint32_t rail_failures = 0;
  uint32_t cuts = 0;    // of the control connection
  uint32_t grants = 0;  // more grants that the target may give
};

enum class StepKind : uint8_t {
  kPost,         // transfer a posts its next slice on rail b
  kOpenIdle,     // transfer a opens a lane on rail b and posts nothing yet
  kClose,        // transfer a closes a lane by an empty write
  kDeliver,      // item b of rail a lands
  kToTarget,     // control message a in flight arrives
  kToInitiator,  // the same, the other way
  kFence,        // the target's fence of aborted transfer a is complete
  kDrain,        // failed rail a is fenced and drained at the target, and comes up anew
  // What need not happen:
  kAbort,
  kFailRail,
  kCut,  // bits of a: the initiator, the target had told its latest ack
  kGrant,
};

struct Step {
  StepKind kind = StepKind::kPost;
  uint8_t a = 0;
  uint8_t b = 0;
  bool optional() const { return kind >= StepKind::kAbort; }
};

std::string ToString(Step step);

// XXH3 of the canonical state.
struct Fingerprint {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Fingerprint&) const = default;
};

class World {
 public:
  explicit World(const ModelConfig& config);  // borrowed
  World(const World& other);
  World(World&&) = default;
  World& operator=(World&&) = default;

  // Starts a further batch of transfers, with the budgets of `config`; only at rest.
  void Begin(const ModelConfig& config);

  // Every step that is possible now. None but optional ones: the world is at rest.
  void Enabled(std::vector<Step>& steps) const;
  // Takes one of them; false: the oracle objects, error() says to what.
  bool Apply(Step step);
  // To be asked at rest; false as above.
  bool CheckAtRest();
  const std::string& error() const { return error_; }

  Fingerprint Canonical(std::vector<uint8_t>& scratch) const;

 private:
  static constexpr uint8_t kNone = 0xff;
  using Slices = uint16_t;  // bit i: slice i

  // What was posted with one slot.
  struct Piggybacked {
    SlotRef ref;
    Slices slices = 0;
  };
  struct Discarded {
    SlotRef ref;
    Slices slices = 0;
    uint8_t rail = 0;
    uint8_t epoch = 0;
    bool at_target = false;
    bool answered = false;
  };
  enum class State : uint8_t { kSending, kAborting, kDone, kFailed };
  struct Outbound {
    TransferSpec spec;
    uint64_t id = 0;
    uint64_t order = 0;
    State state = State::kSending;
    bool opened = false;
    bool arrived = false;
    uint8_t frames = 0;  // control frames about it
    SendBook book;
    std::vector<Piggybacked> carried;
    std::vector<Discarded> discarded;  // DISCARD sent, answer not here
  };
  // What is true at the target.
  struct Truth {
    Slices received = 0;
    uint8_t frames = 0;
    bool opened = false;
    bool aborted = false;  // ABORT came before it was whole
    bool fencing = false;
    bool arrived = false;
    bool delivered = false;
    bool ended = false;
  };
  struct Item {
    uint8_t transfer = 0;
    uint8_t slice = kNone;
    bool has_immediate = false;
    SlotRef ref;
  };
  struct Rail {
    bool failed = false;
    uint8_t epoch = 0;  // failures so far
    uint8_t drained = 0;
    std::vector<Item> items;
  };

  void Fail(std::string what);
  bool Check(const absl::Status& status);
  void Require(bool holds, const char* what, uint64_t whom);

  // The initiator.
  bool CanPost(const Outbound& out, uint32_t rail) const;
  bool CanOpenIdle(const Outbound& out, uint32_t rail) const;
  void Post(uint8_t transfer, uint32_t rail);
  void OpenLane(Outbound& out, const SendBook::Slice& slice, uint32_t rail);
  void PutOnRail(uint8_t transfer, uint32_t rail, uint8_t slice, SlotRef ref, bool has_immediate);
  void Close(uint8_t transfer);
  void Abort(uint8_t transfer);
  void FailRail(uint8_t rail_index);
  void TellLanes(Outbound& out);
  void OnReleased(const ReleasedFrame& frame);
  void OnDiscardAck(const DiscardAck& ack);
  void OnAbortAck(const AbortAck& ack);
  template <typename Frame>
  void SendToTarget(Outbound& out, FrameType type, const Frame& frame);

  // The rails and the control connection.
  void Deliver(uint8_t rail_index, uint8_t item_index);
  void Drain(uint8_t rail_index);
  void Cut(uint8_t acks);
  void Pump();
  void Receive(bool at_target, uint8_t index);
  void AtInitiator(const ReliableChannel::Incoming& frame);

  // The target and its oracle.
  void AtTarget(const ReliableChannel::Incoming& frame);
  void TakeDiscard(const DiscardFrame& frame);
  void LanesDrained(uint8_t transfer);
  void Fence(uint8_t transfer);
  void Grant();
  void TakeActions();
  void CheckDelivered(const ArrivalTracker::Delivered& delivered);
  void CheckNothingLate();
  bool Past(const Outbound& out) const;
  bool InFlight(uint8_t transfer) const;
  bool InFlight(SlotRef ref) const;
  uint8_t IndexOf(uint64_t id);

  // The canonical state.
  void WriteTransfers(StateWriter& w) const;
  void WriteRails(StateWriter& w) const;

  const ModelConfig* config_;
  uint64_t first_id_ = 1;
  uint64_t next_order_ = 1;
  std::vector<Outbound> out_;
  std::vector<Truth> truth_;
  std::array<Rail, 2> rails_;
  SlotPool pool_;
  ReliableChannel initiator_;
  ReliableChannel target_;
  std::vector<std::string> to_target_;
  std::vector<std::string> to_initiator_;
  std::unique_ptr<SlotTable> table_;
  std::unique_ptr<ArrivalTracker> tracker_;
  uint32_t failures_left_ = 0;
  uint32_t cuts_left_ = 0;
  uint32_t grants_left_ = 0;
  uint32_t idle_left_ = 0;
  std::string error_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_PROTOCOL_MODEL_H_
