#include "src/core/protocol/stage_lender.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

using testing::Fails;
using Slots = std::vector<uint32_t>;

TEST(StageLender, LendsWhatIsAskedForUpToABound) {
  StageLender lender(16);
  ASSERT_TRUE(lender.Ask(1, 3).ok());
  auto lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].owner, 1u);
  EXPECT_EQ(lent[0].slots, (Slots{0, 1, 2}));
  ASSERT_TRUE(lender.Ask(1, 100).ok());
  lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].slots.size(), StageLender::kMaxHeld - 3);
  EXPECT_TRUE(lender.TakeRecalled().empty());
  EXPECT_TRUE(lender.Holds(1, 7));
  EXPECT_FALSE(lender.Holds(2, 7));
  EXPECT_FALSE(lender.Holds(1, 8));
}

TEST(StageLender, WhoWaitsIsServedInTurnWhenHoldersGiveBack) {
  StageLender lender(4);
  ASSERT_TRUE(lender.Ask(1, 4).ok());
  lender.TakeLent();
  ASSERT_TRUE(lender.Ask(2, 4).ok());
  ASSERT_TRUE(lender.Ask(3, 4).ok());
  EXPECT_TRUE(lender.TakeLent().empty());
  // Asked once, however many wait.
  EXPECT_EQ(lender.TakeRecalled(), (std::vector<StageLender::Owner>{1}));
  EXPECT_TRUE(Fails(lender.Ask(2, 1), absl::StatusCode::kFailedPrecondition, {"waits"}));
  ASSERT_TRUE(lender.Back(1, Slots{2}).ok());
  auto lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].owner, 2u);
  EXPECT_EQ(lent[0].slots, (Slots{2}));
  // The one that has just got some is asked too, for another waits still.
  EXPECT_EQ(lender.TakeRecalled(), (std::vector<StageLender::Owner>{2}));
  ASSERT_TRUE(lender.Back(1, Slots{0, 1, 3}).ok());
  lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].owner, 3u);
  EXPECT_EQ(lent[0].slots.size(), 3u);
}

TEST(StageLender, WhatOneHasNotGotItCannotGiveBack) {
  StageLender lender(4);
  ASSERT_TRUE(lender.Ask(1, 1).ok());
  EXPECT_TRUE(Fails(lender.Back(2, Slots{0}), absl::StatusCode::kInvalidArgument, {"slot 0"}));
  EXPECT_TRUE(Fails(lender.Back(1, Slots{0, 0}), absl::StatusCode::kInvalidArgument, {"slot 0"}));
}

TEST(StageLender, SlotsInUseOfOneThatIsGoneComeBackLater) {
  StageLender lender(2);
  ASSERT_TRUE(lender.Ask(1, 2).ok());
  lender.TakeLent();
  ASSERT_TRUE(lender.Ask(2, 2).ok());
  lender.Release(1, {1});
  auto lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].slots, (Slots{0}));
  ASSERT_TRUE(lender.Ask(2, 1).ok());
  EXPECT_TRUE(lender.TakeLent().empty());
  lender.Free(1);
  lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].slots, (Slots{1}));
}

// Whatever the order: no slot is lent twice or lost, nobody holds more than its share, and whoever
// waits gets something once the holders have given back what they were asked for.
TEST(StageLender, RandomSchedulesLoseNothing) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(testing::TestSeed() * 1000 + seed);
    const auto slots = static_cast<uint32_t>(1 + random() % 12);
    StageLender lender(slots);
    std::map<StageLender::Owner, std::set<uint32_t>> held;
    std::set<StageLender::Owner> waiting;
    std::set<uint32_t> busy;  // of owners that are gone
    const auto take = [&] {
      for (const auto& lent : lender.TakeLent()) {
        waiting.erase(lent.owner);
        for (const uint32_t slot : lent.slots) {
          ASSERT_LT(slot, slots);
          ASSERT_FALSE(busy.contains(slot));
          for (const auto& [owner, has] : held) ASSERT_FALSE(has.contains(slot));
          held[lent.owner].insert(slot);
        }
        ASSERT_LE(held[lent.owner].size(), StageLender::kMaxHeld);
      }
    };
    for (int step = 0; step < 200; ++step) {
      const StageLender::Owner owner = 1 + random() % 5;
      switch (random() % 4) {
        case 0:
          if (!waiting.insert(owner).second) break;
          ASSERT_TRUE(lender.Ask(owner, static_cast<uint32_t>(random() % 12)).ok());
          break;
        case 1:
          if (held[owner].empty()) break;
          ASSERT_TRUE(lender.Back(owner, Slots{*held[owner].begin()}).ok());
          held[owner].erase(held[owner].begin());
          break;
        case 2: {
          std::set<uint32_t> kept;
          for (const uint32_t slot : held[owner]) {
            if (random() % 2 == 0) kept.insert(slot);
          }
          if (random() % 8 != 0) break;
          lender.Release(owner, kept);
          busy.insert(kept.begin(), kept.end());
          held.erase(owner);
          waiting.erase(owner);
          break;
        }
        default:
          if (busy.empty()) break;
          lender.Free(*busy.begin());
          busy.erase(busy.begin());
      }
      take();
    }
    for (const uint32_t slot : std::exchange(busy, {})) lender.Free(slot);
    take();
    for (int round = 0; round < 100 && !waiting.empty(); ++round) {
      for (const StageLender::Owner owner : lender.TakeRecalled()) {
        const Slots all(held[owner].begin(), held[owner].end());
        held[owner].clear();
        ASSERT_TRUE(lender.Back(owner, all).ok());
      }
      take();
    }
    EXPECT_TRUE(waiting.empty()) << "seed " << seed;
    for (auto& [owner, has] : held) {
      ASSERT_TRUE(lender.Back(owner, Slots(has.begin(), has.end())).ok());
    }
    ASSERT_TRUE(lender.Ask(99, 8).ok());
    const auto lent = lender.TakeLent();
    ASSERT_EQ(lent.size(), 1u);
    EXPECT_EQ(lent[0].slots.size(), std::min<size_t>(slots, StageLender::kMaxHeld));
  }
}

}  // namespace
}  // namespace kvxfer
