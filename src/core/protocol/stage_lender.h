// Staging slots of this agent that are lent to initiators: who has which, who waits for some, and
// whom to ask for some back. Lent slots are few (the memory is pinned), initiators may be many:
// when none is left, each holder is asked once for what it does not need, and each that waits gets
// one in its turn, then more.
//
// Pure. Thread-safety: none; owned by the progress engine.

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
  // Names a session; 0 is nobody.
  using Owner = uint64_t;
  // The most that one initiator holds.
  static constexpr uint32_t kMaxHeld = 8;

  // Slots [0, slots).
  explicit StageLender(uint32_t slots = 0) { SetSlots(slots); }
  // More of them, once.
  void SetSlots(uint32_t slots);

  // `owner` wishes for `count`. FailedPrecondition: it asked before, and has not got any.
  absl::Status Ask(Owner owner, uint32_t count);
  // It gives some back. InvalidArgument: it has not got one of them.
  absl::Status Back(Owner owner, std::span<const uint32_t> slots);
  // It is gone: nothing is on its way into its slots, but `busy` ones are in use here until Free.
  void Release(Owner owner, const std::set<uint32_t>& busy);
  void Free(uint32_t slot);

  bool Holds(Owner owner, uint32_t slot) const;
  bool HoldsAny(Owner owner) const;
  // Somebody waits.
  bool short_of_slots() const { return !waiting_.empty(); }

  // Who is to be told that it has which slots now, and who that others wait; each once.
  struct Lent {
    Owner owner = 0;
    std::vector<uint32_t> slots{};
  };
  std::vector<Lent> TakeLent();
  std::vector<Owner> TakeRecalled();

 private:
  struct Holder {
    std::set<uint32_t> slots{};
    bool recalled = false;  // asked for some back since it got its last one
  };
  struct Wish {
    Owner owner = 0;
    uint32_t count = 0;
  };
  void Serve();

  std::vector<uint32_t> free_;
  std::map<Owner, Holder> holders_;
  std::deque<Wish> waiting_;  // each owner once
  std::vector<Lent> lent_;
  std::vector<Owner> recalled_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_STAGE_LENDER_H_
