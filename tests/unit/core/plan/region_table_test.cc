#include "src/core/plan/region_table.h"

#include <gtest/gtest.h>

#include <optional>
#include <random>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/plan/region_views.h"

namespace kvxfer {
namespace {

using testing::Fails;
uint32_t IdAt(const RegionTable& table, const absl::StatusOr<uint32_t>& index) {
  return static_cast<uint32_t>(table.regions()[*index].id);
}

TEST(RegionTable, EmptyTableHoldsNothing) {
  EXPECT_TRUE(Fails(RegionTable().Find(1, 1, Access::kNone), kInvalid));
  EXPECT_TRUE(
      Fails(RegionTable({}, "decode-0").Find(1, 1, Access::kNone), kInvalid, {"decode-0", "none"}));
}

TEST(RegionTable, EdgesOfARegion) {
  const RegionTable table({View(1, 100, 50)}, "local");
  EXPECT_OK(table.Find(100, 50, Access::kNone));
  EXPECT_OK(table.Find(149, 1, Access::kNone));
  EXPECT_OK(table.Find(150, 0, Access::kNone));
  EXPECT_TRUE(Fails(table.Find(99, 2, Access::kNone), kInvalid));
  EXPECT_TRUE(Fails(table.Find(149, 2, Access::kNone), kInvalid));
  EXPECT_TRUE(Fails(table.Find(150, 1, Access::kNone), kInvalid));
  EXPECT_TRUE(Fails(table.Find(100, kTop, Access::kNone), kInvalid));
}

TEST(RegionTable, TheTopOfTheAddressSpace) {
  const RegionTable table({View(1, kTop - 9, 10), View(2, 16, 16)}, "local");
  EXPECT_EQ(IdAt(table, table.Find(kTop - 9, 10, Access::kNone)), 1u);
  EXPECT_TRUE(Fails(table.Find(kTop, 2, Access::kNone), kInvalid));
  EXPECT_TRUE(Fails(table.Find(kTop - 9, kTop, Access::kNone), kInvalid));
}

TEST(RegionTable, NeighboursAreNotOneRegion) {
  const RegionTable table({View(1, 100, 50), View(2, 150, 50)}, "local");
  EXPECT_TRUE(Fails(table.Find(140, 20, Access::kNone), kInvalid, {"local", "0x8c", "+20"}));
  EXPECT_EQ(IdAt(table, table.Find(150, 1, Access::kNone)), 2u);
  // Both have the seam.
  EXPECT_EQ(IdAt(table, table.Find(150, 0, Access::kNone)), 1u);
}

TEST(RegionTable, OfSeveralTheSmallestId) {
  const RegionTable table({View(7, 0, 1000), View(3, 100, 100), View(5, 120, 20)}, "local");
  EXPECT_EQ(IdAt(table, table.Find(125, 5, Access::kNone)), 3u);
  EXPECT_EQ(IdAt(table, table.Find(99, 5, Access::kNone)), 7u);
  EXPECT_EQ(IdAt(table, table.Find(500, 5, Access::kNone)), 7u);
}

TEST(RegionTable, RightsChooseAmongRegionsThatHoldIt) {
  const RegionTable table(
      {View(1, 100, 100, Access::kRemoteRead), View(2, 100, 50, Access::kRemoteWrite)}, "decode-0");
  EXPECT_EQ(IdAt(table, table.Find(100, 10, Access::kRemoteWrite)), 2u);
  EXPECT_EQ(IdAt(table, table.Find(100, 10, Access::kRemoteRead)), 1u);
  EXPECT_EQ(IdAt(table, table.Find(100, 10, Access::kNone)), 1u);
  EXPECT_TRUE(Fails(table.Find(160, 10, Access::kRemoteWrite), absl::StatusCode::kPermissionDenied,
                    {"decode-0", "region 1", "remote write"}));
  EXPECT_TRUE(Fails(table.Find(100, 10, Access::kReadWrite), absl::StatusCode::kPermissionDenied));
}

TEST(RegionTable, NamesTheNearest) {
  const RegionTable table({View(1, 100, 50), View(2, 1000, 50), View(3, 5000, 1)}, "local");
  EXPECT_TRUE(Fails(table.Find(900, 10, Access::kNone), kInvalid, {"nearest is region 2"}));
  EXPECT_TRUE(Fails(table.Find(151, 10, Access::kNone), kInvalid, {"nearest is region 1"}));
  EXPECT_TRUE(Fails(table.Find(kTop, 10, Access::kNone), kInvalid, {"nearest is region 3"}));
}

// The definition, by trying every region.
std::optional<uint32_t> PlainFind(const std::vector<RegionView>& regions, uint64_t address,
                                  uint64_t bytes, Access wanted, bool* held) {
  std::optional<uint32_t> best;
  *held = false;
  for (const RegionView& region : regions) {
    if (!region.Contains(address, bytes)) continue;
    *held = true;
    const auto id = static_cast<uint32_t>(region.id);
    if (Allows(region.access, wanted) && (!best.has_value() || id < *best)) best = id;
  }
  return best;
}

TEST(RegionTable, FindsWhatTryingAllFinds) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < testing::Scaled(300); ++round) {
    std::vector<RegionView> regions;
    const auto count = static_cast<uint32_t>(random() % 12);
    for (uint32_t id = 1; id <= count; ++id) {
      regions.push_back(
          View(id, random() % 60, random() % 30 + 1, static_cast<Access>(random() % 4)));
    }
    const RegionTable table(regions, "local");
    for (int query = 0; query < 200; ++query) {
      const uint64_t address = random() % 90;
      const uint64_t bytes = random() % 20;
      const auto wanted = static_cast<Access>(random() % 4);
      bool held = false;
      const auto want = PlainFind(regions, address, bytes, wanted, &held);
      const auto found = table.Find(address, bytes, wanted);
      if (want.has_value()) {
        ASSERT_OK(found);
        ASSERT_EQ(IdAt(table, found), *want);
      } else {
        ASSERT_TRUE(Fails(found, held ? absl::StatusCode::kPermissionDenied : kInvalid));
      }
    }
  }
}

}  // namespace
}  // namespace kvxfer
