// Counts and reorders, at the target, what one session's initiator sends over any number of
// unordered rails, so that a transfer is known exactly when all of it is visible and notifications
// come out once and in order. Pure: it is told of frames and immediates, and answers with a list
// of actions. docs/architecture.md states the protocol; tests/unit/arrival_tracker_* hold it to a
// plain oracle, exhaustively for small cases.
//
// Inputs come from two sources that do not order each other: control frames (in the session's
// order, once each: ReliableChannel) and immediates (any time, any order).
//
// Rules:
//  - An immediate counts in its slot whether or not its lane has been opened.
//  - A lane is exact when its slot has as many arrivals as OPEN or AMEND says; its slot is freed
//    at once (arrivals 0, generation + 1). More arrivals, an immediate of another generation or
//    of another session's slot: a protocol error; the session must fail.
//  - A transfer is whole when it is open, no discarded lane awaits its replacement, and each lane
//    is exact. Whole → kArrived, and its notification is delivered in order.
//  - Order: kPosted transfers carry numbers 1, 2, 3, …; each number is either delivered or skipped
//    (abort), exactly once; a notification is given out when all numbers before it are past.
//    Order 0: given out when whole. A transfer with a number but no notification only moves on.
//  - ABORT of a transfer that is opened and no longer known: it was whole → acknowledged as
//    delivered at once. Else its number is skipped at once, nothing of it is delivered, its
//    lanes wait for OnFenced; then their slots are freed and it is acknowledged as not
//    delivered. Immediates for those lanes in between are swallowed. It names every lane that was
//    posted to, is not known to be free and was not named by a DISCARD.
//  - DISCARD of lanes: exact ones are answered `complete` at once; the others wait for
//    OnLanesDrained (no immediate of theirs can arrive any more), then are freed and answered
//    not complete. A lane that OPEN or AMEND had named is then missing: the transfer cannot be
//    whole until AMEND has brought one lane for each missing one (never more: two lanes for one
//    could hide that another is missing), or ABORT. DISCARD may name lanes that no OPEN or AMEND
//    has named yet; the later one then leaves them out. DISCARD after ABORT is answered by the
//    abort's acknowledgement alone.
//  - A slot that ABORT or DISCARD names is a lane of the transfer, exact ones included, or at the
//    generation named. DISCARD of a transfer that ended meanwhile finds it one generation further,
//    never more: the initiator cannot know of the FREE, use the slot again and have that lane
//    opened before this frame, for frames come in order. Anything else is a protocol error.
//
// Thread-safety: none; owned by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_ARRIVAL_TRACKER_H_
#define KVXFER_CORE_PROTOCOL_ARRIVAL_TRACKER_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/core/protocol/slot_table.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class ArrivalTracker {
 public:
  struct Delivered {
    uint64_t transfer = 0;
    Notice notice = Notice::kNone;
    std::string notification{};
  };

  using Deliveries = absl::InlinedVector<Delivered, 1>;  // seldom more

  // What became known since the last TakeActions, in this order of doing: deliveries first (they
  // publish to the application), then what the initiator is told.
  struct Actions {
    Deliveries deliver{};
    ReleasedFrame released;
    // Transfers whose data the backends must fence; answer each with OnFenced.
    std::vector<uint64_t> fence{};
    bool empty() const { return deliver.empty() && released.empty() && fence.empty(); }
  };

  // `slots` outlives the tracker; `owner` is this session's name there.
  ArrivalTracker(SlotTable* slots, SlotTable::Owner owner) : slots_(slots), owner_(owner) {}

  // Each returns InvalidArgument for a protocol error, after which the session must be failed and
  // the tracker not be used again.
  absl::Status OnOpen(OpenFrame frame);
  absl::Status OnAmend(const AmendFrame& frame);
  absl::Status OnAbort(const AbortFrame& frame);
  absl::Status OnDiscard(const DiscardFrame& frame);
  absl::Status OnImmediate(SlotRef ref);
  // No byte and no immediate of the aborted `transfer` is on the way any more.
  absl::Status OnFenced(uint64_t transfer);
  // The rails of all lanes of `transfer` that wait after DISCARD are fenced and drained: of every
  // DISCARD so far, so with two failed rails only after the second. Nothing waits: no effect.
  absl::Status OnLanesDrained(uint64_t transfer);

  bool has_actions() const { return !actions_.empty(); }
  Actions TakeActions();

  // The session is over, and so a number that is missing can come no more: gives out, in order,
  // the notifications of all transfers that were whole, for their initiator knows them as done. The
  // tracker must not be used again.
  Deliveries GiveOut();

  // Notifications that were opened and neither given out nor aborted, and their bytes: what the
  // session holds of the credit that its initiator was given.
  uint64_t held_notifications() const { return held_notifications_; }
  uint64_t held_bytes() const { return held_bytes_; }

  // For bounds and sweeps: transfers known and not ended, and runs of numbers recorded ahead of the
  // order. Neighbouring skipped numbers are one run, so runs are bounded by the transfers that are
  // active at the initiator and by the notifications it has credit for.
  size_t active() const { return transfers_.size(); }
  size_t waiting_in_order() const { return ahead_.size(); }

 private:
  friend struct ProtocolModelAccess;  // the tests' search copies and compares states

  enum class Phase : uint8_t { kUnopened, kOpen, kAborting };
  struct Lane {
    SlotRef ref{};
    uint32_t expected = 0;  // 0: unknown (discarded or aborted before OPEN)
    bool exact = false;     // its slot is freed
    bool draining = false;  // discarded, waits for OnLanesDrained
  };
  struct Inbound {
    Phase phase = Phase::kUnopened;
    uint64_t order = 0;
    Notice notice = Notice::kNone;
    std::string notification{};
    std::vector<Lane> lanes{};
    size_t missing = 0;  // lanes named and discarded whose replacement AMEND has not brought
  };
  // Order numbers up to `last` that are past but not yet reached: one with a delivery, or a run
  // without.
  struct Past {
    uint64_t last = 0;
    Delivered delivered{};
    bool deliver() const { return delivered.notice != Notice::kNone; }
  };

  absl::Status AddLanes(uint64_t id, Inbound& transfer, const std::vector<LaneFrame>& lanes);
  absl::Status AddAbortedLanes(const AbortFrame& frame, Inbound& transfer);
  absl::Status DiscardLane(uint64_t id, SlotRef ref);
  absl::Status CheckExact(uint64_t id, const Inbound& transfer, Lane& lane);
  static Lane* FindLane(Inbound& transfer, SlotRef ref);
  // Nothing in `transfer` is on the way or awaited.
  static bool IsWhole(const Inbound& transfer);
  absl::Status EndIfWhole(uint64_t id);
  absl::Status End(uint64_t id, uint64_t order, Notice notice, std::string notification);
  // Puts order number `order` behind: what is next in order is given out.
  absl::Status Record(uint64_t order, Past past);
  bool IsPast(uint64_t order) const;
  void FreeSlot(SlotRef ref);
  void GiveOut(Delivered delivered);
  void Unhold(const std::string& notification);
  // The slot of this session that `ref` names, whatever its generation.
  absl::StatusOr<SlotTable::Slot*> Resolve(SlotRef ref);
  absl::StatusOr<SlotTable::Slot*> ResolveInUse(SlotRef ref);

  SlotTable* const slots_;
  const SlotTable::Owner owner_;
  std::unordered_map<uint64_t, Inbound> transfers_;
  std::unordered_map<uint32_t, uint64_t> lane_of_slot_;  // slot → transfer, for known lanes
  std::map<uint64_t, Past> ahead_;
  uint64_t next_order_ = 1;
  uint64_t held_notifications_ = 0;
  uint64_t held_bytes_ = 0;
  Actions actions_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_ARRIVAL_TRACKER_H_
