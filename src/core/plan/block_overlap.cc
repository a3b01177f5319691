#include "src/core/plan/block_overlap.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

absl::Status DuplicateId(std::string_view side, std::span<const uint32_t> ids, uint32_t id,
                         uint64_t offset) {
  const auto at = [&](auto place) { return offset + static_cast<uint64_t>(place - ids.begin()); };
  const auto first = std::find(ids.begin(), ids.end(), id);
  const auto second = std::find(first + 1, ids.end(), id);
  return absl::InvalidArgumentError(absl::StrCat(ToAbsl(side), "_ids[", at(first), "] and ",
                                                 ToAbsl(side), "_ids[", at(second), "] are both ",
                                                 id, ": a destination block may appear only once"));
}

bool StrictlyAscending(std::span<const uint32_t> ids) {
  constexpr size_t kStep = 64;
  for (size_t begin = 1; begin < ids.size(); begin += kStep) {
    const size_t end = std::min(begin + kStep, ids.size());
    bool descends = false;  // no exit within a step, so that the compiler vectorises it
    for (size_t i = begin; i < end; ++i) descends |= ids[i] <= ids[i - 1];
    if (descends) return false;
  }
  return true;
}

// Whether an id occurs twice. `seen` must hold a zero bit for every id up to the highest.
bool AnyTwice(std::span<const uint32_t> ids, uint64_t* seen) {
  uint64_t twice = 0;  // no early exit: duplicates are rare
  for (const uint32_t id : ids) {
    uint64_t& word = seen[id / 64];
    const uint64_t bit = uint64_t{1} << (id % 64);
    twice |= word & bit;
    word |= bit;
  }
  return twice != 0;
}

// The same with a byte for each id, which takes half the instructions where that is little memory.
bool AnyTwice(std::span<const uint32_t> ids, uint8_t* seen) {
  uint32_t twice = 0;
  const uint32_t* at = ids.data();
  const auto take = [&](uint32_t id) { twice |= std::exchange(seen[id], uint8_t{1}); };
  // Read before anything is stored: for all that the compiler knows, that could change them.
  for (const uint32_t* const end = at + ids.size() / 4 * 4; at != end; at += 4) {
    const std::array<uint32_t, 4> four{at[0], at[1], at[2], at[3]};
    for (const uint32_t id : four) take(id);
  }
  for (const uint32_t* const end = ids.data() + ids.size(); at != end; ++at) take(*at);
  return twice != 0;
}

// Each thread keeps buffers up to this size for its next check, so that steady posting allocates
// nothing.
constexpr size_t kKeptBytes = 1 << 20;

