#include "src/core/protocol/slot_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvxfer::testing {
namespace {

TEST(SlotTableTest, GrantsRangesUntilFullAndAgainAfterRelease) {
  SlotTable table(2);
  const auto a = table.Grant(1);
  const auto b = table.Grant(2);
  ASSERT_TRUE(a.has_value() && b.has_value());
  EXPECT_NE(a->range.first, b->range.first);
  EXPECT_EQ(a->range.count, kRangeSlots);
  EXPECT_FALSE(table.Grant(3).has_value());
  EXPECT_EQ(table.ranges_in_use(), 2u);
  table.Release(1);
  EXPECT_EQ(table.ranges_in_use(), 1u);
  EXPECT_EQ(table.Grant(3)->range.first, a->range.first);
  EXPECT_EQ(table.Find(a->range.first)->session_id, 3u);
}

TEST(SlotTableTest, FindsGrantedSlotsOnly) {
  SlotTable table;
  EXPECT_EQ(table.Find(0), nullptr);
  const auto grant = table.Grant(1);
  EXPECT_NE(table.Find(grant->range.first + kRangeSlots - 1), nullptr);
  EXPECT_EQ(table.Find(grant->range.first + kRangeSlots), nullptr);
  EXPECT_EQ(table.Find((1u << kSlotBits) - 1), nullptr);
  EXPECT_EQ(table.Find(UINT32_MAX), nullptr);
  table.Release(1);
  EXPECT_EQ(table.Find(grant->range.first), nullptr);
}

TEST(SlotTableTest, HoldsAllSlotsAnImmediateCanName) {
  SlotTable table;
  uint32_t last = 0;
  for (uint32_t i = 0; i < (1u << kSlotBits) / kRangeSlots; ++i) {
    const auto grant = table.Grant(1 + i % 3);
    ASSERT_TRUE(grant.has_value());
    last = grant->range.first + kRangeSlots;
  }
  EXPECT_EQ(last, 1u << kSlotBits);
  EXPECT_FALSE(table.Grant(1).has_value());
  SlotTable larger(1u << 30);  // cut to what an immediate can name
  for (uint32_t i = 0; i < (1u << kSlotBits) / kRangeSlots; ++i) ASSERT_TRUE(larger.Grant(1));
  EXPECT_FALSE(larger.Grant(1).has_value());
}

TEST(SlotTableTest, NextOwnerStartsAboveEveryGenerationInUse) {
  SlotTable table(1, 5);
  auto grant = table.Grant(1);
  EXPECT_EQ(grant->generation, 5u);
  table.Find(grant->range.first + 7)->generation = 9;
  table.Release(1);
  EXPECT_EQ(table.Grant(2)->generation, 10u);
}

// Expect that no slot begins at the generation it ended with, after a wrap too.
TEST(SlotTableTest, NextOwnerNeverStartsWhereASlotEnded) {
  for (uint32_t wrapped = 0; wrapped < 4; ++wrapped) {
    SlotTable table(1, kGenerationMask);
    const auto grant = table.Grant(1);
    for (uint32_t i = 0; i < wrapped; ++i) table.Find(grant->range.first + i)->generation = i;
    table.Release(1);
    EXPECT_EQ(table.Grant(2)->generation, wrapped);
  }
}

TEST(SlotTableTest, ReleaseTakesEveryRangeOfThatOwnerAndNoOther) {
  SlotTable table(4);
  const auto a = table.Grant(1);
  const auto other = table.Grant(2);
  const auto b = table.Grant(1);
  table.Find(a->range.first)->arrivals = 3;
  table.Release(1);
  EXPECT_EQ(table.Find(a->range.first), nullptr);
  EXPECT_EQ(table.Find(b->range.first), nullptr);
  EXPECT_EQ(table.Find(other->range.first)->session_id, 2u);
  // Expect counts to begin anew.
  while (const auto grant = table.Grant(3)) {
    EXPECT_EQ(table.Find(grant->range.first)->arrivals, 0u);
  }
}

}  // namespace
}  // namespace kvxfer::testing
