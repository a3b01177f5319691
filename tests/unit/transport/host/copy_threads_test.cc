#include "src/transport/host/copy_threads.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "tests/support/scale.h"

namespace kvxfer {
namespace {

TEST(CopyThreadsTest, EveryPartIsDoneOnceAndBeforeRunReturns) {
  for (uint32_t count = 1; count <= 4; ++count) {
    CopyThreads threads(count);
    std::vector<int> done(count, 0);  // no atomics: Run orders them
    const int rounds = testing::Scaled(5000);
    for (int round = 0; round < rounds; ++round) {
      const uint32_t parts = 1 + static_cast<uint32_t>(round) % count;
      threads.Run(parts, [&](uint32_t i) { ++done[i]; });
    }
    for (uint32_t i = 0; i < count; ++i) {
      int expected = 0;
      for (int round = 0; round < rounds; ++round) {
        expected += i <= static_cast<uint32_t>(round) % count;
      }
      EXPECT_EQ(done[i], expected) << count << " threads, part " << i;
    }
  }
}

TEST(CopyThreadsTest, PartsRunOnThreadsOfTheirOwnAndTheFirstOnTheCallers) {
  CopyThreads threads(3);
  std::vector<std::thread::id> ids(3);
  std::atomic<int> begun{0};
  threads.Run(3, [&](uint32_t i) {
    ids[i] = std::this_thread::get_id();
    // The caller takes what the others have not begun.
    for (++begun; begun < 3;) testing::Pause();
  });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 3u);
}

// Each part is done once, whoever comes first; and who is late is not waited for.
TEST(CopyThreadsTest, WhoComesTooLateFindsItsPartDone) {
  CopyThreads threads(2);
  const std::thread::id caller = std::this_thread::get_id();
  int by_caller = 0;
  int by_other = 0;
  const int rounds = testing::Scaled(20'000);
  for (int round = 0; round < rounds; ++round) {
    std::atomic<bool> first_may_end{round % 100 != 0};
    const int before = by_caller;
    const bool in_time = threads.Run(2, [&](uint32_t part) {
      if (part == 1) {
        ++(std::this_thread::get_id() == caller ? by_caller : by_other);
        first_may_end = true;
      }
      while (!first_may_end) testing::Pause();
    });
    if (by_caller != before) {
      EXPECT_FALSE(in_time) << round;
    }
  }
  EXPECT_EQ(by_caller + by_other, rounds);
  EXPECT_GE(by_other, rounds / 100);
  EXPECT_GT(by_caller, 0);
}

// The caller's own part is the measure: it ends when the other one has begun, or when that has
// ended.
TEST(CopyThreadsTest, SaysWhetherTheOthersWereInTime) {
  CopyThreads threads(2);
  for (const bool slow : {true, false}) {
    bool in_time = slow;
    // Several tries: whoever has no CPU for a while is slower than meant.
    for (int i = 0; i < 50 && in_time == slow; ++i) {
      std::atomic<bool> may_end{false};
      const Time start = Now();
      in_time = threads.Run(2, [&](uint32_t part) {
        if (part == 0) {
          while (!may_end) testing::Pause();
          return;
        }
        may_end = slow;
        if (slow) {
          std::this_thread::sleep_for(3 * (Now() - start) + std::chrono::milliseconds(5));
        }
        may_end = true;
      });
    }
    EXPECT_EQ(in_time, !slow);
  }
}

// An offer that is taken back while the other thread wakes up: it must not begin it then. Each
// round has a function of its own, on a new stack frame.
TEST(CopyThreadsTest, WhoWakesUpTooLateBeginsNothing) {
  CopyThreads threads(3);
  const int rounds = testing::Scaled(12'000);
  for (int round = 0; round < rounds; ++round) {
    std::array<std::atomic<int>, 3> done{};
    threads.Run(3, [&](uint32_t part) { ++done[part]; });
    for (const std::atomic<int>& count : done) ASSERT_EQ(count, 1) << round;
    // Longer than they spin, in some rounds.
    if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(round % 200));
  }
}

TEST(CopyThreadsTest, SleepersAreWoken) {
  CopyThreads threads(2);
  int sum = 0;
  for (int i = 0; i < 20; ++i) {
    // Far longer than they spin.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> other{-1};
    threads.Run(2, [&](uint32_t part) {
      if (part == 1) other = i;
      while (other < 0) testing::Pause();
    });
    sum += other;
  }
  EXPECT_EQ(sum, 190);
}

TEST(CopyThreadsTest, OnePartNeedsNoThreads) {
  CopyThreads threads(2);
  int runs = 0;
  threads.Run(1, [&](uint32_t part) { runs += part == 0; });
  EXPECT_EQ(runs, 1);
}

}  // namespace
}  // namespace kvxfer
