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
using Buffers = std::vector<uint32_t>;

TEST(StageLender, LendsWhatIsAskedForUpToABound) {
  StageLender lender(16);
  ASSERT_TRUE(lender.Ask(1, 3).ok());
  auto lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].session_id, 1u);
  EXPECT_EQ(lent[0].buffers, (Buffers{0, 1, 2}));
  ASSERT_TRUE(lender.Ask(1, 100).ok());
  lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].buffers.size(), StageLender::kMaxHeld - 3);
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
  EXPECT_EQ(lender.TakeRecalled(), (std::vector<StageLender::SessionId>{1}));
  EXPECT_TRUE(Fails(lender.Ask(2, 1), absl::StatusCode::kFailedPrecondition, {"waits"}));
  ASSERT_TRUE(lender.Back(1, Buffers{2}).ok());
  auto lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].session_id, 2u);
  EXPECT_EQ(lent[0].buffers, (Buffers{2}));
  // The one that has just got some is asked too, for another waits still.
  EXPECT_EQ(lender.TakeRecalled(), (std::vector<StageLender::SessionId>{2}));
  ASSERT_TRUE(lender.Back(1, Buffers{0, 1, 3}).ok());
  lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].session_id, 3u);
  EXPECT_EQ(lent[0].buffers.size(), 3u);
}

TEST(StageLender, WhatOneHasNotGotItCannotGiveBack) {
  StageLender lender(4);
  ASSERT_TRUE(lender.Ask(1, 1).ok());
  EXPECT_TRUE(Fails(lender.Back(2, Buffers{0}), absl::StatusCode::kInvalidArgument, {"buffer 0"}));
  EXPECT_TRUE(
      Fails(lender.Back(1, Buffers{0, 0}), absl::StatusCode::kInvalidArgument, {"buffer 0"}));
}

TEST(StageLender, BuffersInUseOfOneThatIsGoneComeBackLater) {
  StageLender lender(2);
  ASSERT_TRUE(lender.Ask(1, 2).ok());
  lender.TakeLent();
  ASSERT_TRUE(lender.Ask(2, 2).ok());
  lender.Release(1, {1});
  auto lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].buffers, (Buffers{0}));
  ASSERT_TRUE(lender.Ask(2, 1).ok());
  EXPECT_TRUE(lender.TakeLent().empty());
  lender.Free(1);
  lent = lender.TakeLent();
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent[0].buffers, (Buffers{1}));
}

// Whatever the order: no buffer is lent twice or lost, nobody holds more than its share, and
// whoever waits gets something once the holders have given back what they were asked for.
TEST(StageLender, RandomSchedulesLoseNothing) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    std::mt19937_64 random(testing::TestSeed() * 1000 + seed);
    const auto buffers = static_cast<uint32_t>(1 + random() % 12);
    StageLender lender(buffers);
    std::map<StageLender::SessionId, std::set<uint32_t>> held;
    std::set<StageLender::SessionId> waiting;
    std::set<uint32_t> busy;  // of sessions that are gone
    const auto take = [&] {
      for (const auto& lent : lender.TakeLent()) {
        waiting.erase(lent.session_id);
        for (const uint32_t buffer : lent.buffers) {
          ASSERT_LT(buffer, buffers);
          ASSERT_FALSE(busy.contains(buffer));
          for (const auto& [session_id, has] : held) ASSERT_FALSE(has.contains(buffer));
          held[lent.session_id].insert(buffer);
        }
        ASSERT_LE(held[lent.session_id].size(), StageLender::kMaxHeld);
      }
    };
    for (int step = 0; step < 200; ++step) {
      const StageLender::SessionId session_id = 1 + random() % 5;
      switch (random() % 4) {
        case 0:
          if (!waiting.insert(session_id).second) break;
          ASSERT_TRUE(lender.Ask(session_id, static_cast<uint32_t>(random() % 12)).ok());
          break;
        case 1:
          if (held[session_id].empty()) break;
          ASSERT_TRUE(lender.Back(session_id, Buffers{*held[session_id].begin()}).ok());
          held[session_id].erase(held[session_id].begin());
          break;
        case 2: {
          std::set<uint32_t> kept;
          for (const uint32_t buffer : held[session_id]) {
            if (random() % 2 == 0) kept.insert(buffer);
          }
          if (random() % 8 != 0) break;
          lender.Release(session_id, kept);
          busy.insert(kept.begin(), kept.end());
          held.erase(session_id);
          waiting.erase(session_id);
          break;
        }
        default:
          if (busy.empty()) break;
          lender.Free(*busy.begin());
          busy.erase(busy.begin());
      }
      take();
    }
    for (const uint32_t buffer : std::exchange(busy, {})) lender.Free(buffer);
    take();
    for (int round = 0; round < 100 && !waiting.empty(); ++round) {
      for (const StageLender::SessionId session_id : lender.TakeRecalled()) {
        const Buffers all(held[session_id].begin(), held[session_id].end());
        held[session_id].clear();
        ASSERT_TRUE(lender.Back(session_id, all).ok());
      }
      take();
    }
    EXPECT_TRUE(waiting.empty()) << "seed " << seed;
    for (auto& [session_id, has] : held) {
      ASSERT_TRUE(lender.Back(session_id, Buffers(has.begin(), has.end())).ok());
    }
    ASSERT_TRUE(lender.Ask(99, 8).ok());
    const auto lent = lender.TakeLent();
    ASSERT_EQ(lent.size(), 1u);
    EXPECT_EQ(lent[0].buffers.size(), std::min<size_t>(buffers, StageLender::kMaxHeld));
  }
}

}  // namespace
}  // namespace kvxfer
