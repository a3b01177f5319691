// Rails get bytes as they have speed. A small simulation stands for the rails: each works off its
// queue at its own speed, whatever the estimate says.

#include "src/core/plan/rail_picker.h"

#include <gtest/gtest.h>

#include <deque>
#include <random>
#include <vector>

#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kAllUp = UINT64_MAX;

class Simulation {
 public:
  explicit Simulation(const std::vector<RailInfo>& infos) : choice(infos), rails(infos.size()) {}

  struct SimRail {
    double speed = 1e9;     // bytes a second; 0: stalled
    double latency = 2e-6;  // seconds an op takes beside its bytes
    uint64_t got = 0;       // bytes posted
    std::deque<uint64_t> queue{};
    double free_at = 0;  // when the op at the front is over
  };

  // Posts `count` ops of `bytes`, at most `window` bytes in flight in all, and looks for
  // completions every `poll` seconds.
  void Transfer(int count, uint64_t bytes, uint64_t window, double poll = 5e-6) {
    while (count > 0 || (window > 0 && Busy())) {
      while (count > 0 && InFlight() + bytes <= window) {
        const uint32_t rail = choice.Pick(bytes, kAllUp);
        if (rail == kNoRail) break;
        choice.OnPosted(rail, bytes, At(now));
        SimRail& sim = rails[rail];
        if (sim.queue.empty()) sim.free_at = now + Takes(sim, bytes);
        sim.queue.push_back(bytes);
        sim.got += bytes;
        --count;
      }
      now += poll;
      Complete();
      if (now > limit) return;
    }
  }

  uint64_t InFlight() const {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < rails.size(); ++i) bytes += choice.in_flight(i);
    return bytes;
  }
  double Share(uint32_t rail) const {
    uint64_t all = 0;
    for (const SimRail& sim : rails) all += sim.got;
    return static_cast<double>(rails[rail].got) / static_cast<double>(all);
  }

  RailPicker choice;
  std::vector<SimRail> rails;
  double now = 0;
  double limit = 100;

 private:
  static Time At(double seconds) {
    return Time(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
  }
  static double Takes(const SimRail& sim, uint64_t bytes) {
    return sim.speed == 0 ? 1e9 : static_cast<double>(bytes) / sim.speed + sim.latency;
  }
  bool Busy() const {
    for (const SimRail& sim : rails) {
      if (!sim.queue.empty() && sim.speed > 0) return true;
    }
    return false;
  }
  void Complete() {
    for (uint32_t i = 0; i < rails.size(); ++i) {
      SimRail& sim = rails[i];
      while (!sim.queue.empty() && sim.free_at <= now) {
        choice.OnCompleted(i, sim.queue.front(), At(now), true);
        sim.queue.pop_front();
        if (!sim.queue.empty()) sim.free_at += Takes(sim, sim.queue.front());
      }
    }
  }
};

TEST(RailPicker, EqualRailsShareEqually) {
  Simulation sim(std::vector<RailInfo>(4));
  sim.Transfer(4000, 256 * 1024, 8 << 20);
  for (uint32_t rail = 0; rail < 4; ++rail) EXPECT_NEAR(sim.Share(rail), 0.25, 0.02) << rail;
}

// Nothing is known beforehand: what they carry tells.
TEST(RailPicker, ARailAtAQuarterOfTheSpeedGetsAboutAQuarterOfTheBytes) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 20; ++round) {
    Simulation sim(std::vector<RailInfo>(2));
    const double speed = 1e9 * static_cast<double>(1 + random() % 50);
    sim.rails[0].speed = speed;
    sim.rails[1].speed = speed / 4;
    const uint64_t bytes = (64 + random() % 960) * 1024;
    sim.Transfer(3000, bytes, bytes * (8 + random() % 24));
    EXPECT_NEAR(sim.Share(1), 0.2, 0.05) << speed << " B/s, " << bytes << " bytes an op";
  }
}

TEST(RailPicker, NominalSpeedsAreWhereItBegins) {
  const std::vector<RailInfo> infos = {{.bytes_per_second = 50e9}, {.bytes_per_second = 12.5e9}};
  RailPicker choice(infos);
  uint64_t got[2] = {0, 0};
  for (int i = 0; i < 50; ++i) {
    const uint32_t rail = choice.Pick(1 << 20, kAllUp);
    choice.OnPosted(rail, 1 << 20, Time{});
    got[rail] += 1;
  }
  EXPECT_EQ(got[0], 40u);
  EXPECT_EQ(got[1], 10u);
}

