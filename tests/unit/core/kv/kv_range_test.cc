// Ranges of heads and layers: what two have in common, and which lie within which. Every small pair
// is compared with sets.
#include "src/core/kv/kv_range.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace kvxfer::testing {
namespace {

using Cells = std::set<std::pair<uint32_t, uint32_t>>;

// The pairs of head and layer in a small range.
Cells CellsOf(const KvRange& range) {
  Cells cells;
  for (uint32_t head = 0; head < range.heads.count; ++head) {
    for (uint32_t layer = 0; layer < range.layers; ++layer) {
      cells.insert({range.heads.first + head, range.first_layer + layer});
    }
  }
  return cells;
}

// All ranges within 3 heads and 3 layers, empty ones among them.
std::vector<KvRange> SmallRanges() {
  std::vector<KvRange> ranges;
  for (uint32_t head = 0; head < 3; ++head) {
    for (uint32_t heads = 0; head + heads <= 3; ++heads) {
      for (uint32_t layer = 0; layer < 3; ++layer) {
        for (uint32_t layers = 0; layer + layers <= 3; ++layers) {
          ranges.push_back({{head, heads}, layer, layers});
        }
      }
    }
  }
  return ranges;
}

TEST(KvRange, TheIntersectionIsWhatIsInBoth) {
  for (const KvRange& a : SmallRanges()) {
    const Cells in_a = CellsOf(a);
    EXPECT_EQ(a.empty(), in_a.empty());
    for (const KvRange& b : SmallRanges()) {
      Cells in_both;
      for (const auto& cell : CellsOf(b)) {
        if (in_a.contains(cell)) in_both.insert(cell);
      }
      ASSERT_EQ(CellsOf(Intersection(a, b)), in_both);
      ASSERT_EQ(Intersection(a, b), Intersection(b, a));
    }
  }
}

TEST(KvRange, AMisfitIsAnAxisThatIsEmptyOrSticksOut) {
  for (const KvRange& whole : SmallRanges()) {
    for (const KvRange& range : SmallRanges()) {
      bool within = !range.empty();
      const Cells there = CellsOf(whole);
      for (const auto& cell : CellsOf(range)) within = within && there.contains(cell);
      const auto misfit = MisfitOf(range, whole);
      ASSERT_EQ(!misfit.has_value(), within);
      if (!misfit || misfit->axis == "heads") continue;
      // The heads are named first.
      ASSERT_TRUE(KvRangeWithin(range.heads.first, range.heads.count, whole.heads.first,
                                whole.heads.count));
      ASSERT_EQ(*misfit, (KvMisfit{"layers", range.first_layer, range.layers, whole.first_layer,
                                   whole.layers}));
    }
  }
}

TEST(KvRange, TheLargestValuesDoNotWrapAround) {
  constexpr uint32_t kMax = UINT32_MAX;
  const KvRange some{{4, 4}, 2, 6};
  EXPECT_EQ(Intersection(some, {{0, kMax}, 3, kMax}), (KvRange{{4, 4}, 3, 5}));
  EXPECT_EQ(Intersection({{kMax, 1}, kMax, kMax}, {{1, kMax}, 1, kMax}),
            (KvRange{{kMax, 1}, kMax, 1}));
  EXPECT_TRUE(Intersection(some, {{kMax, kMax}, kMax, kMax}).empty());
  EXPECT_EQ(MisfitOf({{5, kMax}, 2, 6}, some), (KvMisfit{"heads", 5, kMax, 4, 4}));
  EXPECT_EQ(MisfitOf({{kMax, 2}, 2, 6}, some), (KvMisfit{"heads", kMax, 2, 4, 4}));
  EXPECT_EQ(MisfitOf({{4, 4}, 7, kMax}, some), (KvMisfit{"layers", 7, kMax, 2, 6}));
}

}  // namespace
}  // namespace kvxfer::testing
