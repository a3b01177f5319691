// Immutable tables of registered regions, local or of a peer, looked up by address.
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

// What planning needs of one region.
struct RegionView {
  RegionId id = RegionId::kNone;
  uint64_t base = 0;
  uint64_t bytes = 0;
  Access access = Access::kNone;
  MemoryKind kind = MemoryKind::kHost;

  bool Contains(uint64_t address, uint64_t size) const {
    return address >= base && size <= bytes && address - base <= bytes - size;
  }
};

class RegionTable {
 public:
  RegionTable() = default;
  // `whose` goes into messages: "local" or the peer's name.
  RegionTable(std::vector<RegionView> regions, std::string_view whose);

  // The index in regions() of a region that holds [address, address + bytes) whole and grants
  // `wanted`; of several the smallest id. InvalidArgument: in no region (names the nearest);
  // PermissionDenied: inside one, but none that holds it grants `wanted`.
  absl::StatusOr<uint32_t> Find(uint64_t address, uint64_t bytes, Access wanted) const;

  // Whether Find would say `index`, without searching: for ranges that follow each other. False
  // where it is not known.
  bool IsFound(uint32_t index, uint64_t address, uint64_t bytes, Access wanted) const {
    return disjoint_ && index < regions_.size() && regions_[index].Contains(address, bytes) &&
           Allows(regions_[index].access, wanted);
  }

  const std::vector<RegionView>& regions() const { return regions_; }

 private:
  absl::Status NotInOneRegion(uint64_t address, uint64_t bytes) const;

  std::vector<RegionView> regions_;  // sorted by base, then id
  std::vector<uint64_t> max_end_;    // highest end of regions_[0..i], to stop searching left
  bool disjoint_ = true;             // no two regions share a byte
  std::string whose_;
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PLAN_REGION_TABLE_H_