absl::Status DuplicateAmong(std::string_view side, std::span<const uint32_t> ids, uint64_t first) {
  static thread_local std::vector<uint32_t> kept;
  std::vector<uint32_t> large;
  std::vector<uint32_t>& sorted = ids.size_bytes() <= kKeptBytes ? kept : large;
  sorted.assign(ids.begin(), ids.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twin = std::adjacent_find(sorted.begin(), sorted.end());
  return twin == sorted.end() ? absl::OkStatus() : DuplicateId(side, ids, *twin, first);
}

// The used part of one paged region: from its lowest used block to the end of its highest one.
struct Extent {
  uint64_t begin = 0;
  uint64_t last = 0;  // last byte, inclusive, because an end may be 2^64
  size_t region = 0;
};

// Whether all regions have one stride and their blocks occupy disjoint residues modulo that stride.
// Then no two of their blocks can overlap, whatever the ids are. This is the usual case of a buffer
// that interleaves layers.
bool DisjointResidues(std::span<const PagedRegion> regions, std::span<const Extent> cluster) {
  const uint64_t stride = regions[cluster[0].region].stride;
  struct Arc {
    uint64_t begin;
    uint64_t bytes;
  };
  std::vector<Arc> arcs;
  arcs.reserve(cluster.size());
  for (const Extent& extent : cluster) {
    const PagedRegion& region = regions[extent.region];
    if (region.stride != stride || stride < region.block_bytes) return false;
    arcs.push_back({region.base % stride, region.block_bytes});
  }
  std::sort(arcs.begin(), arcs.end(), [](Arc a, Arc b) { return a.begin < b.begin; });
  // The residues form a circle: the last arc must end before the first one begins again.
  for (size_t i = 0; i < arcs.size(); ++i) {
    const bool wraps = i + 1 == arcs.size();
    const uint64_t gap = wraps ? stride - arcs[i].begin + arcs[0].begin  // <= stride
                               : arcs[i + 1].begin - arcs[i].begin;
    if (gap < arcs[i].bytes) return false;
  }
  return true;
}

// The exact check for regions that interleave in any way. A merge visits their blocks in address
// order; memory stays O(ids + regions).
absl::Status MergeCheck(std::string_view side, std::span<const PagedRegion> regions,
                        std::span<const Extent> cluster, std::span<const uint32_t> sorted_ids) {
  struct Head {
    uint64_t begin;
    size_t region;
    size_t next;  // position in sorted_ids of the block that begins there
    bool operator>(const Head& other) const { return begin > other.begin; }
  };
  std::priority_queue<Head, std::vector<Head>, std::greater<>> heads;
  for (const Extent& extent : cluster) heads.push({extent.begin, extent.region, 0});
  Head before{};
  uint64_t before_last = 0;
  for (bool first = true; !heads.empty(); first = false) {
    const Head head = heads.top();
    heads.pop();
    const PagedRegion& region = regions[head.region];
    // `before_last` is the last byte of the block before. In address order only neighbours can
    // overlap.
    if (!first && head.begin <= before_last) {
      return absl::InvalidArgumentError(absl::StrCat(
          "block ", sorted_ids[before.next], " of ", ToAbsl(side), "[", before.region,
          "] and block ", sorted_ids[head.next], " of ", ToAbsl(side), "[", head.region,
          "] overlap at 0x", absl::Hex(head.begin), ": destination blocks must be disjoint"));
    }
    before = head;
    before_last = head.begin + (region.block_bytes - 1);
    if (head.next + 1 < sorted_ids.size()) {
      heads.push(
          {region.base + sorted_ids[head.next + 1] * region.stride, head.region, head.next + 1});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckIdsDistinct(std::string_view side, std::span<const uint32_t> ids, uint32_t bound,
                              uint64_t first) {
  if (StrictlyAscending(ids)) return absl::OkStatus();
  // A map is faster than sorting as long as clearing it costs at most a few words per id.
  constexpr size_t kBytesPerId = 8;
  constexpr size_t kMostBytes = 256 * 1024;
  if (bound < std::min(kBytesPerId * ids.size(), kMostBytes)) {
    static thread_local std::vector<uint8_t> seen;
    seen.assign(bound + size_t{1}, 0);
    return AnyTwice(ids, seen.data()) ? DuplicateAmong(side, ids, first) : absl::OkStatus();
  }
  constexpr size_t kWordsPerId = 16;
  const size_t words = bound / 64 + size_t{1};
  if (words > kWordsPerId * ids.size()) return DuplicateAmong(side, ids, first);
  static thread_local std::vector<uint64_t> kept;
  std::vector<uint64_t> large;
  std::vector<uint64_t>& seen = words * sizeof(uint64_t) <= kKeptBytes ? kept : large;
  seen.assign(words, 0);
  return AnyTwice(ids, seen.data()) ? DuplicateAmong(side, ids, first) : absl::OkStatus();
}

namespace {

// The extents of the regions that have bytes, by their beginnings. `lowest` and `highest`: of the
// ids that a region's blocks have.
template <typename Ids>
std::vector<Extent> ExtentsOf(std::span<const PagedRegion> regions, Ids ids) {
  std::vector<Extent> extents;
  extents.reserve(regions.size());
  for (size_t i = 0; i < regions.size(); ++i) {
    const PagedRegion& region = regions[i];
    if (region.block_bytes == 0 || region.count == 0) continue;
    const auto [lowest, highest] = ids(region);
    extents.push_back({.begin = region.base + lowest * region.stride,
                       .last = region.base + highest * region.stride + (region.block_bytes - 1),
                       .region = i});
  }
  std::sort(extents.begin(), extents.end(),
            [](const Extent& a, const Extent& b) { return a.begin < b.begin; });
  return extents;
}

// Extents that overlap, directly or through others, form a cluster. Blocks of different clusters
// cannot overlap. Calls `check` for each cluster that has several, unless their blocks take turns.
template <typename Check>
absl::Status CheckClusters(std::span<const PagedRegion> regions, std::span<const Extent> extents,
                           Check check) {
  for (size_t begin = 0; begin < extents.size();) {
    size_t end = begin + 1;
    uint64_t last = extents[begin].last;
    for (; end < extents.size() && extents[end].begin <= last; ++end) {
      last = std::max(last, extents[end].last);
    }
    const auto cluster = extents.subspan(begin, end - begin);
    if (cluster.size() > 1 && !DisjointResidues(regions, cluster)) {
      if (absl::Status status = check(cluster); !status.ok()) return status;
    }
    begin = end;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckPagedDisjoint(std::string_view side, std::span<const PagedRegion> regions,
                                std::span<const uint32_t> ids) {
  if (regions.size() < 2) return absl::OkStatus();
  const auto [lowest, highest] = std::minmax_element(ids.begin(), ids.end());
  const auto of_all = [low = uint64_t{*lowest}, high = uint64_t{*highest}](const PagedRegion&) {
    return std::pair(low, high);
  };
  std::vector<uint32_t> sorted_ids;  // filled on first use
  return CheckClusters(regions, ExtentsOf(regions, of_all), [&](std::span<const Extent> cluster) {
    if (sorted_ids.empty()) {
      sorted_ids.assign(ids.begin(), ids.end());
      std::sort(sorted_ids.begin(), sorted_ids.end());
    }
    return MergeCheck(side, regions, cluster, sorted_ids);
  });
}

absl::Status CheckRegionsDisjoint(std::string_view side, std::span<const PagedRegion> regions) {
  const auto all = [](const PagedRegion& region) {
    return std::pair(uint64_t{0}, region.count - 1);
  };
  return CheckClusters(
      regions, ExtentsOf(regions, all), [&](std::span<const Extent> cluster) -> absl::Status {
        return absl::InvalidArgumentError(absl::StrCat(
            ToAbsl(side), "[", cluster[0].region, "] and ", ToAbsl(side), "[", cluster[1].region,
            "] overlap, and the ids are in GPU memory: whether their blocks do is not known; name "
            "ids in host memory, or regions that are disjoint"));
      });
}

namespace {

// The address at which a descriptor writes.
struct Destination {
  bool write = false;
  uint64_t operator()(const Block& block) const { return write ? block.remote : block.local; }
};

// True if every block begins at or behind the end of the block before. One pass; the usual case.
bool AscendingDisjoint(std::span<const Block> blocks, Destination begin_of) {
  uint64_t free_from = 0;
  bool wraps = false;
  for (const Block& block : blocks) {
    if (block.bytes == 0) continue;
    const uint64_t begin = begin_of(block);
    if (wraps || begin < free_from) return false;
    // A block may end at 2^64 exactly; no block can follow it.
    wraps = __builtin_add_overflow(begin, block.bytes, &free_from);
  }
  return true;
}

// Whether blocks of one size, at multiples of that size from the lowest, are distinct, in any
// order. False also if the blocks do not have that form. Compares block numbers instead of
// addresses, in O(blocks).
bool DistinctOnGrid(std::span<const Block> blocks, Destination begin_of) {
  const uint64_t bytes = blocks.front().bytes;
  uint64_t lowest = begin_of(blocks.front());
  for (const Block& block : blocks) {
    if (block.bytes != bytes) return false;
    lowest = std::min(lowest, begin_of(block));
  }
  if (bytes == 0) return true;
  static thread_local std::vector<uint32_t> kept;
  std::vector<uint32_t> large;
  std::vector<uint32_t>& numbers = blocks.size() * sizeof(uint32_t) <= kKeptBytes ? kept : large;
  numbers.clear();
  uint32_t highest = 0;
  for (const Block& block : blocks) {
    const uint64_t number = (begin_of(block) - lowest) / bytes;
    if (number * bytes != begin_of(block) - lowest || number > UINT32_MAX) return false;
    numbers.push_back(static_cast<uint32_t>(number));
    highest = std::max(highest, numbers.back());
  }
  return CheckIdsDistinct("", numbers, highest).ok();
}

}  // namespace

absl::Status CheckDescriptorsDisjoint(Direction direction, std::span<const Block> blocks) {
  const bool write = direction == Direction::kWrite;
  const Destination begin_of{write};
  if (blocks.empty() || AscendingDisjoint(blocks, begin_of) || DistinctOnGrid(blocks, begin_of)) {
    return absl::OkStatus();
  }
  // The general case: sort by address and compare neighbours.
  struct Written {
    uint64_t begin;
    size_t index;
  };
  std::vector<Written> order;
  order.reserve(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].bytes == 0) continue;
    order.push_back({begin_of(blocks[i]), i});
  }
  std::sort(order.begin(), order.end(),
            [](const Written& a, const Written& b) { return a.begin < b.begin; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Written& before = order[i - 1];
    const Written& after = order[i];
    if (after.begin - before.begin >= blocks[before.index].bytes) continue;
    const auto [first, second] = std::minmax(before.index, after.index);
    const char* side = write ? "remote" : "local";
    return absl::InvalidArgumentError(absl::StrCat(side, "[", first, "] and ", side, "[", second,
                                                   "] overlap at 0x", absl::Hex(after.begin),
                                                   ": destination blocks must be disjoint"));
  }
  return absl::OkStatus();
}

}  // namespace kvxfer
