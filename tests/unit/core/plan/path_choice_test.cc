// Which path a transfer takes: the order of the list, unless figures of both say otherwise.
#include "src/core/plan/path_choice.h"

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

namespace kvxfer::testing {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kMiB = 1024 * 1024;

std::vector<int> Order(const std::vector<PathFigures>& paths, uint64_t bytes) {
  std::vector<int> order;
  for (const uint8_t index : OrderPaths(paths, bytes)) order.push_back(index);
  return order;
}

// Keeps two ops of 1 MiB in flight for `ops` of them, each over after `each`; never idle.
Time Busy(PathMeasure& path, Time now, int ops, Duration each) {
  path.OnPosted(kMiB, now);
  for (int i = 0; i < ops; ++i) {
    path.OnPosted(kMiB, now);
    now += each;
    path.OnCompleted(kMiB, now, true);
  }
  path.OnCompleted(kMiB, now, true);
  return now;
}

TEST(PathChoice, ListOrderStandsWithoutFiguresOfBoth) {
  EXPECT_EQ(Order({}, kMiB), std::vector<int>{});
  EXPECT_EQ(Order({{}, {}, {}}, kMiB), (std::vector{0, 1, 2}));
  EXPECT_EQ(Order({{}, {.bytes_per_second = 1e12}}, kMiB), (std::vector{0, 1}));
  EXPECT_EQ(Order({{.bytes_per_second = 1}, {}}, kMiB), (std::vector{0, 1}));
  EXPECT_EQ(Order({{.bytes_per_second = 1}, {.latency = microseconds(1)}}, kMiB),
            (std::vector{0, 1}));
}

TEST(PathChoice, OnlyClearlyFasterPasses) {
  EXPECT_EQ(Order({{.bytes_per_second = 1e9}, {.bytes_per_second = 1.4e9}}, kMiB),
            (std::vector{0, 1}));
  EXPECT_EQ(Order({{.bytes_per_second = 1e9}, {.bytes_per_second = 1.6e9}}, kMiB),
            (std::vector{1, 0}));
  // One that is between and unknown is not passed: nothing says that it is slower.
  EXPECT_EQ(Order({{.bytes_per_second = 1e9}, {}, {.bytes_per_second = 9e9}}, kMiB),
            (std::vector{0, 1, 2}));
  EXPECT_EQ(Order({{.bytes_per_second = 1e9}, {.bytes_per_second = 2e9}, {.bytes_per_second = 4e9}},
                  kMiB),
            (std::vector{2, 1, 0}));
}

TEST(PathChoice, LatencyDecidesSmallOnesAndSpeedLargeOnes) {
  const std::vector<PathFigures> paths{{.bytes_per_second = 10e9, .latency = microseconds(1000)},
                                       {.bytes_per_second = 1e9, .latency = microseconds(50)}};
  EXPECT_EQ(Order(paths, 4096), (std::vector{1, 0}));
  EXPECT_EQ(Order(paths, 64 * kMiB), (std::vector{0, 1}));
}

TEST(PathMeasure, SpeedIsThatOfBusyTime) {
  PathMeasure path;
  Time now{seconds(1000)};
  EXPECT_EQ(path.At(now).bytes_per_second, 0);
  now = Busy(path, now, 16, milliseconds(1));
  EXPECT_NEAR(path.At(now).bytes_per_second, kMiB * 1e3, kMiB * 1e3 / 8);
  EXPECT_TRUE(path.idle());
}

// Single ops with nothing behind them say how long one takes, not what the path carries.
TEST(PathMeasure, WhatRanEmptyIsNoSpeed) {
  PathMeasure path;
  Time now{seconds(1000)};
  for (int i = 0; i < 64; ++i) {
    path.OnPosted(kMiB, now);
    now += milliseconds(20);
    path.OnCompleted(kMiB, now, true);
    now += milliseconds(5);
  }
  EXPECT_EQ(path.At(now).bytes_per_second, 0);
  // Nor does it lower what is known.
  now = Busy(path, now, 32, milliseconds(1));
  const double known = path.At(now).bytes_per_second;
  EXPECT_GT(known, 0);
  for (int i = 0; i < 64; ++i) {
    path.OnPosted(kMiB, now);
    now += milliseconds(20);
    path.OnCompleted(kMiB, now, true);
  }
  EXPECT_GE(path.At(now).bytes_per_second, known);
}

TEST(PathMeasure, FailedOpsAreNoSample) {
  PathMeasure path;
  Time now{seconds(1000)};
  for (int i = 0; i < 64; ++i) {
    path.OnPosted(kMiB, now);
    path.OnPosted(kMiB, now);
    now += microseconds(1);
    path.OnCompleted(kMiB, now, false);
    path.OnCompleted(kMiB, now, false);
  }
  EXPECT_EQ(path.At(now).bytes_per_second, 0);
  EXPECT_TRUE(path.idle());
}

TEST(PathMeasure, WhatWasSeenIsForgotten) {
  PathMeasure path;
  Time now = Busy(path, Time{seconds(1000)}, 16, milliseconds(10));
  path.OnSmallDone(microseconds(70), now);
  EXPECT_EQ(path.At(now).latency, microseconds(70));
  const double slow = path.At(now).bytes_per_second;
  now += PathMeasure::kLately + seconds(1);
  EXPECT_EQ(path.At(now).bytes_per_second, 0);
  EXPECT_EQ(path.At(now).latency, Duration::zero());
  // What comes then does not count together with what is forgotten.
  now = Busy(path, now, 8, milliseconds(1));
  EXPECT_GT(path.At(now).bytes_per_second, 5 * slow);
  path.OnSmallDone(microseconds(10), now);
  EXPECT_EQ(path.At(now).latency, microseconds(10));
  path.OnSmallDone(microseconds(50), now);
  EXPECT_EQ(path.At(now).latency, microseconds(20));
}

}  // namespace
}  // namespace kvxfer::testing
