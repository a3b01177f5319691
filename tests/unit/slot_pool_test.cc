#include "src/core/slot_pool.h"

#include <gtest/gtest.h>

#include <set>

namespace kvxfer::testing {
namespace {

SlotGrantFrame Granted(uint32_t first, uint32_t count, uint32_t generation) {
  return {.range = {.first = first, .count = count}, .generation = generation};
}

TEST(SlotPoolTest, GivesEverySlotOnceAndThenNothing) {
  SlotPool pool;
  EXPECT_FALSE(pool.Take().has_value());
  pool.AddGrant(Granted(64, 3, 7));
  pool.AddGrant(Granted(256, 2, 9));
  std::set<uint32_t> slots;
  while (const auto ref = pool.Take()) {
    ASSERT_TRUE(slots.insert(ref->slot).second);
    EXPECT_EQ(ref->generation, ref->slot < 256 ? 7u : 9u);
  }
  EXPECT_EQ(slots, (std::set<uint32_t>{64, 65, 66, 256, 257}));
  EXPECT_EQ(pool.granted(), 5u);
  EXPECT_EQ(pool.available(), 0u);
}

TEST(SlotPoolTest, FreedSlotComesBackOneGenerationOnAndWraps) {
  SlotPool pool;
  pool.AddGrant(Granted(0, 1, kGenerationMask - 1));
  for (const uint32_t generation : {kGenerationMask - 1, kGenerationMask, 0u, 1u}) {
    const auto ref = pool.Take();
    ASSERT_TRUE(ref.has_value());
    EXPECT_EQ(ref->generation, generation);
    EXPECT_FALSE(pool.Take().has_value());
    EXPECT_TRUE(pool.Free(*ref).ok());
  }
}

TEST(SlotPoolTest, RefusesToFreeWhatIsNotInUse) {
  SlotPool pool;
  pool.AddGrant(Granted(0, 2, 3));
  EXPECT_EQ(pool.Free({.slot = 0, .generation = 3}).code(), absl::StatusCode::kInvalidArgument);
  const auto ref = pool.Take();
  // Expect another generation, and a second FREE, to be refused.
  EXPECT_FALSE(pool.Free({.slot = ref->slot, .generation = ref->generation + 1}).ok());
  EXPECT_TRUE(pool.Free(*ref).ok());
  EXPECT_FALSE(pool.Free(*ref).ok());
  EXPECT_EQ(pool.available(), 2u);
}

TEST(SlotPoolTest, ReservedSlotIsKeptFromOthers) {
  SlotPool pool;
  pool.AddGrant(Granted(0, 2, 0));
  const auto discarded = pool.Take();
  const auto other = pool.Take();
  ASSERT_TRUE(pool.Free(*discarded).ok());
  pool.Reserve();
  EXPECT_EQ(pool.available(), 0u);
  EXPECT_FALSE(pool.Take().has_value());
  EXPECT_EQ(pool.TakeReserved().slot, discarded->slot);
  // Expect the reservation of a transfer that ended otherwise to be given up.
  ASSERT_TRUE(pool.Free(*other).ok());
  pool.Reserve();
  pool.Unreserve();
  EXPECT_EQ(pool.Take()->slot, other->slot);
}

}  // namespace
}  // namespace kvxfer::testing
