// The arrival slots of a session at its initiator: those that the target granted, and whether more
// are asked for.
//
// Thread-safety: none.

#ifndef KVXFER_CORE_PROTOCOL_SLOT_SUPPLY_H_
#define KVXFER_CORE_PROTOCOL_SLOT_SUPPLY_H_

#include <utility>

#include "absl/status/status.h"
#include "src/core/protocol/reliable_channel.h"
#include "src/core/protocol/slot_pool.h"
#include "src/core/protocol/slot_table.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class SlotSupply {
 public:
  // `channel` carries the questions; it must outlive the supply.
  explicit SlotSupply(ReliableChannel* channel) : channel_(channel) {}
  // A copy for another channel.
  SlotSupply(const SlotSupply& other, ReliableChannel* channel)
      : channel_(channel), pool_(other.pool_), requested_(other.requested_) {}

  // Asks for slots, if none are asked for.
  void Request() {
    if (std::exchange(requested_, true)) return;
    channel_->Push(FrameType::kSlotRequest, SlotRequestFrame{.count = kRangeSlots});
  }
  absl::Status OnGrant(const SlotGrantFrame& grant) {
    requested_ = false;
    return pool_.AddGrant(grant);
  }
  bool any() const { return pool_.granted() > 0; }
  SlotPool& pool() { return pool_; }
  const SlotPool& pool() const { return pool_; }
  bool requested() const { return requested_; }
  // A session begins anew: none is granted.
  void Clear() {
    pool_ = SlotPool();
    requested_ = false;
  }

 private:
  ReliableChannel* const channel_;
  SlotPool pool_{};
  bool requested_ = false;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SLOT_SUPPLY_H_
