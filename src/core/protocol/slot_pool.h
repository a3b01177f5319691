// The initiator's side of the slots that one target granted to one session.
//
// Thread-safety: none; owned by the progress engine.

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
  // Adds the slots of a range. InvalidArgument: some of them are granted already, or no immediate
  // could name them; so what one target can make this side keep is bounded by the slots there are.
  absl::Status AddGrant(const SlotGrantFrame& grant);
  // A slot that the target has freed (or never saw), with its generation; nothing when all are
  // in use. It stays in use until Free. `holder`: see HolderOf.
  std::optional<SlotRef> Take(uint64_t holder = 0);

  // A discarded lane was freed and goes again: keeps one free slot back for it, so that no other
  // lane takes it. Without that, transfers that hold slots could wait for each other's for ever.
  // Call right after Free of the discarded lane's slot; end by TakeReserved or Unreserve. False: no
  // slot is free, so the target did not let go of that one.
  [[nodiscard]] bool Reserve() {
    if (available() == 0) return false;
    ++reserved_;
    return true;
  }
  SlotRef TakeReserved(uint64_t holder = 0);
  void Unreserve() { --reserved_; }

  // The target freed it: usable again, one generation on. InvalidArgument: not in use, or another
  // generation than the one in use.
  absl::Status Free(SlotRef ref);
  // Who took it; 0: not in use at this generation.
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
  size_t reserved_ = 0;  // of free_
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_SLOT_POOL_H_
