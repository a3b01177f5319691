// Room in a ring that batches take and give back in one order: each in one stretch, whose offsets
// begin at multiples of kAlign. Counts units and holds none.
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
  // 256 bytes: what a GPU has read of one batch it has not cached of the next.
  static constexpr size_t kAlign = 8;

  // `size` is a multiple of kAlign.
  explicit UnitRing(size_t size) : size_(size) {}

  // Where a stretch of `units`, at most, may begin; none: there is no room now. With nothing taken
  // there is room for size() of them.
  std::optional<size_t> Find(size_t units) {
    units = Aligned(units);
    if (ends_.empty()) head_ = tail_ = 0;
    const bool split = !ends_.empty() && head_ <= tail_;  // free: [head, tail)
    if (units <= (split ? tail_ : size_) - head_) return head_;
    if (split || units > tail_) return std::nullopt;
    head_ = 0;
    return head_;
  }
  // Takes the first `units` of what was found last.
  void Take(size_t units) {
    head_ += Aligned(units);
    ends_.push_back(head_);
  }
  // Gives the oldest stretch back.
  void Release() {
    tail_ = ends_.front();
    ends_.pop_front();
  }
  // What a stretch of `units` takes. An empty one takes some too, so that a full ring and an empty
  // one do not look the same.
  static size_t Aligned(size_t units) {
    return (std::max<size_t>(units, 1) + kAlign - 1) / kAlign * kAlign;
  }
  size_t size() const { return size_; }

 private:
  const size_t size_;
  size_t head_ = 0;  // where the next begins
  size_t tail_ = 0;  // where the oldest begins
  std::deque<size_t> ends_;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_UNIT_RING_H_
