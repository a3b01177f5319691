// Every reachable state of small worlds: from each state every possible step is taken, and the
// oracle of protocol_model.h is asked after each. States already seen are not entered again.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "src/core/base/clock.h"
#include "tests/support/scale.h"
#include "tests/unit/core/protocol/protocol_model.h"

namespace kvxfer::testing {
namespace {

struct HashFingerprint {
  size_t operator()(const Fingerprint& f) const { return f.low; }
};

class Search {
 public:
  explicit Search(const ModelConfig& config) : config_(config) { seen_.reserve(1u << 16); }

  // The schedule that led to an objection, or nothing.
  std::string Run() {
    World start(config_);
    seen_.insert(start.Canonical(scratch_));
    Visit(std::move(start));
    return failure_;
  }
  size_t states() const { return seen_.size(); }
  size_t transitions() const { return transitions_; }
  size_t rests() const { return rests_; }

 private:
  static constexpr size_t kMostStates = kModelSanitized ? 20'000 : SIZE_MAX;

  void Visit(World world) {
    std::vector<Step> steps;
    world.Enabled(steps);
    bool at_rest = true;
    for (const Step step : steps) at_rest = at_rest && step.optional();
    if (at_rest) {
      ++rests_;
      if (!world.CheckAtRest()) return Report(world);
    }
    for (size_t i = 0; i < steps.size() && failure_.empty() && states() < kMostStates; ++i) {
      // The last step takes the world itself: the loop ends there.
      // NOLINTNEXTLINE(bugprone-use-after-move)
      World next = i + 1 < steps.size() ? World(world) : std::move(world);
      ++transitions_;
      path_.push_back(steps[i]);
      if (!next.Apply(steps[i])) return Report(next);
      if (seen_.insert(next.Canonical(scratch_)).second) Visit(std::move(next));
      path_.pop_back();
    }
  }

  void Report(const World& world) {
    failure_ = config_.name + ": " + world.error() + " after";
    for (const Step step : path_) failure_ += " " + ToString(step);
  }

