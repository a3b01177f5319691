// What a GPU's rate is learnt to be: how large batches are made and when their ends are looked for.
#include "src/cuda/copy_rate.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "tests/support/scale.h"

namespace kvxfer::cuda {
namespace {

using std::chrono::microseconds;

// A GPU that copies `gb_per_s`, and somebody who wakes up to `late` behind the time when he means
// to look, 20 us before the predicted end, and watches from then on. Some ends are there already.
class Gpu {
 public:
  Gpu(double gb_per_s, Duration late) : gb_per_s_(gb_per_s), late_(late) {}

  Duration Takes(uint64_t bytes) const {
    const std::chrono::duration<double, std::nano> moving(static_cast<double>(bytes) / gb_per_s_);
    return microseconds(8) + std::chrono::duration_cast<Duration>(moving);
  }
  // How late ends are noticed, on the average of the last half of `batches`.
  Duration Run(CopyRate& rate, int batches, uint64_t bytes = 0) {
    Duration noticed{};
    for (int i = 0; i < batches; ++i) {
      const uint64_t size = bytes > 0 ? bytes : rate.BatchBytes(Reach::kOwn);
      const Duration took = Takes(size);
      const Duration wakes = rate.Predict(size, Reach::kOwn) - microseconds(20) +
                             Duration(random_() % static_cast<uint64_t>(late_.count() + 1));
      // The first look, at the beginning, finds it running.
      const bool there = wakes >= took;
      const Duration seen = there ? wakes : took + microseconds(1);
      rate.Learn(size, Reach::kOwn, there ? microseconds(2) : took, seen);
      if (i >= batches / 2) noticed += seen - took;
    }
    return noticed / (batches - batches / 2);
  }

 private:
  const double gb_per_s_;
  const Duration late_;
  std::mt19937_64 random_{kvxfer::testing::TestSeed()};
};

TEST(CudaCopyRateTest, LearnsFasterAndSlowerGpus) {
  for (const double gb_per_s : {2.0, 90.0, 1400.0, 4000.0}) {
    CopyRate rate;
    Gpu gpu(gb_per_s, microseconds(10));
    gpu.Run(rate, 300);
    const auto bytes = static_cast<uint64_t>(gb_per_s * 1e5);  // 100 us
    EXPECT_GT(rate.Predict(bytes, Reach::kOwn), microseconds(70)) << gb_per_s;
    EXPECT_LT(rate.Predict(bytes, Reach::kOwn), microseconds(140)) << gb_per_s;
  }
}

// Whoever always wakes late must not come to believe that the GPU is slow.
TEST(CudaCopyRateTest, WakingLateDoesNotDriftAway) {
  for (const auto late : {microseconds(15), microseconds(60), microseconds(500)}) {
    CopyRate rate;
    Gpu gpu(1000, late);
    const Duration first = gpu.Run(rate, 100, 32 << 20);
    const Duration later = gpu.Run(rate, 10000, 32 << 20);
    EXPECT_LT(first, late + microseconds(20)) << late.count();
    EXPECT_LT(later, late + microseconds(20)) << late.count();
  }
}

TEST(CudaCopyRateTest, ABatchKeepsTheGpuBusyForItsTime) {
  CopyRate rate;
  Gpu gpu(1900, microseconds(10));
  gpu.Run(rate, 300);
  const uint64_t bytes = rate.BatchBytes(Reach::kOwn);
  EXPECT_GT(gpu.Takes(bytes), microseconds(100));
  EXPECT_LT(gpu.Takes(bytes), microseconds(220));
}

// A GPU that first has to change to this process's context takes its time whatever the size.
TEST(CudaCopyRateTest, TheTimeOfALaunchIsApart) {
  CopyRate rate;
  for (int i = 0; i < 200; ++i) {
    rate.Learn(4096, Reach::kOwn, microseconds(340), microseconds(350));
  }
  EXPECT_GT(rate.Predict(4096, Reach::kOwn), microseconds(330));
  EXPECT_LT(rate.Predict(32 << 20, Reach::kOwn), microseconds(420));
  for (int i = 0; i < 200; ++i) {
    rate.Learn(4096, Reach::kOwn, microseconds(9), microseconds(10));
  }
  EXPECT_LT(rate.Predict(4096, Reach::kOwn), microseconds(12));
}

TEST(CudaCopyRateTest, ReachesAreApart) {
  CopyRate rate;
  const Duration before = rate.Predict(1 << 20, Reach::kOwn);
  for (int i = 0; i < 100; ++i) {
    rate.Learn(1 << 20, Reach::kHost, microseconds(490), microseconds(500));
  }
  EXPECT_EQ(rate.Predict(1 << 20, Reach::kOwn), before);
  EXPECT_GT(rate.Predict(1 << 20, Reach::kHost), microseconds(480));
}

// Whatever was seen, a batch has some bytes and no more than a batch may have.
TEST(CudaCopyRateTest, StaysWithinBounds) {
  for (const Reach reach : {Reach::kOwn, Reach::kPeer, Reach::kHost}) {
    CopyRate rate;
    for (int i = 0; i < 1000; ++i) {
      rate.Learn(1 << 20, reach, std::chrono::hours(1), std::chrono::hours(2));
    }
    EXPECT_GE(rate.BatchBytes(reach), uint64_t{1} << 20);
    for (int i = 0; i < 1000; ++i) rate.Learn(1 << 30, reach, Duration::zero(), Duration::zero());
    EXPECT_LE(rate.BatchBytes(reach), Copier::kMaxPagedBytes);
    EXPECT_GT(rate.Predict(1 << 30, reach), Duration::zero());
  }
}

}  // namespace
}  // namespace kvxfer::cuda
