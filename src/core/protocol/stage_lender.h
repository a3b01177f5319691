// The staging buffers that this agent lends to initiators: which owner has which, which owners
// wait, and which to ask to return some. ("Slot" in the names here is a staging buffer.) There are
// few buffers, because their memory is pinned, and there may be many initiators. When no buffer is
// left, each holder is asked once to return what it does not need, and each waiting owner gets one
// in turn, then more.
//
// Pure. Thread-safety: none; used by the progress engine.

#ifndef KVXFER_CORE_PROTOCOL_STAGE_LENDER_H_
#define KVXFER_CORE_PROTOCOL_STAGE_LENDER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "absl/status/status.h"

namespace kvxfer {

class StageLender {
 public:
  // Identifies a session; 0: none.
  using Owner = uint64_t;
  // The most buffers that one initiator holds.
  static constexpr uint32_t kMaxHeld = 8;

  // The buffers [0, slots).
  explicit StageLender(uint32_t slots = 0) { SetSlots(slots); }
  // Adds the buffers [0, slots); called once.
  void SetSlots(uint32_t slots);

  // `owner` asks for `count` buffers. FailedPrecondition: it still waits for an earlier request.
  absl::Status Ask(Owner owner, uint32_t count);
  // `owner` returns buffers. InvalidArgument: it does not hold one of them.
  absl::Status Back(Owner owner, std::span<const uint32_t> slots);
  // `owner` is gone: nothing is in flight into its buffers, but this agent uses the `busy` ones
  // until Free.
  void Release(Owner owner, const std::set<uint32_t>& busy);
  void Free(uint32_t slot);

  bool Holds(Owner owner, uint32_t slot) const;
  bool HoldsAny(Owner owner) const;
  // True while an owner waits.
  bool short_of_slots() const { return !waiting_.empty(); }

  // Removes and returns the owners to inform: of the buffers that they now have (TakeLent), and
  // that others wait (TakeRecalled). Each is returned once.
  struct Lent {
    Owner owner = 0;
    std::vector<uint32_t> slots{};
  };
  std::vector<Lent> TakeLent();
  std::vector<Owner> TakeRecalled();

 private:
  struct Holder {
    std::set<uint32_t> slots{};
    bool recalled = false;  // was asked to return some since it last got one
  };
  struct Wish {
    Owner owner = 0;
    uint32_t count = 0;
  };
  void Serve();

  std::vector<uint32_t> free_;
  std::map<Owner, Holder> holders_;
  std::deque<Wish> waiting_;  // each owner at most once
  std::vector<Lent> lent_;
  std::vector<Owner> recalled_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_STAGE_LENDER_H_
