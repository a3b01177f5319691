// Space in a ring that batches take and return in one order. Each batch gets one contiguous
// stretch, whose offset is a multiple of kAlign. The ring counts units and does not store them.
//
// Thread-safety: none.

#ifndef KVXFER_CUDA_UNIT_RING_H_
#define KVXFER_CUDA_UNIT_RING_H_

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>

namespace kvxfer::cuda {

class UnitRing {
 public:
  // 8 units are 256 bytes: so no cache line that a GPU has read holds units of two batches.
  static constexpr size_t kAlign = 8;

  // `size` is a multiple of kAlign.
  explicit UnitRing(size_t size) : size_(size) {}

  // Where a stretch of at most `units` may begin; nothing: there is no space now. An empty ring has
  // space for size() units.
  std::optional<size_t> Find(size_t units) {
    units = Aligned(units);
    if (ends_.empty()) head_ = tail_ = 0;
    const bool split = !ends_.empty() && head_ <= tail_;  // free: [head, tail)
    if (units <= (split ? tail_ : size_) - head_) return head_;
    if (split || units > tail_) return std::nullopt;
    head_ = 0;
    return head_;
  }
  // Takes the first `units` of what Find returned last.
  void Take(size_t units) {
    head_ += Aligned(units);
    ends_.push_back(head_);
  }
  // Returns the oldest stretch.
  void Release() {
    tail_ = ends_.front();
    ends_.pop_front();
  }
  // The space that a stretch of `units` takes. An empty stretch takes some too, so that a full ring
  // and an empty one look different.
  static size_t Aligned(size_t units) {
    return (std::max<size_t>(units, 1) + kAlign - 1) / kAlign * kAlign;
  }
  size_t size() const { return size_; }

 private:
  const size_t size_;
  size_t head_ = 0;          // where the next stretch begins
  size_t tail_ = 0;          // where the oldest stretch begins
  std::deque<size_t> ends_;  // the end of each stretch, oldest first
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_UNIT_RING_H_
