#include "src/core/protocol/arrival_capacity.h"

#include <gtest/gtest.h>

namespace kvxfer::testing {
namespace {

TEST(ArrivalCapacityTest, HoldsWholeRangesAndOneAtLeast) {
  for (const size_t arrivals : {1u, 64u, 127u}) {
    ArrivalCapacity space(arrivals);
    EXPECT_TRUE(space.Fits(1) && !space.Fits(2)) << arrivals;
    EXPECT_TRUE(space.MayGrow(0));
    space.Take(1);
    EXPECT_FALSE(space.MayGrow(0));
    EXPECT_TRUE(space.Fits(0) && !space.Fits(1));
    space.Give(1);
    EXPECT_TRUE(space.MayGrow(0));
  }
}

TEST(ArrivalCapacityTest, HalfIsForThoseThatHaveNone) {
  ArrivalCapacity space(7 * kRangeSlots);
  for (uint32_t held = 0; held < 4; ++held) {
    ASSERT_TRUE(space.MayGrow(held));
    space.Take(1);
  }
  EXPECT_FALSE(space.MayGrow(1));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(space.MayGrow(0));
    space.Take(1);
  }
  EXPECT_FALSE(space.MayGrow(0));
  // One that comes back with more than half fits if there is that much.
  space.Give(4);
  EXPECT_TRUE(space.Fits(4) && !space.Fits(5));
}

TEST(ArrivalCapacityTest, WithoutBoundThereIsRoomForEverySlotThatAnImmediateCanName) {
  for (const size_t arrivals : {size_t{0}, SIZE_MAX}) {
    ArrivalCapacity space(arrivals);
    constexpr uint32_t kRanges = (1u << kSlotBits) / kRangeSlots;
    EXPECT_TRUE(space.Fits(kRanges));
    space.Take(kRanges - 1);
    EXPECT_TRUE(space.MayGrow(1));
    space.Take(1);
    EXPECT_FALSE(space.MayGrow(0));
  }
}

}  // namespace
}  // namespace kvxfer::testing
