// The initiator's side of one transfer's lanes, of the first attempt on each rail: which slot each
// rail's share uses, which ops carry an immediate, and how many the target must count. One attempt
// of one transfer over one rail is one lane.
//
// Slices go to rails as rails have room, so which op of a lane is its last is known only when the
// last slice of the transfer is posted. Where a rail keeps order, that slice carries its lane's
// immediate and each other lane is closed by an empty write with the immediate; where not, every
// op carries one.
//
// A rail that fails takes its lane out of the book (Discard). What that lane carried goes again,
// all of it, for which of its writes arrived is not known; SendBook says where.
//
// Thread-safety: none; owned by the progress engine.

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

  // As those of LaneBook.
  std::optional<uint32_t> ImmediateFor(bool last, bool rail_keeps_order) const;
  void OnPosted(bool last, bool rail_keeps_order, uint32_t slice);
};

class LaneBook {
 public:
  LaneBook(uint32_t rails, bool rail_keeps_order);

  bool rail_keeps_order() const { return rail_keeps_order_; }

  // Whether a lane on `rail` needs a slot before it can be posted to.
  bool NeedsSlot(uint32_t rail) const;
  void OpenLane(uint32_t rail, SlotRef slot);

  // The immediate that the next data op on `rail` carries, if any. `last`: it is the transfer's
  // last slice. Call OnPosted once the backend has accepted that op.
  std::optional<uint32_t> ImmediateFor(uint32_t rail, bool last) const;
  // `slice`: the number of the slice that it was; kNoSlice: an empty write.
  void OnPosted(uint32_t rail, bool last, uint32_t slice = kNoSlice);

  // After the last slice: the next rail whose lane must be closed by an empty write (with
  // ImmediateFor(rail, true)), or nothing when every lane is closed. Where rails keep no order
  // only a lane that was opened and never posted to needs it.
  std::optional<uint32_t> NextToClose() const;

  // The target freed `slot`: if it is a lane's here, nothing of that lane is on the way and the
  // slot belongs to the pool again.
  void OnFreed(SlotRef slot);
  struct Discarded {
    SlotRef slot{};
    SliceSet slices{};  // what it carried
  };
  // The rail failed: forgets its lane and returns the slot to name in DISCARD; nothing when there
  // is no lane or it was freed (then it stays in the book: all of it arrived). The rail may be
  // opened again.
  std::optional<Discarded> Discard(uint32_t rail);

  // The lanes as OPEN or AMEND tells them; complete once the last slice is posted and NextToClose
  // is empty.
  std::vector<LaneFrame> Lanes() const;
  // Slots of every lane in the book that is not known to be free, for ABORT.
  std::vector<SlotRef> Slots() const;

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  std::vector<Lane> lanes_;
  bool rail_keeps_order_;
  bool last_posted_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_LANE_BOOK_H_
