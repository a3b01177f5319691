#include "src/core/plan/region_table.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <tuple>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

uint64_t SaturatingEnd(uint64_t address, uint64_t bytes) {
  uint64_t end = 0;
  if (__builtin_add_overflow(address, bytes, &end)) return std::numeric_limits<uint64_t>::max();
  return end;
}

// Bytes between the region and [address, end); 0 if they touch or overlap.
uint64_t Distance(const RegionView& region, uint64_t address, uint64_t end) {
  if (end < region.base) return region.base - end;
  const uint64_t region_end = SaturatingEnd(region.base, region.bytes);
  return address > region_end ? address - region_end : 0;
}

std::string RangeText(uint64_t address, uint64_t bytes) {
  return absl::StrCat("[0x", absl::Hex(address), ", +", bytes, ")");
}

std::string RegionText(const RegionView& region) {
  return absl::StrCat("region ", static_cast<uint32_t>(region.id), " ",
                      ToAbsl(RangeText(region.base, region.bytes)));
}

const char* RightName(Access wanted) {
  switch (wanted) {
    case Access::kRemoteRead:
      return "remote read";
    case Access::kRemoteWrite:
      return "remote write";
    case Access::kReadWrite:
      return "remote read and write";
    case Access::kNone:
      break;
  }
  return "no right";
}

}  // namespace

RegionTable::RegionTable(std::vector<RegionView> regions, std::string_view whose)
    : regions_(std::move(regions)), whose_(whose) {
  std::sort(regions_.begin(), regions_.end(), [](const RegionView& a, const RegionView& b) {
    return std::tie(a.base, a.id) < std::tie(b.base, b.id);
  });
  max_end_.reserve(regions_.size());
  uint64_t highest = 0;
  for (const RegionView& region : regions_) {
    disjoint_ = disjoint_ && region.base >= highest;
    highest = std::max(highest, SaturatingEnd(region.base, region.bytes));
    max_end_.push_back(highest);
  }
}

absl::StatusOr<uint32_t> RegionTable::Find(uint64_t address, uint64_t bytes, Access wanted) const {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  const uint64_t end = SaturatingEnd(address, bytes);
  const auto after =
      std::upper_bound(regions_.begin(), regions_.end(), address,
                       [](uint64_t a, const RegionView& region) { return a < region.base; });
  const auto nearest = static_cast<uint32_t>(after - regions_.begin()) - 1;
  if (IsFound(nearest, address, bytes, wanted)) return nearest;
  size_t best = kNone;
  size_t forbidden = kNone;
  // Every region that contains `address` lies at or before this point. max_end_ ends the search as
  // soon as no earlier region can reach `end`.
  for (auto i = static_cast<size_t>(after - regions_.begin()); i > 0; --i) {
    const size_t at = i - 1;
    if (max_end_[at] < end) break;
    const RegionView& region = regions_[at];
    if (!region.Contains(address, bytes)) continue;
    // The smallest id wins, so that the choice does not depend on the order of registration
    // addresses.
    size_t& slot = Allows(region.access, wanted) ? best : forbidden;
    if (slot == kNone || region.id < regions_[slot].id) slot = at;
  }
  if (best != kNone) return static_cast<uint32_t>(best);
  if (forbidden != kNone) {
    return absl::PermissionDeniedError(absl::StrCat(whose_, ": ", RegionText(regions_[forbidden]),
                                                    " does not allow ", RightName(wanted),
                                                    "; register it with that access"));
  }
  return NotInOneRegion(address, bytes);
}

absl::Status RegionTable::NotInOneRegion(uint64_t address, uint64_t bytes) const {
  const std::string what =
      absl::StrCat(whose_, ": ", RangeText(address, bytes), " is not inside one registered region");
  if (regions_.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(what, "; none is registered"));
  }
  const uint64_t end = SaturatingEnd(address, bytes);
  const RegionView& nearest = *std::min_element(
      regions_.begin(), regions_.end(), [&](const RegionView& a, const RegionView& b) {
        return Distance(a, address, end) < Distance(b, address, end);
      });
  return absl::InvalidArgumentError(absl::StrCat(what, "; the nearest is ", RegionText(nearest),
                                                 "; register the memory, or give the peer's ",
                                                 "newest metadata to AddPeer"));
}

}  // namespace kvxfer
