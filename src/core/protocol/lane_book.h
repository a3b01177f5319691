// The initiator's record of the lanes of one transfer, for the first attempt on each rail: which
// slot each lane uses, which ops carry an immediate, and how many arrivals the target must count.
// One attempt of one transfer over one rail is one lane.
//
// Slices go to rails as rails accept them, so the last op of a lane is known only once the last
// slice of the transfer is posted. Where a rail keeps order, the last slice carries its lane's
// immediate, and each other lane is closed by an empty write with the immediate. Without order,
// every op carries one.
//
// When a rail fails, its lane leaves the book (Discard). All of its slices go again, because the
// initiator does not know which of its writes arrived. SendBook decides where they go.
//
// Thread-safety: none; used by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_LANE_BOOK_H_
#define KVXFER_CORE_PROTOCOL_LANE_BOOK_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "src/core/plan/slice_set.h"
#include "src/core/protocol/slot_pool.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

struct Lane {
  bool open = false;
  bool closed = false;  // its last op is posted
  bool freed = false;
  SlotRef slot{};
  uint32_t immediates = 0;
  SliceSet slices{};

  // As in LaneBook.
  std::optional<uint32_t> ImmediateFor(bool last, bool rail_keeps_order) const;
  void OnPosted(bool last, bool rail_keeps_order, uint32_t slice);
};

class LaneBook {
 public:
  LaneBook(uint32_t rails, bool rail_keeps_order);

  bool rail_keeps_order() const { return rail_keeps_order_; }

  // Whether a lane on `rail` needs a slot before an op can be posted to it.
  bool NeedsSlot(uint32_t rail) const;
  void OpenLane(uint32_t rail, SlotRef slot);

  // The immediate of the next data op on `rail`, if it carries one. `last`: the op is the
  // transfer's last slice. Call OnPosted once the backend has accepted that op.
  std::optional<uint32_t> ImmediateFor(uint32_t rail, bool last) const;
  // `slice`: the number of the slice that was posted; kNoSlice: an empty write.
  void OnPosted(uint32_t rail, bool last, uint32_t slice = kNoSlice);

  // After the last slice: the next rail whose lane must be closed by an empty write (with
  // ImmediateFor(rail, true)); nullopt when all lanes are closed. Where rails keep no order, only a
  // lane that was opened and never posted to needs closing.
  std::optional<uint32_t> NextToClose() const;

  // The target freed `slot`. If a lane of this book uses it, nothing of that lane is in flight, and
  // the slot is back in the pool.
  void OnFreed(SlotRef slot);
  struct Discarded {
    SlotRef slot{};
    SliceSet slices{};  // the slices that the lane carried
  };
  // The rail failed. Removes its lane and returns the slot to name in DISCARD. nullopt: there is no
  // lane, or it was freed, in which case all of it arrived and it stays in the book. The rail may
  // be opened again.
  std::optional<Discarded> Discard(uint32_t rail);

  // The lanes for OPEN or AMEND; complete once the last slice is posted and NextToClose returns
  // nullopt.
  std::vector<LaneFrame> Lanes() const;
  // The slots of all lanes in the book that are not known to be free, for ABORT.
  std::vector<SlotRef> Slots() const;

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  std::vector<Lane> lanes_;
  bool rail_keeps_order_;
  bool last_posted_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_LANE_BOOK_H_
