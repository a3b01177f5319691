// The target's table of arrival slots. An immediate names a slot. The slot identifies the session
// that it was granted to, and counts the arrivals of the lane that uses it now, before and after
// that lane's OPEN. Ranges of kRangeSlots slots are granted to sessions on demand.
//
// Thread-safety: none; used by the progress engine. Memory: 16 bytes per slot in granted ranges.

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
  // Identifies the session that a slot is granted to; 0: none.
  using SessionId = uint64_t;

  struct Slot {
    SessionId session_id = 0;
    uint32_t generation = 0;  // of the lane that may use it now
    uint32_t arrivals = 0;    // immediates of that lane so far
  };

  // At most `ranges` ranges, and at most 2^20 / kRangeSlots. Generations start at
  // `first_generation`.
  explicit SlotTable(uint32_t ranges = (1u << kSlotBits) / kRangeSlots,
                     uint32_t first_generation = 0);

  // A free range for `session_id`, or nullopt if the table is full. All slots of a granted range
  // start at the same generation, which the grant states. It is the highest that any slot of the
  // range had, plus one; after a wrap, the next one that none of them had. So no slot starts at the
  // generation at which it ended.
  std::optional<SlotGrantFrame> Grant(SessionId session_id);
  // Takes all ranges of `session_id` back. Requires that no immediate of that session can arrive
  // any more.
  void Release(SessionId session_id);

  // Null: no such slot, or not in a granted range. The pointer is valid until Release of its
  // session.
  Slot* Find(uint32_t slot);
  uint32_t ranges_in_use() const { return in_use_; }

 private:
  friend struct ProtocolModelAccess;  // the tests' search copies and compares states

  struct Range {
    SessionId session_id = 0;
    uint32_t next_generation = 0;
    std::unique_ptr<Slot[]> slots{};  // allocated while granted
  };
  const uint32_t max_ranges_;
  const uint32_t first_generation_;
  std::vector<Range> ranges_;   // all ranges that were ever granted
  std::vector<uint32_t> free_;  // indices of free ranges in ranges_
  uint32_t in_use_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SLOT_TABLE_H_
