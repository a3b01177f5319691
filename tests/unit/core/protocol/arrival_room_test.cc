#include "src/core/protocol/arrival_room.h"

#include <gtest/gtest.h>

namespace kvxfer::testing {
namespace {

TEST(ArrivalRoomTest, HoldsWholeRangesAndOneAtLeast) {
  for (const size_t arrivals : {1u, 64u, 127u}) {
    ArrivalRoom room(arrivals);
    EXPECT_TRUE(room.Fits(1) && !room.Fits(2)) << arrivals;
    EXPECT_TRUE(room.MayGrow(0));
    room.Take(1);
    EXPECT_FALSE(room.MayGrow(0));
    EXPECT_TRUE(room.Fits(0) && !room.Fits(1));
    room.Give(1);
    EXPECT_TRUE(room.MayGrow(0));
  }
}

TEST(ArrivalRoomTest, HalfIsForThoseThatHaveNone) {
  ArrivalRoom room(7 * kRangeSlots);
  for (uint32_t held = 0; held < 4; ++held) {
    ASSERT_TRUE(room.MayGrow(held));
    room.Take(1);
  }
  EXPECT_FALSE(room.MayGrow(1));
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(room.MayGrow(0));
    room.Take(1);
  }
  EXPECT_FALSE(room.MayGrow(0));
  // One that comes back with more than half fits if there is that much.
  room.Give(4);
  EXPECT_TRUE(room.Fits(4) && !room.Fits(5));
}

TEST(ArrivalRoomTest, WithoutBoundThereIsRoomForEverySlotThatAnImmediateCanName) {
  for (const size_t arrivals : {size_t{0}, SIZE_MAX}) {
    ArrivalRoom room(arrivals);
    constexpr uint32_t kRanges = (1u << kSlotBits) / kRangeSlots;
    EXPECT_TRUE(room.Fits(kRanges));
    room.Take(kRanges - 1);
    EXPECT_TRUE(room.MayGrow(1));
    room.Take(1);
    EXPECT_FALSE(room.MayGrow(0));
  }
}

}  // namespace
}  // namespace kvxfer::testing
