// Which slices of a transfer went one way, and the walk that takes those again. Slices are numbered
// from 0 in the order in which SliceCursor cuts them; cutting with equal limits gives equal slices.
//
// Thread-safety: none; plain values.

#ifndef KVXFER_CORE_SLICE_SET_H_
#define KVXFER_CORE_SLICE_SET_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/core/plan.h"

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

// Walks a block list again, of its slices those of a set only.
class SliceWalk {
 public:
  SliceWalk() = default;
  explicit SliceWalk(const BlockList* blocks) : blocks_(blocks), cursor_(blocks) {}

  // Adds to what is still to be taken; slices that were taken before may be among them.
  void Add(const SliceSet& slices);
  // `total`: how many slices there are.
  bool done(uint32_t total) const { return slices_.Next(at_) >= total; }
  // What is left.
  const SliceSet& slices();

  // A step of bounded length towards the next slice of the set, cut as the first walk did it. True:
  // it is in `runs`, its number in `slice`. Only while not done.
  bool Step(const SliceLimits& limits, const RegionHolds& holds, std::vector<Run>& room,
            SliceRuns* runs, uint32_t* slice);

 private:
  const BlockList* blocks_ = nullptr;
  SliceCursor cursor_;
  uint32_t at_ = 0;  // number of the slice that the cursor cuts next
  SliceSet slices_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_SLICE_SET_H_
