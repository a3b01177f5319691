// The accepting side's book of fences: which transfers must not land, and on which rails the
// marker that ends them has come in. A marker may come before the agent asks. Pure.
//
// Thread-safety: none; used by the backend's owner.

#ifndef KVXFER_CORE_FENCE_BOOK_H_
#define KVXFER_CORE_FENCE_BOOK_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

namespace kvxfer {

class FenceBook {
 public:
  // Markers of so many transfers that nobody has asked for are remembered; then the oldest go.
  static constexpr size_t kMaxEarly = 4096;

  explicit FenceBook(uint32_t rails) : all_((1u << rails) - 1) {}

  // Both return how many kFenced answers are due for `transfer` now.
  uint32_t Ask(uint64_t transfer);
  uint32_t OnMarker(uint64_t transfer, uint32_t rail);

  // From Ask until its answer: no byte of `transfer` may land.
  bool IsFenced(uint64_t transfer) const {
    if (asked_ == 0) return false;
    const auto it = fences_.find(transfer);
    return it != fences_.end() && it->second.asked > 0;
  }
  size_t remembered() const { return fences_.size(); }

 private:
  struct Fence {
    uint32_t rails = 0;  // bit mask of the rails whose marker came
    uint32_t asked = 0;
  };
  uint32_t EndIfWhole(std::unordered_map<uint64_t, Fence>::iterator it);

  const uint32_t all_;
  std::unordered_map<uint64_t, Fence> fences_;
  std::deque<uint64_t> early_;  // in order of their first marker; may name what has ended
  size_t asked_ = 0;            // fences in the book that were asked for
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_FENCE_BOOK_H_