TEST(RailPicker, OneOfUnknownSpeedCountsAsTheBest) {
  const std::vector<RailInfo> infos = {{.bytes_per_second = 50e9}, {}};
  RailPicker picker(infos);
  uint64_t got[2] = {0, 0};
  for (int i = 0; i < 10; ++i) {
    const uint32_t rail = picker.Pick(1 << 20, kAllUp);
    picker.OnPosted(rail, 1 << 20, Time{});
    got[rail] += 1;
  }
  EXPECT_EQ(got[0], 5u);
  EXPECT_EQ(picker.bytes_per_second(1), 0);
}

// Small transfers one after the other go over the first rail and tell how fast it is.
TEST(RailPicker, OneThatWasNeverMeasuredGetsItsShareBesideOneThatWas) {
  const std::vector<RailInfo> infos(2);
  RailPicker picker(infos);
  Time now{};
  for (int i = 0; i < 2000; ++i) {
    picker.OnPosted(0, 4096, now);
    now += std::chrono::nanoseconds(500);
    picker.OnCompleted(0, 4096, now, true);
  }
  EXPECT_GT(picker.bytes_per_second(0), 4e9);
  uint64_t got[2] = {0, 0};
  for (int i = 0; i < 8; ++i) {
    const uint32_t rail = picker.Pick(64 * 1024, kAllUp);
    picker.OnPosted(rail, 64 * 1024, now);
    got[rail] += 1;
  }
  EXPECT_EQ(got[1], 4u);
}

TEST(RailPicker, ARailThatStallsGetsNoMoreThanItsWindow) {
  Simulation sim(std::vector<RailInfo>(2));
  sim.Transfer(200, 256 * 1024, 4 << 20);
  sim.rails[1].speed = 0;
  const uint64_t before = sim.rails[1].got;
  sim.Transfer(2000, 256 * 1024, 8 << 20);
  // Expect what fits beside the other's backlog, and then nothing.
  EXPECT_LE(sim.rails[1].got - before, uint64_t{5} << 20);
  EXPECT_GT(sim.rails[0].got, uint64_t{1900} * 256 * 1024);
}

TEST(RailPicker, ARailThatSlowsDownAndRecoversGetsItsShareBack) {
  Simulation sim(std::vector<RailInfo>(2));
  sim.Transfer(2000, 256 * 1024, 8 << 20);
  sim.rails[1].speed = 1e8;
  sim.Transfer(2000, 256 * 1024, 8 << 20);
  EXPECT_LT(sim.choice.bytes_per_second(1), 0.3 * sim.choice.bytes_per_second(0));
  sim.rails[1].speed = 1e9;
  sim.Transfer(2000, 256 * 1024, 8 << 20);
  const uint64_t before[2] = {sim.rails[0].got, sim.rails[1].got};
  sim.Transfer(2000, 256 * 1024, 8 << 20);
  const auto share =
      static_cast<double>(sim.rails[1].got - before[1]) /
      static_cast<double>(sim.rails[0].got - before[0] + sim.rails[1].got - before[1]);
  EXPECT_NEAR(share, 0.5, 0.05);
}

// Ops of a few KiB, one at a time: their latency is no word on the speed.
TEST(RailPicker, TinyOpsDoNotMakeARailLookSlow) {
  const std::vector<RailInfo> infos(2, RailInfo{.bytes_per_second = 10e9});
  Simulation sim(infos);
  for (auto& rail : sim.rails) rail.speed = 10e9;
  for (int i = 0; i < 2000; ++i) sim.Transfer(1, 4096, 4096);
  EXPECT_GE(sim.choice.bytes_per_second(0), 10e9);
  EXPECT_GE(sim.choice.bytes_per_second(1), 10e9);
}

TEST(RailPicker, ADistantRailWaitsUntilNearOnesHaveMoreToDo) {
  RailPicker choice(std::vector<RailInfo>(2));
  const std::vector<uint32_t> distances = {1, 0};
  std::vector<uint32_t> picked;
  for (int i = 0; i < 3; ++i) {
    picked.push_back(choice.Pick(1000, kAllUp, distances));
    choice.OnPosted(picked.back(), 1000, Time{});
  }
  EXPECT_EQ(picked, (std::vector<uint32_t>{1, 0, 1}));
  // Gone is worse than far.
  EXPECT_EQ(choice.Pick(1000, 0b01, distances), 0u);
}

TEST(RailPicker, OnlyUsableRailsArePicked) {
  const RailPicker choice(std::vector<RailInfo>(3));
  EXPECT_EQ(choice.Pick(1, 0b000), kNoRail);
  EXPECT_EQ(choice.Pick(1, 0b110), 1u);
  EXPECT_EQ(choice.Pick(1, 0b100), 2u);
  // There are three.
  EXPECT_EQ(choice.Pick(1, 0b1000), kNoRail);
}

}  // namespace
}  // namespace kvxfer::testing
