// Counts and orders, at the target, what the initiator of one session sends over any number of
// unordered rails. A transfer is complete exactly when all of it is visible, and notifications are
// delivered once and in order. Pure: it receives frames and immediates, and answers with a list of
// actions. docs/architecture.md states the protocol; tests/unit/core/protocol/arrival_tracker_*
// compare this class with a plain oracle, exhaustively for small cases.
//
// Inputs come from two sources that are not ordered relative to each other: control frames (each
// once, in the session's order: ReliableChannel) and immediates (at any time, in any order).
//
// Rules:
//  - An immediate counts in its slot, whether or not its lane has been opened.
//  - A lane is exact when its slot has as many arrivals as OPEN or AMEND says. Its slot is then
//    freed at once (arrivals 0, generation + 1). More arrivals, an immediate of another generation,
//    or an immediate for another session's slot is a protocol error, and the session must fail.
//  - A transfer is whole when it is open, no discarded lane awaits its replacement, and each lane
//    is exact. Then it is reported as arrived, and its notification is delivered in order.
//  - Order: kPosted transfers have numbers 1, 2, 3, …. Each number is either delivered or skipped
//    (by an abort), exactly once. A notification is delivered when all numbers before it are past.
//    With order 0 it is delivered when the transfer is whole. A transfer with a number but without
//    a notification only advances the order.
//  - ABORT of a transfer that was opened and is no longer known: it was whole, so it is
//    acknowledged as delivered at once. Otherwise its number is skipped at once, nothing of it is
//    delivered, and its lanes wait for OnFenced; then their slots are freed and the abort is
//    acknowledged as not delivered. Immediates for these lanes are ignored until then. ABORT names
//    every lane that was posted to, is not known to be free, and was not named by a DISCARD.
//  - DISCARD of lanes: exact lanes are answered `complete` at once. The others wait for
//    OnLanesDrained (none of their immediates can arrive any more); then they are freed and
//    answered not complete. A lane that OPEN or AMEND had named is missing from then on: the
//    transfer is not whole until AMEND has brought one lane for each missing one (never more: two
//    lanes for one could hide that another is missing), or until ABORT. DISCARD may name lanes that
//    no OPEN or AMEND has named yet; later ones leave them out. A DISCARD after ABORT is answered
//    by the abort's acknowledgement alone.
//  - A slot that ABORT or DISCARD names is a lane of the transfer (exact ones included), or is at
//    the generation named. A DISCARD of a transfer that has ended meanwhile finds it exactly one
//    generation further. It cannot find it further still: for that the initiator would have to
//    learn of the FREE, reuse the slot and have that lane opened before this frame, but frames come
//    in order. Anything else is a protocol error.
//
// Thread-safety: none; used by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_ARRIVAL_TRACKER_H_
#define KVXFER_CORE_PROTOCOL_ARRIVAL_TRACKER_H_

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

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

  using Deliveries = std::vector<Delivered>;

  // What became known since the last TakeActions, in the order in which to do it: first the
  // deliveries, which publish to the application, then the frame to the initiator.
  struct Actions {
    Deliveries deliver{};
    ReleasedFrame released;
    // Transfers that the backends must fence; answer each with OnFenced.
    std::vector<uint64_t> fence{};
    bool empty() const { return deliver.empty() && released.empty() && fence.empty(); }
    void clear() {
      deliver.clear();
      released.clear();
      fence.clear();
    }
  };

  // `slots` must outlive the tracker; `session_id` identifies this session in it.
  ArrivalTracker(SlotTable* slots, SlotTable::SessionId session_id)
      : slots_(slots), session_id_(session_id) {}

  // Each returns InvalidArgument for a protocol error. Then the session must fail, and the tracker
  // must not be used again.
  absl::Status OnOpen(OpenFrame&& frame);
  absl::Status OnAmend(const AmendFrame& frame);
  absl::Status OnAbort(const AbortFrame& frame);
  absl::Status OnDiscard(const DiscardFrame& frame);
  absl::Status OnImmediate(SlotRef ref);
  // No byte and no immediate of the aborted `transfer` can arrive any more.
  absl::Status OnFenced(uint64_t transfer);
  // The rails of all lanes of `transfer` that wait after a DISCARD are fenced and drained. This
  // covers every DISCARD so far, so after two failed rails it is called only after the second
  // fence. No effect if nothing waits.
  absl::Status OnLanesDrained(uint64_t transfer);

  bool has_actions() const { return !actions_.empty(); }
  // Exchanges the list for `out`, which it empties: so steady state allocates nothing.
  void TakeActions(Actions& out);

  // The session is over, so missing numbers will never come. Delivers, in order, the notifications
  // of all transfers that were whole, because their initiator knows them as done. The tracker must
  // not be used again.
  Deliveries GiveOut();

  // The number and bytes of notifications that were opened and neither delivered nor aborted: the
  // part of the initiator's credit that the session uses.
  uint64_t held_notifications() const { return held_notifications_; }
  uint64_t held_bytes() const { return held_bytes_; }
  // The number and bytes of those that were given out, those in the next Actions included.
  const CreditFrame& given_out() const { return given_out_; }

  // For bounds and sweeps: the transfers that are known and have not ended, and the runs of numbers
  // that are recorded ahead of the order. Neighbouring skipped numbers form one run, so the runs
  // are bounded by the initiator's active transfers and the notifications that it has credit for.
  size_t active() const { return transfers_.size(); }
  size_t waiting_in_order() const { return ahead_.size(); }

 private:
  friend struct ProtocolModelAccess;  // the tests' search copies and compares states

  enum class Phase : uint8_t { kUnopened, kOpen, kAborting };
  struct Lane {
    SlotRef ref{};
    uint32_t expected = 0;  // 0: unknown (discarded or aborted before OPEN)
    bool exact = false;     // count reached; its slot is freed
    bool draining = false;  // discarded, waits for OnLanesDrained
  };
  struct Inbound {
    Phase phase = Phase::kUnopened;
    uint64_t order = 0;
    Notice notice = Notice::kNone;
    std::string notification{};
    std::vector<Lane> lanes{};
    size_t missing = 0;  // discarded lanes that AMEND has not replaced yet
  };
  // Order numbers, from the key up to `last`, that are past but not yet reached in order: one
  // number with a delivery, or a run of skipped numbers.
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
  // True if the transfer is open and awaits no lane and no arrival.
  static bool IsWhole(const Inbound& transfer);
  absl::Status EndIfWhole(uint64_t id);
  absl::Status End(uint64_t id, uint64_t order, Notice notice, std::string&& notification);
  // Records that order number `order` is past, and delivers what is now in order.
  absl::Status Record(uint64_t order, Past&& past);
  bool IsPast(uint64_t order) const;
  void FreeSlot(SlotRef ref);
  void GiveOut(Delivered&& delivered);
  void Unhold(const std::string& notification);
  // The slot that `ref` names, at any generation; an error unless it belongs to this session.
  absl::StatusOr<SlotTable::Slot*> Resolve(SlotRef ref);
  absl::StatusOr<SlotTable::Slot*> ResolveInUse(SlotRef ref);

  SlotTable* const slots_;
  const SlotTable::SessionId session_id_;
  std::unordered_map<uint64_t, Inbound> transfers_;
  std::unordered_map<uint32_t, uint64_t> lane_of_slot_;  // slot → transfer, for known lanes
  std::map<uint64_t, Past> ahead_;
  uint64_t next_order_ = 1;
  uint64_t held_notifications_ = 0;
  uint64_t held_bytes_ = 0;
  CreditFrame given_out_{};
  Actions actions_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_ARRIVAL_TRACKER_H_
