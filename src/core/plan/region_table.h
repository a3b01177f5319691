// Immutable tables of registered regions, local or a peer's, searched by address.
//
// Thread-safety: immutable after construction; shared by pointer between threads.

#ifndef KVXFER_CORE_PLAN_REGION_TABLE_H_
#define KVXFER_CORE_PLAN_REGION_TABLE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer {

// What planning needs to know about one region.
struct RegionView {
  RegionId id = RegionId::kNone;
  uint64_t base = 0;
  uint64_t bytes = 0;
  Access access = Access::kNone;
  MemoryKind kind = MemoryKind::kHost;
  int device_id = 0;
  bool staging = false;  // holds the staging buffers that its agent lends

  bool Contains(uint64_t address, uint64_t size) const {
    return address >= base && size <= bytes && address - base <= bytes - size;
  }
};

class RegionTable {
 public:
  RegionTable() = default;
  // `whose` appears in messages: "local" or the peer's name.
  RegionTable(std::vector<RegionView> regions, std::string_view whose);

  // The index in regions() of the region that contains [address, address + bytes) completely and
  // grants `wanted`; if there are several, the one with the smallest id. InvalidArgument: no region
  // contains the range; the message names the nearest one. PermissionDenied: a region contains it,
  // but none that does grants `wanted`.
  absl::StatusOr<uint32_t> Find(uint64_t address, uint64_t bytes, Access wanted) const;

  // True if Find would return `index`, decided without a search. False if that is not certain: an
  // empty range may lie at the seam of two regions.
  bool IsFound(uint32_t index, uint64_t address, uint64_t bytes, Access wanted) const {
    return disjoint_ && bytes > 0 && index < regions_.size() &&
           regions_[index].Contains(address, bytes) && Allows(regions_[index].access, wanted);
  }

  const std::vector<RegionView>& regions() const { return regions_; }

 private:
  absl::Status NotInOneRegion(uint64_t address, uint64_t bytes) const;

  std::vector<RegionView> regions_;  // sorted by base, then id
  std::vector<uint64_t> max_end_;    // highest end among regions_[0..i]; ends a search to the left
  bool disjoint_ = true;             // no two regions share a byte
  std::string whose_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_REGION_TABLE_H_
