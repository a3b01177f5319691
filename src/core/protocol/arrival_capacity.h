// The capacity of one of the target's backends for immediates (Capabilities::max_arrivals), counted
// in ranges of arrival slots. While a session has a connection over that backend, all ranges of the
// session count against the capacity. Before its hello and after kDown none of its immediates can
// be in flight.
//
// Thread-safety: none; used by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_ARRIVAL_CAPACITY_H_
#define KVXFER_CORE_PROTOCOL_ARRIVAL_CAPACITY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/core/protocol/slot_table.h"

namespace kvxfer {

class ArrivalCapacity {
 public:
  // The capacity for `max_arrivals` immediates, but at least one range; 0: no limit.
  explicit ArrivalCapacity(size_t max_arrivals)
      : max_(max_arrivals == 0 ? kAllRanges : RangesOf(max_arrivals)) {}

  // Whether a session that has taken `held` ranges may take another. Half of the capacity is
  // reserved for sessions without a range, because a session without slots cannot begin.
  bool MayGrow(uint32_t held) const {
    return taken_ < (held == 0 || max_ == kAllRanges ? max_ : (max_ + 1) / 2);
  }
  bool Fits(uint32_t ranges) const { return ranges <= max_ - taken_; }
  void Take(uint32_t ranges) { taken_ += ranges; }
  void Give(uint32_t ranges) { taken_ -= ranges; }

 private:
  // The number of ranges that an immediate can name.
  static constexpr uint32_t kAllRanges = (1u << kSlotBits) / kRangeSlots;
  static uint32_t RangesOf(size_t arrivals) {
    return static_cast<uint32_t>(std::clamp<size_t>(arrivals / kRangeSlots, 1, kAllRanges));
  }

  const uint32_t max_;
  uint32_t taken_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_ARRIVAL_CAPACITY_H_
