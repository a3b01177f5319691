// Sets of slices of a transfer: those that took one path, and those to send again. Slices are
// numbered from 0 in the order in which SliceCursor cuts them. Equal limits give equal slices.
//
// Thread-safety: none; plain values.

#ifndef KVXFER_CORE_PLAN_SLICE_SET_H_
#define KVXFER_CORE_PLAN_SLICE_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvxfer {

inline constexpr uint32_t kNoSlice = UINT32_MAX;

// A set of slices in bounded memory. It is exact below kExact slices. Beyond that it is a superset,
// in groups of 2, 4, 8, …; a slice that is sent again unnecessarily writes the same bytes to the
// same place.
class SliceSet {
 public:
  static constexpr uint32_t kExact = 4096;  // 512 bytes as a bitmap

  void Add(uint32_t slice);
  void Add(const SliceSet& other);
  // Removes the slices below `slice`, except those in the same group as `slice`.
  void RemoveBelow(uint32_t slice);
  // The lowest slice in the set that is not below `from`; kNoSlice: none.
  uint32_t Next(uint32_t from) const;
  bool empty() const { return Next(0) == kNoSlice; }

 private:
  void Coarsen();
  size_t words() const { return 1 + rest_.size(); }
  uint64_t& word(size_t i) { return i == 0 ? first_ : rest_[i - 1]; }
  uint64_t word(size_t i) const { return i == 0 ? first_ : rest_[i - 1]; }
  void Widen(size_t words) {
    if (words > 1 + rest_.size()) rest_.resize(words - 1, 0);
  }

  // Most transfers have at most 64 slices, and their sets allocate nothing.
  uint64_t first_ = 0;
  std::vector<uint64_t> rest_;
  uint32_t shift_ = 0;  // bit i stands for the slices from i << shift_ to before (i + 1) << shift_
};

// Slices to send again, in ascending order. More may be added at any time; if one of them is below
// the present position, the queue starts again from the front.
class SliceQueue {
 public:
  void Add(const SliceSet& slices);
  // The next slice below `total`, the number of slices in the transfer; kNoSlice: none is left.
  uint32_t Front(uint32_t total) const { return At(from_, total); }
  // Whether `slice` is the only one left.
  bool IsLast(uint32_t slice, uint32_t total) const {
    return Front(total) == slice && At(slice + 1, total) == kNoSlice;
  }
  // Removes `slice`, which was the front when it was taken. If lower slices were added since then,
  // it stays and is taken again after them.
  void Pop(uint32_t slice) {
    if (Front(slice + 1) == slice) from_ = slice + 1;
  }
  // The slices that are left.
  const SliceSet& slices();

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  uint32_t At(uint32_t from, uint32_t total) const {
    const uint32_t next = slices_.Next(from);
    return next < total ? next : kNoSlice;
  }

  SliceSet slices_;
  uint32_t from_ = 0;  // slices below were taken
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_SLICE_SET_H_
