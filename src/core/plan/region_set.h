// The set of regions that a transfer touches, as indices in a RegionTable.
//
// Thread-safety: none; a plain value.

#ifndef KVXFER_CORE_PLAN_REGION_SET_H_
#define KVXFER_CORE_PLAN_REGION_SET_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "src/core/plan/region_table.h"

namespace kvxfer {

// The region index of a block without bytes; such a block is in no table.
inline constexpr uint32_t kNoRegion = UINT32_MAX;

// Inline capacity: a small transfer allocates nothing.
using RegionIndices = absl::InlinedVector<uint32_t, 2>;

class RegionSet {
 public:
  explicit RegionSet(const RegionTable& table) : RegionSet(table.regions().size()) {}
  // `regions`: how many regions the table has.
  explicit RegionSet(size_t regions) : seen_((regions + 63) / 64) {}
  void Add(uint32_t region) {
    if (region != kNoRegion) seen_[region / 64] |= uint64_t{1} << region % 64;
  }
  // The regions of the set in ascending order.
  RegionIndices Ascending() const {
    RegionIndices regions;
    for (size_t i = 0; i < seen_.size(); ++i) {
      for (uint64_t left = seen_[i]; left != 0; left &= left - 1) {
        regions.push_back(static_cast<uint32_t>(i * 64) +
                          static_cast<uint32_t>(std::countr_zero(left)));
      }
    }
    return regions;
  }

 private:
  absl::InlinedVector<uint64_t, 4> seen_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_REGION_SET_H_
