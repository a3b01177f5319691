#include "src/transport/host/copy_threads.h"

#include <gtest/gtest.h>

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
  threads.Run(3, [&](uint32_t i) { ids[i] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_EQ(std::set(ids.begin(), ids.end()).size(), 3u);
}

TEST(CopyThreadsTest, SleepersAreWoken) {
  CopyThreads threads(2);
  int sum = 0;
  for (int i = 0; i < 20; ++i) {
    // Far longer than the crew spins.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    int other = 0;
    threads.Run(2, [&](uint32_t part) {
      if (part == 1) other = i;
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
