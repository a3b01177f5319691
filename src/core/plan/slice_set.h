// Which slices of a transfer went one way, and which go again. Slices are numbered from 0 in the
// order in which SliceCursor cuts them; cutting with equal limits gives equal slices.
//
// Thread-safety: none; plain values.

#ifndef KVXFER_CORE_PLAN_SLICE_SET_H_
#define KVXFER_CORE_PLAN_SLICE_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvxfer {

inline constexpr uint32_t kNoSlice = UINT32_MAX;

// A set of slices in bounded memory: exact below kExact slices; beyond, a superset, in groups of 2,
// 4, 8, …. Who sends a slice too many again writes the same bytes to the same place.
class SliceSet {
 public:
  static constexpr uint32_t kExact = 4096;  // 512 bytes

  void Add(uint32_t slice);
  void Add(const SliceSet& other);
  // Forgets slices below `slice`; of its own group none.
  void RemoveBelow(uint32_t slice);
  // The lowest slice of the set that is not below `from`; kNoSlice: none.
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

  // Few transfers have more than 64 slices: those allocate nothing here.
  uint64_t first_ = 0;
  std::vector<uint64_t> rest_;
  uint32_t shift_ = 0;  // bit i: some of the slices i << shift_ up to the next group's
};

// Slices that go again, in ascending order. More may come at any time, also of those that were
// taken before: then it begins anew.
class SliceQueue {
 public:
  void Add(const SliceSet& slices);
  // The next one below `total`, which is how many slices there are; kNoSlice: none is left.
  uint32_t Front(uint32_t total) const { return At(from_, total); }
  // Whether `slice` is all that is left.
  bool IsLast(uint32_t slice, uint32_t total) const {
    return Front(total) == slice && At(slice + 1, total) == kNoSlice;
  }
  // `slice` was taken, which was the front. Where others have come before it since, it is taken
  // again after them.
  void Pop(uint32_t slice) {
    if (Front(slice + 1) == slice) from_ = slice + 1;
  }
  // What is left.
  const SliceSet& slices();

 private:
  friend struct ProtocolModelAccess;  // the tests' search compares states

  uint32_t At(uint32_t from, uint32_t total) const {
    const uint32_t next = slices_.Next(from);
    return next < total ? next : kNoSlice;
  }

  SliceSet slices_;
  uint32_t from_ = 0;  // those below were taken
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_SLICE_SET_H_