  const ModelConfig& config_;
  std::unordered_set<Fingerprint, HashFingerprint> seen_;
  std::vector<uint8_t> scratch_;
  std::vector<Step> path_;
  size_t transitions_ = 0;
  size_t rests_ = 0;
  std::string failure_;
};

struct Totals {
  size_t worlds = 0;
  size_t states = 0;
  size_t transitions = 0;
  double seconds = 0;
};

void Explore(const ModelConfig& config, Totals& totals) {
  const Time start = Now();
  Search search(config);
  ASSERT_EQ(search.Run(), "");
  EXPECT_GT(search.rests(), 0u) << config.name << " never comes to rest";
  const double seconds = std::chrono::duration<double>(Now() - start).count();
  ++totals.worlds;
  totals.states += search.states();
  totals.transitions += search.transitions();
  totals.seconds += seconds;
  if (search.states() < 10'000) return;
  std::printf("  %-48s %8zu states %9zu transitions %5zu at rest %6.2f s\n", config.name.c_str(),
              search.states(), search.transitions(), search.rests(), seconds);
}

void Print(const Totals& totals) {
  std::printf("  %zu worlds%s: %zu states, %zu transitions, %.1f s\n", totals.worlds,
              kModelSanitized ? " (scaled down: sanitizer)" : "", totals.states, totals.transitions,
              totals.seconds);
}

constexpr TransferSpec Slices(uint8_t n) { return {.slices = n}; }
constexpr TransferSpec AnyOrder(uint8_t n) { return {.slices = n, .ordered = false}; }
constexpr TransferSpec Aborts(uint8_t n) { return {.slices = n, .may_abort = true}; }
constexpr TransferSpec Silent(uint8_t n) { return {.slices = n, .notification = false}; }
constexpr TransferSpec Copied(uint8_t n) { return {.slices = n, .copied = true}; }

ModelConfig Rails(std::string name, std::vector<TransferSpec> transfers, uint32_t rails,
                  bool keeps_order, uint32_t slots) {
  ModelConfig config;
  config.name = std::move(name);
  config.transfers = std::move(transfers);
  config.rails = rails;
  config.rail_keeps_order = keeps_order;
  config.slots = slots;
  return config;
}

// Both kinds of rails, from a world whose other fields `change` sets.
template <typename Change>
void ExploreBoth(const std::string& name, const std::vector<TransferSpec>& transfers,
                 uint32_t rails, uint32_t slots, Totals& totals, Change change) {
  uint32_t slices = 0;
  for (const TransferSpec& transfer : transfers) slices += transfer.slices;
  if (kModelSanitized && slices > 3) return;
  for (const bool keeps_order : {false, true}) {
    ModelConfig config = Rails(name + (keeps_order ? ", ordered" : ", unordered"), transfers, rails,
                               keeps_order, slots);
    change(config);
    Explore(config, totals);
  }
}

TEST(ArrivalTrackerExhaustive, EverySizeWithoutFailures) {
  Totals totals;
  for (uint8_t transfers = 1; transfers <= 4; ++transfers) {
    for (uint8_t slices = 0; slices <= 4; ++slices) {
      for (uint32_t rails = 1; rails <= 2; ++rails) {
        const std::string name = std::to_string(transfers) + " x " + std::to_string(slices) +
                                 " over " + std::to_string(rails);
        // With a third slot the larger ones have millions of states: see the soak.
        const uint32_t most = transfers <= 2 || transfers * slices <= 6 ? 3 : 2;
        for (uint32_t slots = 1; slots <= most; ++slots) {
          ExploreBoth(name + ", " + std::to_string(slots) + " slots",
                      std::vector<TransferSpec>(transfers, Slices(slices)), rails, slots, totals,
                      [](ModelConfig&) {});
        }
      }
    }
  }
  Print(totals);
}

// Discarded lanes and what goes again; the rail fails at every moment, before and after OPEN.
TEST(ArrivalTrackerExhaustive, RailsFail) {
  Totals totals;
  const auto once = [](ModelConfig& config) { config.rail_failures = 1; };
  const auto twice = [](ModelConfig& config) { config.rail_failures = 2; };
  for (uint8_t slices = 1; slices <= 4; ++slices) {
    for (uint32_t slots = 1; slots <= 3; ++slots) {
      const std::string name =
          "1 x " + std::to_string(slices) + ", " + std::to_string(slots) + " slots, one failure";
      ExploreBoth(name, {Slices(slices)}, 2, slots, totals, once);
    }
    ExploreBoth("1 x " + std::to_string(slices) + " over 1, two failures", {Slices(slices)}, 1, 2,
                totals, twice);
    ExploreBoth("2 x " + std::to_string(slices) + " over 1, one failure",
                {Slices(slices), Slices(slices)}, 1, 2, totals, once);
  }
  ExploreBoth("2 x 1, one failure", {Slices(1), Slices(1)}, 2, 3, totals, once);
  ExploreBoth("2 x 2, 2 slots, one failure", {Slices(2), Slices(2)}, 2, 2, totals, once);
  ExploreBoth("1 x 2, two failures", {Slices(2)}, 2, 3, totals, twice);
  ExploreBoth("2 x 1 over 1, two failures", {Slices(1), Slices(1)}, 1, 2, totals, twice);
  ExploreBoth("3 x 1 over 1, one failure", {Slices(1), Slices(1), Slices(1)}, 1, 2, totals, once);
  ExploreBoth("4 x 1 over 1, one failure", {Slices(1), Slices(1), Slices(1), Slices(1)}, 1, 2,
              totals, once);
  // Others post in between, so that a lane that goes again might find its slot taken.
  const auto interleaved = [](ModelConfig& config) {
    config.rail_failures = 2;
    config.interleave = true;
  };
  ExploreBoth("2 x 2 over 1, 1 slot, two failures, interleaved", {Slices(2), Slices(2)}, 1, 1,
              totals, interleaved);
  ExploreBoth("2 x 1 over 1, 2 slots, two failures, interleaved", {Slices(1), Slices(1)}, 1, 2,
              totals, interleaved);
  ExploreBoth("1 x 3 over 1, 1 slot, three failures", {Slices(3)}, 1, 1, totals,
              [](ModelConfig& config) { config.rail_failures = 3; });
  ExploreBoth("1 x 2, an idle lane, one failure", {Slices(2)}, 2, 3, totals,
              [](ModelConfig& config) { config.rail_failures = config.idle_lanes = 1; });
  Print(totals);
}

// Failed and cancelled transfers between good ones: ABORT at every moment.
TEST(ArrivalTrackerExhaustive, TransfersAreAborted) {
  Totals totals;
  const auto none = [](ModelConfig&) {};
  const auto fails = [](ModelConfig& config) { config.rail_failures = 1; };
  ExploreBoth("abort any of 3 x 1", {Aborts(1), Aborts(1), Aborts(1)}, 2, 2, totals, none);
  ExploreBoth("abort any of 4 x 1 over 1", {Aborts(1), Aborts(1), Aborts(1), Aborts(1)}, 1, 2,
              totals, none);
  ExploreBoth("abort any of 2 x 2", {Aborts(2), Aborts(2)}, 2, 3, totals, none);
  ExploreBoth("abort the middle of 3 x 2", {Slices(2), Aborts(2), Slices(2)}, 2, 2, totals, none);
  ExploreBoth("abort the middle two of 4 x 2 over 1", {Slices(2), Aborts(2), Aborts(2), Slices(2)},
              1, 2, totals, none);
  ExploreBoth("abort the first of 2 x 4", {Aborts(4), Slices(4)}, 2, 2, totals, none);
  ExploreBoth("abort 4 slices, one failure", {Aborts(4)}, 2, 3, totals, fails);
  ExploreBoth("abort the first of 2 x 1, one failure", {Aborts(1), Slices(1)}, 2, 2, totals, fails);
  ExploreBoth("abort both of 2 x 2 over 1, one failure", {Aborts(2), Aborts(2)}, 1, 2, totals,
              fails);
  ExploreBoth("abort 2 slices, two failures", {Aborts(2)}, 2, 2, totals,
              [](ModelConfig& config) { config.rail_failures = 2; });
  Print(totals);
}

// The control connection is cut, or its messages overtake each other, at every moment.
TEST(ArrivalTrackerExhaustive, ControlIsCutAndReordered) {
  Totals totals;
  const auto cut = [](ModelConfig& config) { config.cuts = 1; };
  const auto cut_and_fail = [](ModelConfig& config) { config.cuts = config.rail_failures = 1; };
  const auto reorder = [](ModelConfig& config) { config.control_reorders = true; };
  ExploreBoth("1 x 2, a cut", {Slices(2)}, 2, 2, totals, cut);
  ExploreBoth("abort one of 2 x 1 over 1, a cut", {Aborts(1), Slices(1)}, 1, 2, totals, cut);
  ExploreBoth("3 notifications alone, two cuts", {Slices(0), Slices(0), Slices(0)}, 1, 1, totals,
              [](ModelConfig& config) { config.cuts = 2; });
  ExploreBoth("1 x 2 over 1, a cut, one failure", {Slices(2)}, 1, 2, totals, cut_and_fail);
  ExploreBoth("abort 1 over 1, a cut, one failure", {Aborts(1)}, 1, 1, totals, cut_and_fail);
  ExploreBoth("3 x 1 over 1, control reorders", {Slices(1), Slices(1), Slices(1)}, 1, 2, totals,
              reorder);
  ExploreBoth("abort both of 2 x 1, control reorders", {Aborts(1), Aborts(1)}, 1, 2, totals,
              reorder);
  Print(totals);
}

// All kinds of transfers side by side, posted in any order, with late grants and generations that
// wrap.
TEST(ArrivalTrackerExhaustive, KindsOfTransfersMixed) {
  Totals totals;
  const auto wrap = [](ModelConfig& config) {
    config.interleave = true;
    config.first_generation = kGenerationMask;
  };
  const auto grant = [](ModelConfig& config) {
    config.interleave = true;
    config.grants = 1;
  };
  ExploreBoth("ordered, any order, copied, silent", {Slices(1), AnyOrder(1), Copied(1), Silent(1)},
              2, 2, totals, wrap);
  ExploreBoth("abort before any order before silent", {Aborts(2), AnyOrder(1), Silent(1)}, 1, 2,
              totals, wrap);
  ExploreBoth("copied between ordered", {Slices(2), Copied(2), Slices(2)}, 1, 2, totals, wrap);
  ExploreBoth("a grant comes late", {Slices(2), AnyOrder(2)}, 1, 1, totals, grant);
  ExploreBoth("a grant comes late, abort", {Aborts(1), Aborts(1), Slices(0)}, 1, 1, totals, grant);
  ExploreBoth("idle lanes", {Slices(2), Slices(1)}, 2, 3, totals,
              [](ModelConfig& config) { config.idle_lanes = 1; });
  Print(totals);
}

// Ops complete late, with their rail or alone; time is up before the target's word; sessions are
// lost with everything under way.
TEST(ArrivalTrackerExhaustive, EndsComeInEveryOrder) {
  Totals totals;
  const auto late = [](ModelConfig& config) { config.late_completions = true; };
  const auto hurried = [](ModelConfig& config) {
    config.late_completions = true;
    config.impatience = 1;
  };
  const auto alone = [](ModelConfig& config) {
    config.late_completions = true;
    config.alone_failures = config.rail_failures = 1;
  };
  const auto hurried_and_failing = [](ModelConfig& config) {
    config.impatience = config.rail_failures = 1;
  };
  const auto hurried_and_cut = [](ModelConfig& config) { config.impatience = config.cuts = 1; };
  const auto lost = [](ModelConfig& config) {
    config.late_completions = true;
    config.losses = 1;
  };
  const auto hurried_and_lost = [](ModelConfig& config) {
    config.late_completions = true;
    config.impatience = config.losses = 1;
  };
  ExploreBoth("2 x 2 over 1, late", {Slices(2), Slices(2)}, 1, 2, totals, late);
  ExploreBoth("copied and not, late", {Copied(2), Slices(2)}, 2, 2, totals, late);
  ExploreBoth("abort both of 2 x 1, out of time", {Aborts(1), Aborts(1)}, 2, 2, totals, hurried);
  ExploreBoth("abort 3 over 1, out of time", {Aborts(3)}, 1, 1, totals, hurried);
  ExploreBoth("3, one alone, one with its rail", {Slices(3)}, 2, 2, totals, alone);
  ExploreBoth("abort 2, one alone, one with its rail", {Aborts(2)}, 1, 1, totals, alone);
  ExploreBoth("abort 2, one failure, out of time", {Aborts(2)}, 2, 2, totals, hurried_and_failing);
  ExploreBoth("abort either of 2 x 1 over 1, one failure, out of time", {Aborts(1), Aborts(1)}, 1,
              2, totals, hurried_and_failing);
  ExploreBoth("abort 2 over 1, a cut, out of time", {Aborts(2)}, 1, 2, totals, hurried_and_cut);
  ExploreBoth("2 x 2 over 1, lost", {Slices(2), Slices(2)}, 1, 2, totals, lost);
  ExploreBoth("copied, silent, and abort, lost", {Copied(1), Silent(1), Aborts(1)}, 1, 2, totals,
              lost);
  ExploreBoth("abort 2, out of time, lost", {Aborts(2)}, 2, 2, totals, hurried_and_lost);
  ExploreBoth("abort 1 over 1, one failure, lost", {Aborts(1), Slices(1)}, 1, 2, totals,
              [](ModelConfig& config) { config.losses = config.rail_failures = 1; });
  ExploreBoth(
      "abort 1 over 1, a cut, one failure, out of time", {Aborts(1)}, 1, 1, totals,
      [](ModelConfig& config) { config.cuts = config.rail_failures = config.impatience = 1; });
  Print(totals);
}

#if !KVXFER_SANITIZED  // every one of these worlds is too large for a sanitizer
// Two minutes: run by hand or nightly.
TEST(ArrivalTrackerExhaustiveSoak, LargerWorlds) {
  Totals totals;
  const auto once = [](ModelConfig& config) { config.rail_failures = 1; };
  ExploreBoth("2 x 2, 3 slots, one failure", {Slices(2), Slices(2)}, 2, 3, totals, once);
  ExploreBoth("2 x 3, 3 slots, one failure", {Slices(3), Slices(3)}, 2, 3, totals, once);
  ExploreBoth("abort both of 2 x 2, 2 slots, one failure", {Aborts(2), Aborts(2)}, 2, 2, totals,
              once);
  ExploreBoth("3 x 4, 3 slots", std::vector<TransferSpec>(3, Slices(4)), 2, 3, totals,
              [](ModelConfig&) {});
  ExploreBoth("2 x 2, a cut", {Slices(2), Slices(2)}, 2, 2, totals,
              [](ModelConfig& config) { config.cuts = 1; });
  Print(totals);
}
#endif

}  // namespace
}  // namespace kvxfer::testing
