#include "src/core/protocol/slot_pool.h"

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
  ASSERT_TRUE(pool.AddGrant(Granted(64, 3, 7)).ok());
  ASSERT_TRUE(pool.AddGrant(Granted(256, 2, 9)).ok());
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
  ASSERT_TRUE(pool.AddGrant(Granted(0, 1, kGenerationMask - 1)).ok());
  for (const uint32_t generation : {kGenerationMask - 1, kGenerationMask, 0u, 1u}) {
    const auto ref = pool.Take();
    ASSERT_TRUE(ref.has_value());
    EXPECT_EQ(ref->generation, generation);
    EXPECT_FALSE(pool.Take().has_value());
    EXPECT_TRUE(pool.Free(*ref).ok());
  }
}

TEST(SlotPoolTest, RefusesGrantsThatNoTargetMakes) {
  SlotPool pool;
  ASSERT_TRUE(pool.AddGrant(Granted(64, 64, 0)).ok());
  const auto all = 1u << kSlotBits;
  for (const auto& [first, count] : {std::pair{64u, 64u},
                                     {127u, 1u},
                                     {0u, 65u},
                                     {5u, 0u},
                                     {all - 1, 2u},
                                     {all, 1u},
                                     {~0u, 2u},
                                     {0u, ~0u}}) {
    EXPECT_EQ(pool.AddGrant(Granted(first, count, 0)).code(), absl::StatusCode::kInvalidArgument)
        << count << " from " << first;
  }
  EXPECT_EQ(pool.granted(), 64u);
  // Expect slots in use and freed ones to stay known.
  const auto ref = pool.Take();
  EXPECT_FALSE(pool.AddGrant(Granted(ref->slot, 1, 0)).ok());
  EXPECT_TRUE(pool.AddGrant(Granted(0, 64, 0)).ok());
  EXPECT_TRUE(pool.AddGrant(Granted(all - 1, 1, 0)).ok());
}

TEST(SlotPoolTest, RefusesToFreeWhatIsNotInUse) {
  SlotPool pool;
  ASSERT_TRUE(pool.AddGrant(Granted(0, 2, 3)).ok());
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
  ASSERT_TRUE(pool.AddGrant(Granted(0, 2, 0)).ok());
  const auto discarded = pool.Take();
  const auto other = pool.Take();
  ASSERT_TRUE(pool.Free(*discarded).ok());
  ASSERT_TRUE(pool.Reserve());
  EXPECT_EQ(pool.available(), 0u);
  EXPECT_FALSE(pool.Take().has_value());
  EXPECT_EQ(pool.TakeReserved().slot, discarded->slot);
  // Expect the reservation of a transfer that ended otherwise to be given up.
  ASSERT_TRUE(pool.Free(*other).ok());
  ASSERT_TRUE(pool.Reserve());
  pool.Unreserve();
  EXPECT_EQ(pool.Take()->slot, other->slot);
}

TEST(SlotPoolTest, WhereNoSlotIsFreeNoneIsReserved) {
  SlotPool pool;
  EXPECT_FALSE(pool.Reserve());
  ASSERT_TRUE(pool.AddGrant(Granted(0, 1, 0)).ok());
  const auto only = pool.Take();
  EXPECT_FALSE(pool.Reserve());
  EXPECT_EQ(pool.available(), 0u);
  ASSERT_TRUE(pool.Free(*only).ok());
  EXPECT_TRUE(pool.Reserve());
  EXPECT_FALSE(pool.Reserve());
}

}  // namespace
}  // namespace kvxfer::testing
