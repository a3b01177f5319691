// The room that one backend of the target has for immediates (Capabilities::max_arrivals), counted
// in ranges of slots. A session takes room for all of its ranges while it has a connection over
// that backend: before its hello and after kDown nothing of it can be on the way.
//
// Thread-safety: none; owned by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_ARRIVAL_ROOM_H_
#define KVXFER_CORE_PROTOCOL_ARRIVAL_ROOM_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "src/core/protocol/slot_table.h"

namespace kvxfer {

class ArrivalRoom {
 public:
  // For so many immediates, and one range at least; 0: for any number.
  explicit ArrivalRoom(size_t max_arrivals)
      : max_(max_arrivals == 0 ? kAllRanges : RangesOf(max_arrivals)) {}

  // Whether one that has taken `held` may take another. Half are for those that have none: one
  // without slots cannot begin.
  bool MayGrow(uint32_t held) const {
    return taken_ < (held == 0 || max_ == kAllRanges ? max_ : (max_ + 1) / 2);
  }
  bool Fits(uint32_t ranges) const { return ranges <= max_ - taken_; }
  void Take(uint32_t ranges) { taken_ += ranges; }
  void Give(uint32_t ranges) { taken_ -= ranges; }

 private:
  // As many as an immediate can name.
  static constexpr uint32_t kAllRanges = (1u << kSlotBits) / kRangeSlots;
  static uint32_t RangesOf(size_t arrivals) {
    return static_cast<uint32_t>(std::clamp<size_t>(arrivals / kRangeSlots, 1, kAllRanges));
  }

  const uint32_t max_;
  uint32_t taken_ = 0;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_ARRIVAL_ROOM_H_
