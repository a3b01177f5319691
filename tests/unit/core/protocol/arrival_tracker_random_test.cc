// A million random schedules of the protocol's model, held to its oracle after every step: batches
// of mixed transfers in one long session, so that generations wrap, slots are scarce, grants come
// late, rails fail, connections are cut, control messages overtake each other, and what is left of
// one batch would be seen by the next.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "src/core/base/clock.h"
#include "tests/support/scale.h"
#include "tests/unit/core/protocol/protocol_model.h"

namespace kvxfer::testing {
namespace {

constexpr int kSchedules = kModelSanitized ? 50'000 : 1'000'000;
constexpr int kSchedulesPerSession = 10'000;

class Schedules {
 public:
  explicit Schedules(uint64_t seed) : random_(static_cast<uint32_t>(seed ^ seed >> 32)) {}

  void Run(int schedules) {
    for (int done = 0; done < schedules && failure_.empty(); done += kSchedulesPerSession) {
      Session(std::min(kSchedulesPerSession, schedules - done));
    }
  }
  const std::string& failure() const { return failure_; }
  uint64_t steps() const { return steps_; }

 private:
  uint32_t Below(uint32_t n) {
    return static_cast<uint32_t>((static_cast<uint64_t>(random_()) * n) >> 32);
  }
  bool OneIn(uint32_t n) { return Below(n) == 0; }

  void Session(int schedules) {
    ModelConfig config;
    config.rails = 1 + Below(2);
    config.rail_keeps_order = OneIn(2);
    config.slots = 1 + Below(6);
    config.first_generation = OneIn(2) ? kGenerationMask - Below(8) : Below(kGenerationMask);
    config.grants = Below(3);
    Draw(config);
    World world(config);
    for (int i = 0; i < schedules; ++i) {
      if (i > 0) {
        Draw(config);
        world.Begin(config);
      }
      if (!ToRest(world)) {
        Report(config, i, world.error());
        return;
      }
    }
  }

  void Report(const ModelConfig& config, int schedule, const std::string& error) {
    failure_ = error + "; schedule " + std::to_string(schedule) + " of its session, " +
               std::to_string(config.rails) +
               (config.rail_keeps_order ? " ordered" : " unordered") + " rails, " +
               std::to_string(config.slots) + " slots a grant; transfers";
    for (const TransferSpec& spec : config.transfers) {
      failure_ += " " + std::to_string(spec.slices) + (spec.ordered ? "o" : "") +
                  (spec.notification ? "n" : "") + (spec.copied ? "c" : "");
    }
    failure_ += "; steps";
    for (const Step step : taken_) failure_ += " " + ToString(step);
  }

  // The rails, what they keep, and the slots stay; all else is drawn for each batch.
  void Draw(ModelConfig& config) {
    config.transfers.clear();
    const uint32_t transfers = OneIn(8) ? 4 + Below(5) : 1 + Below(3);
    for (uint32_t t = 0; t < transfers; ++t) {
      TransferSpec spec;
      spec.slices = static_cast<uint8_t>(OneIn(16) ? Below(17) : Below(4));
      spec.ordered = !OneIn(4);
      spec.notification = !OneIn(6);
      spec.copied = OneIn(8);
      spec.may_abort = OneIn(5);
      config.transfers.push_back(spec);
    }
    config.interleave = OneIn(2);
    config.control_reorders = OneIn(4);
    config.idle_lanes = OneIn(8) ? 1 : 0;
    config.rail_failures = OneIn(4) ? 1 + Below(OneIn(4) ? 6 : 2) : 0;
    config.cuts = OneIn(6) ? 1 + Below(2) : 0;
    config.late_completions = OneIn(3);
    config.alone_failures = config.late_completions && OneIn(4) ? 1 + Below(2) : 0;
    config.impatience = OneIn(4) ? 1 + Below(2) : 0;
    config.losses = OneIn(8) ? 1 : 0;
  }

  // Steps that need not happen are taken now and then, so that most schedules come far.
  bool ToRest(World& world) {
    taken_.clear();
    for (;;) {
      world.Enabled(enabled_);
      needed_.clear();
      extra_.clear();
      for (const Step step : enabled_) (step.optional() ? extra_ : needed_).push_back(step);
      if (needed_.empty()) return world.CheckAtRest();
      const bool extra = !extra_.empty() && OneIn(12);
      const std::vector<Step>& from = extra ? extra_ : needed_;
      ++steps_;
      taken_.push_back(from[Below(static_cast<uint32_t>(from.size()))]);
      if (!world.Apply(taken_.back())) return false;
    }
  }

  std::mt19937 random_;
  std::vector<Step> enabled_;
  std::vector<Step> needed_;
  std::vector<Step> extra_;
  std::vector<Step> taken_;
  uint64_t steps_ = 0;
  std::string failure_;
};

TEST(ArrivalTrackerRandom, MillionSchedules) {
  const uint64_t seed = TestSeed();
  const Time start = Now();
  Schedules schedules(seed);
  schedules.Run(kSchedules);
  const double seconds = std::chrono::duration<double>(Now() - start).count();
  std::printf("  KVXFER_TEST_SEED=%llu: %d schedules%s, %llu steps, %.1f s\n",
              static_cast<unsigned long long>(seed), kSchedules,
              kModelSanitized ? " (scaled down: sanitizer)" : "",
              static_cast<unsigned long long>(schedules.steps()), seconds);
  EXPECT_EQ(schedules.failure(), "") << "repeat with KVXFER_TEST_SEED=" << seed;
}

}  // namespace
}  // namespace kvxfer::testing
