// The arrival slots that one target has granted to one session, at the initiator.
//
// Thread-safety: none; used by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_SLOT_POOL_H_
#define KVXFER_CORE_PROTOCOL_SLOT_POOL_H_

#include <cstdint>
#include <optional>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "src/core/protocol/id_set.h"
#include "src/core/protocol/wire_format.h"

namespace kvxfer {

class SlotPool {
 public:
  // Adds the slots of a range. InvalidArgument: some were granted before, or no immediate can name
  // them. So the memory that a target can make this side use is bounded by the number of slots.
  absl::Status AddGrant(const SlotGrantFrame& grant);
  // A slot that the target has freed or never used, with its generation; nullopt if all are in use.
  // It stays in use until Free. `holder`: see HolderOf.
  std::optional<SlotRef> Take(uint64_t holder = 0);

  // Reserves one free slot for a discarded lane that goes again, so that no other lane takes it.
  // Otherwise transfers that hold slots could wait for each other's slots for ever. Call it right
  // after Free of the discarded lane's slot, and end the reservation with TakeReserved or
  // Unreserve. False: no slot is free, so the target has not freed that one.
  [[nodiscard]] bool Reserve() {
    if (available() == 0) return false;
    ++reserved_;
    return true;
  }
  SlotRef TakeReserved(uint64_t holder = 0);
  void Unreserve() { --reserved_; }

  // The target freed the slot: it is usable again, one generation further. InvalidArgument: it is
  // not in use, or is in use at another generation.
  absl::Status Free(SlotRef ref);
  // The `holder` that took the slot; 0: it is not in use at this generation.
  uint64_t HolderOf(SlotRef ref) const;
  size_t granted() const { return free_.size() + used_.size(); }
  size_t available() const { return free_.size() - reserved_; }

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  struct Use {
    uint32_t generation = 0;
    uint64_t holder = 0;
  };

  SlotRef TakeAny(uint64_t holder);

  std::vector<SlotRef> free_;
  std::unordered_map<uint32_t, Use> used_;  // by slot
  IdSet ever_granted_;
  size_t reserved_ = 0;  // how many of free_ are reserved
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SLOT_POOL_H_
