// A small world for the completion protocol: one initiator (SendTracker with what it consists of,
// ReliableChannel), rails that deliver what is in flight when the schedule says so, a control
// connection that can be cut, and one target (TargetSession with its ArrivalTracker, SlotTable,
// ReliableChannel). The
// schedule is chosen from outside, step by step; beside the real classes a plain oracle keeps the
// truth (which slices landed, which frames were taken) and every step is held to it:
//  - a transfer arrives, and its notification is given out, with every slice landed, nothing of it
//    in flight, once, in order, and as soon as that is so;
//  - a slot is freed and used again only with nothing of its lane in flight;
//  - nothing lands after the target has let go of a transfer; an abort is answered with the truth;
//  - the application of the initiator is told one end of each transfer, with no op of it in flight:
//    done only if all of it landed; "delivered" or "not delivered" only if that is so for ever; not
//    quarantined only if nothing of it can land any more; and a quarantine ends only then;
//  - at rest every transfer has ended, every slot is free, and neither side remembers anything.
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
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/core/protocol/arrival_tracker.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/send_tracker.h"
#include "src/core/protocol/slot_table.h"
#include "src/core/protocol/target_session.h"

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
  uint32_t alone_failures = 0;  // ops that fail as on a failing rail, where the rail does not fail
  bool late_completions = false;  // the initiator learns later that an op is over, else at once
  uint32_t impatience = 0;        // how often the time of all ends that are under way is up
  uint32_t cuts = 0;              // of the control connection
  uint32_t grants = 0;            // more grants that the target may give
  uint32_t losses = 0;            // of the session, with all its connections
};

enum class StepKind : uint8_t {
  kPost,         // transfer a posts its next slice on rail b
  kOpenIdle,     // transfer a opens a lane on rail b and posts nothing yet
  kClose,        // transfer a closes a lane by an empty write
  kDeliver,      // item b of rail a lands
  kToTarget,     // control message a in flight arrives
  kToInitiator,  // the same, the other way
  kFence,        // the target's fence of aborted transfer a is complete
  kAskFence,     // the target is asked to fence failed rail a
  kDrain,        // the target has fenced failed rail a
  kFenced,       // the initiator learns that, and the rail comes up anew
  kComplete,     // the oldest op of transfer a completes at the initiator
  kExplain,      // suspected rail a did not fail
  kRejoin,       // after a loss: every old connection is down at the target, a new session begins
  // What need not happen:
  kAbort,
  kFailRail,
  kCut,  // bits of a: the initiator, the target had told its latest ack
  kGrant,
  kSuspect,  // the oldest op of transfer a fails as on a failing rail
  kTimeUp,
  kLose,
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
  struct Carried {
    SlotRef ref;
    Slices slices = 0;
  };
  struct Discarded {
    SlotRef ref;
    Slices slices = 0;
  };
  // An op that was posted and has not completed.
  struct Posted {
    uint8_t rail = 0;
    uint8_t slice = kNone;
  };
  // What the initiator has said and was told; its state is in the tracker.
  struct Outbound {
    TransferSpec spec;
    uint64_t id = 0;
    uint64_t order = 0;
    bool aborting = false;  // ABORT is sent
    bool answered = false;  // and its answer is here
    bool ended = false;     // the application knows the end
    bool quarantined = false;
    bool orphaned = false;  // its quarantine ends when a new session begins
    TransferState end = TransferState::kActive;
    Delivery delivery = Delivery::kNone;
    uint8_t frames = 0;  // control frames about it
    std::vector<Posted> posted;
    std::vector<Carried> carried;
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
    bool suspected = false;  // an op of it has failed, perhaps alone
    bool fencing = false;    // the target does so, since it failed
    bool fenced = false;     // the target has done so
    std::vector<Item> items;
  };

  void BeginSession();
  void EnabledOfTransfers(std::vector<Step>& steps) const;
  void EnabledOfRails(std::vector<Step>& steps) const;

  void Fail(std::string what);
  bool Check(const absl::Status& status);
  void Require(bool holds, const char* what, uint64_t whom);

  // The initiator.
  SendTracker::Transfer* Sending(uint8_t transfer) const {
    return sender_->Find(out_[transfer].id);
  }
  bool CanPost(uint8_t transfer, uint32_t rail) const;
  bool CanOpenIdle(uint8_t transfer, uint32_t rail) const;
  void Begin(Outbound& out);
  std::optional<SendTransfer::Offered> Offer(uint8_t transfer, uint32_t rail);
  void Post(uint8_t transfer, uint32_t rail);
  void PutOnRail(uint8_t transfer, uint32_t rail, uint8_t slice, SlotRef ref, bool has_immediate);
  void Close(uint8_t transfer);
  void Complete(uint8_t transfer);
  void Suspect(uint8_t transfer);
  void Explain(uint8_t rail_index);
  void Abort(uint8_t transfer);
  void TimeUp();
  void FailRail(uint8_t rail_index);
  void RailFenced(uint8_t rail_index);
  void FinishPosting();
  void CheckReleased(const ReleasedFrame& frame);
  void CheckDiscardAck(const DiscardAck& ack);
  void CheckAbortAck(const AbortAck& ack);
  // What the tracker has pushed into the channel, and what it wants done.
  void Observe();
  void ObserveDiscard(const DiscardFrame& frame);
  void TakeSenderActions();
  void CheckEnd(const SendTracker::Action& end);

  void Settle();

  // The rails and the control connection.
  void Deliver(uint8_t rail_index, uint8_t item_index);
  void AskFence(uint8_t rail_index);
  void Drain(uint8_t rail_index);
  void Cut(uint8_t acks);
  void Pump();
  void Receive(bool at_target, uint8_t index);
  void AtInitiator(const ReliableChannel::Incoming& frame);

  // The target and its oracle.
  void AtTarget(const ReliableChannel::Incoming& frame);
  void Fence(uint8_t transfer);
  void Grant();
  void Lose();
  void Rejoin();
  void TakeActions();
  void Take(const TargetSession::Actions& actions);
  void CheckDelivered(const ArrivalTracker::Delivered& delivered);
  void CheckNothingLate();
  bool Past(const Outbound& out) const;
  bool InFlight(uint8_t transfer) const;
  bool CanLand(uint8_t transfer) const;
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
  Time now_ = Time(Duration(1));
  std::unique_ptr<ReliableChannel> initiator_;
  std::unique_ptr<SendTracker> sender_;
  uint64_t observed_ = 0;  // the last frame of initiator_ that Observe saw
  bool fenced_ = false;    // a rail was fenced in this step
  ReliableChannel target_;
  std::vector<std::string> to_target_;
  std::vector<std::string> to_initiator_;
  std::unique_ptr<SlotTable> table_;
  std::unique_ptr<TargetSession> receiver_;
  uint32_t failures_left_ = 0;
  uint32_t alone_left_ = 0;
  uint32_t impatience_left_ = 0;
  uint32_t cuts_left_ = 0;
  uint32_t grants_left_ = 0;
  uint32_t losses_left_ = 0;
  bool lost_ = false;  // the session, and no new one has begun
  uint32_t idle_left_ = 0;
  std::string error_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_UNIT_CORE_PROTOCOL_PROTOCOL_MODEL_H_
