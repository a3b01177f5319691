// The target's one table of slots. An immediate names a slot; the slot names the session it was
// granted to and counts the arrivals of the lane that uses it now, before and after its OPEN.
// Ranges of kRangeSlots are granted to sessions on demand.
//
// Thread-safety: none; owned by the progress engine. Memory: 16 bytes a slot of ranges in use.

#ifndef KVXFER_CORE_PROTOCOL_SLOT_TABLE_H_
#define KVXFER_CORE_PROTOCOL_SLOT_TABLE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "src/core/protocol/wire_format.h"

namespace kvxfer {

inline constexpr uint32_t kRangeSlots = 64;

class SlotTable {
 public:
  // Names the session a slot belongs to; 0 is nobody.
  using Owner = uint64_t;

  struct Slot {
    Owner owner = 0;
    uint32_t generation = 0;  // of the lane that may use it now
    uint32_t arrivals = 0;    // immediates of that lane so far
  };

  // `ranges` ranges in all, at most 2^20 / kRangeSlots; generations start at `first_generation`.
  explicit SlotTable(uint32_t ranges = (1u << kSlotBits) / kRangeSlots,
                     uint32_t first_generation = 0);

  // A free range for `owner`, or nothing when the table is full. Its slots keep counting
  // generations from their last use, so a grant tells at which they start: every slot of a range
  // that is granted starts at the same generation (the highest any of them had, plus one; after a
  // wrap the next that none of them had), so no slot begins at the generation it ended with.
  std::optional<SlotGrantFrame> Grant(Owner owner);
  // Takes every range of `owner` back. Only when nothing of that session can arrive any more.
  void Release(Owner owner);

  // Null: no such slot, or in no granted range. The pointer holds until Release of the owner.
  Slot* Find(uint32_t slot);
  uint32_t ranges_in_use() const { return in_use_; }

 private:
  friend struct ProtocolModelAccess;  // the tests' search copies and compares states

  struct Range {
    Owner owner = 0;
    uint32_t next_generation = 0;
    std::unique_ptr<Slot[]> slots{};  // present while granted
  };
  const uint32_t max_ranges_;
  const uint32_t first_generation_;
  std::vector<Range> ranges_;   // every range that was ever granted
  std::vector<uint32_t> free_;  // of those
  uint32_t in_use_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SLOT_TABLE_H_
