// The computations of `kvxfer bench`: percentiles, arrivals, traces, plans.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "src/cli/bench/kv_trace.h"
#include "src/cli/bench/loop.h"
#include "src/cli/bench/plan.h"
#include "src/cli/bench/workers.h"
#include "src/cli/common/stats.h"
#include "tests/support/scale.h"

namespace kvxfer::cli {
namespace {

using kvxfer::testing::TestSeed;
using std::chrono::milliseconds;

TEST(LatencyHistogram, IsWithinATwoHundredthOfTheNearestRank) {
  std::mt19937_64 random(TestSeed());
  std::lognormal_distribution<double> draw(10, 3);
  LatencyHistogram histogram;
  std::vector<double> samples;
  for (int i = 0; i < 5000; ++i) {
    const auto ns = static_cast<int64_t>(draw(random));
    histogram.Add(Duration(ns));
    samples.push_back(static_cast<double>(ns) * 1e-3);
  }
  std::sort(samples.begin(), samples.end());
  for (double fraction : {0.001, 0.5, 0.9, 0.99, 0.999, 1.0}) {
    const auto rank = static_cast<size_t>(std::ceil(fraction * 5000)) - 1;
    EXPECT_NEAR(histogram.Percentile(fraction), samples[rank], samples[rank] / 200) << fraction;
  }
  EXPECT_DOUBLE_EQ(histogram.min(), samples.front());
  EXPECT_DOUBLE_EQ(histogram.max(), samples.back());
  EXPECT_EQ(histogram.count(), 5000u);
}

TEST(LatencyHistogram, TakesEveryTimeAndMergesAsIfItHadAll) {
  LatencyHistogram all, even, odd;
  for (int shift = 0; shift < 63; ++shift) {
    for (int64_t off : {-1, 0, 1}) {
      const Duration time((int64_t{1} << shift) + off);
      all.Add(time);
      (shift % 2 == 0 ? even : odd).Add(time);
    }
  }
  all.Add(Duration(std::numeric_limits<int64_t>::max()));
  odd.Add(Duration(std::numeric_limits<int64_t>::max()));
  all.Add(Duration(-5));
  odd.Add(Duration(-5));
  const auto travelled = LatencyHistogram::FromJson(odd.ToJson());
  ASSERT_TRUE(travelled.ok()) << travelled.status();
  even.Merge(*travelled);
  for (double fraction : {0.0, 0.1, 0.5, 0.77, 1.0}) {
    EXPECT_EQ(even.Percentile(fraction), all.Percentile(fraction)) << fraction;
  }
  EXPECT_EQ(even.min(), 0);
  EXPECT_EQ(LatencyHistogram().Percentile(0.5), 0);
  for (const char* bad : {"{}", R"({"sum":1,"min":1,"max":1,"buckets":[[99999999,1]]})",
                          R"({"sum":1,"min":1,"max":1,"buckets":[[1]]})"}) {
    EXPECT_FALSE(LatencyHistogram::FromJson(Json::parse(bad)).ok()) << bad;
  }
}

// With few requests each is a point. With many the number of points is bounded, and the tail stays.
TEST(LatencyHistogram, HasADistributionThatAgreesWithItsPercentiles) {
  std::mt19937_64 random(TestSeed());
  std::lognormal_distribution<double> draw(12, 2);
  for (size_t count : {size_t{1}, size_t{7}, size_t{100}, size_t{200'000}}) {
    LatencyHistogram histogram;
    for (size_t i = 0; i < count; ++i) histogram.Add(Duration(static_cast<int64_t>(draw(random))));
    const std::vector<CdfPoint> points = histogram.Cdf();
    EXPECT_LE(points.size(), std::min(count, kMaxCdfPoints));
    EXPECT_GE(points.size(), std::min<size_t>(count, 7));
    ASSERT_FALSE(points.empty());
    EXPECT_EQ(points.back().us, histogram.max());
    EXPECT_EQ(points.back().part, 1);
    for (size_t i = 1; i < points.size(); ++i) {
      EXPECT_GE(points[i].us, points[i - 1].us);
      EXPECT_GT(points[i].part, points[i - 1].part);
    }
    for (double fraction : {0.5, 0.9, 0.99, 0.999, 0.9999}) {
      const auto first = std::ranges::lower_bound(points, fraction - 1e-9, {},
                                                  [](const CdfPoint& p) { return p.part; });
      EXPECT_NEAR(first->us, histogram.Percentile(fraction), first->us / 200)
          << fraction << " of " << count;
    }
  }
  EXPECT_TRUE(LatencyHistogram().Cdf().empty());
}

TEST(TimelineRecorder, KeepsTheFirstOfAllThreadsAndNoMore) {
  TimelineRecorder recorder(10);
  std::atomic<int> kept{0};
  {
    std::vector<std::jthread> threads;
    for (uint32_t thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&, thread] {
        for (int i = 0; i < 100; ++i) {
          const uint64_t number = recorder.Begin();
          if (number == 0) continue;
          ++kept;
          recorder.Put(number, {.thread = thread,
                                .due_ns = 1000,
                                .posted_ns = 1000 + static_cast<int64_t>(number),
                                .first_slice_ns = 1100,
                                .ended_ns = 1200});
        }
      });
    }
  }
  EXPECT_EQ(kept.load(), 10);
  Timeline timeline = recorder.Take(1000);
  ASSERT_EQ(timeline.size(), 10u);
  AddArrivalTimes({{3, 50}, {0, 1}, {11, 1}}, timeline);
  for (size_t i = 0; i < timeline.size(); ++i) {
    EXPECT_EQ(timeline[i].posted_ns, static_cast<int64_t>(i + 1));
    EXPECT_EQ(timeline[i].ended_ns, 200);
    EXPECT_EQ(timeline[i].notified_ns, i == 2 ? std::optional<int64_t>(53) : std::nullopt);
  }
  LoopResult result;
  result.timeline = timeline;
  const Json sent = FieldsToJson(result);
  const auto travelled = FromJson<LoopResult>(sent);
  ASSERT_TRUE(travelled.ok()) << travelled.status();
  EXPECT_EQ(FieldsToJson(*travelled), sent);
  result.timeline.resize(kMaxTimeline + 1);
  EXPECT_FALSE(FromJson<LoopResult>(FieldsToJson(result)).ok());
  Ran ran;
  ran.timeline = result.timeline;
  EXPECT_FALSE(FromJson<Ran>(FieldsToJson(ran)).ok());
  for (const char* bad : {"{}", "[[1,2]]", R"([[0,0,0,0,0,0,0,"x"]])"}) {
    Json damaged = sent;
    damaged["timeline"] = Json::parse(bad);
    EXPECT_FALSE(FromJson<LoopResult>(damaged).ok()) << bad;
  }
}

TEST(TimelineRecorder, HasNoMoreThanTheRunHad) {
  EXPECT_EQ(TimelineRecorder(0).Begin(), 0u);
  TimelineRecorder recorder(5);
  recorder.Put(recorder.Begin(), {.ended_ns = 9});
  EXPECT_EQ(recorder.Take(0).size(), 1u);
}

TEST(Schedule, SharesANumberAmongStreams) {
  Schedule schedule({.requests = 7}, 3);
  std::vector<int> taken(3);
  for (size_t stream = 0; stream < 3; ++stream) {
    while (schedule.Next(stream)) ++taken[stream];
  }
  EXPECT_EQ(taken, (std::vector<int>{3, 2, 2}));
}

TEST(Schedule, SpacesArrivalsByTheRate) {
  const int64_t start = MonotonicNanoseconds() + 1'000'000'000;
  Schedule even({.duration = milliseconds(100), .rate = 100, .phase = 0.5, .start_ns = start}, 2);
  for (int i = 0; i < 10; ++i) {
    const auto due = even.Next(static_cast<size_t>(i % 2));
    ASSERT_TRUE(due);
    EXPECT_NEAR(static_cast<double>(*due - start), 5e6 + i * 1e7, 10);
  }
  EXPECT_FALSE(even.Next(0));
  Schedule drawn(
      {.requests = 4000, .rate = 1000, .poisson = true, .seed = TestSeed(), .start_ns = start}, 1);
  int64_t last = start;
  while (const auto due = drawn.Next(0)) {
    EXPECT_GE(*due, last);
    last = *due;
  }
  // Four standard deviations of the sum of 4,000 exponential times.
  EXPECT_NEAR(static_cast<double>(last - start) * 1e-9, 4.0, 4 * 4.0 / std::sqrt(4000));
}

TEST(ShareOf, AddsUpToTheWhole) {
  for (uint32_t total : {1u, 3u, 64u}) {
    const LoopSpec whole{.requests = 100, .rate = 50, .timeline = 70};
    uint64_t requests = 0;
    uint64_t timeline = 0;
    double rate = 0;
    for (uint32_t i = 0; i < total; ++i) {
      const LoopSpec share = ShareOf(whole, i, total);
      requests += share.requests;
      timeline += share.timeline;
      rate += share.rate;
    }
    EXPECT_EQ(timeline, whole.timeline);
    EXPECT_EQ(requests, whole.requests);
    EXPECT_NEAR(rate, whole.rate, 1e-9);
  }
}

// Requests of no bytes.
class Nothing : public RequestSource {
 public:
  Nothing(const LoopSpec& spec, size_t streams) : schedule_(spec, streams) {}
  std::optional<Request> Next(size_t stream) override {
    const auto due = schedule_.Next(stream);
    if (!due) return std::nullopt;
    return Request{.due_ns = *due};
  }

 private:
  Schedule schedule_;
};

// A stall of 100 ms at 1,000 arrivals a second is one slow request in a closed loop. In an open
// loop a hundred requests waited, the earlier ones longer.
TEST(RunLoop, CountsAStallForEveryRequestThatArrivedInIt) {
  const LoopSpec spec{.requests = 300, .rate = 1000};
  Nothing source(spec, 1);
  int moved = 0;
  const auto result = RunLoop(
      spec, 1, 1, source,
      [&moved](size_t, const Request&) {
        if (++moved == 100) std::this_thread::sleep_for(milliseconds(100));
        return absl::OkStatus();
      },
      nullptr);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->times.count(), 300u);
  EXPECT_GE(result->times.max(), 100'000);
  // Half of the hundred waited for at least half of the stall: a sixth of all requests.
  EXPECT_GE(result->times.Percentile(1 - 45.0 / 300), 50'000);
}

TEST(RunLoop, EndsWithTheFirstErrorAndCountsTargets) {
  const LoopSpec spec{.requests = 1000};
  Nothing source(spec, 4);
  std::atomic<int> moved{0};
  const auto failed = RunLoop(
      spec, 4, 1, source,
      [&moved](size_t, const Request&) {
        return ++moved == 10 ? absl::DataLossError("tenth") : absl::OkStatus();
      },
      nullptr);
  EXPECT_EQ(failed.status().message(), "tenth");
  EXPECT_LT(moved.load(), 1000);

  std::atomic<uint64_t> seen{0};
  Nothing again(spec, 4);
  const auto whole = RunLoop(
      spec, 4, 1, again, [](size_t, const Request&) { return absl::OkStatus(); }, &seen);
  ASSERT_TRUE(whole.ok());
  EXPECT_EQ(whole->all.requests, 1000u);
  EXPECT_EQ(seen.load(), 1000u);
  const auto travelled = FromJson<LoopResult>(FieldsToJson(*whole));
  ASSERT_TRUE(travelled.ok()) << travelled.status();
  EXPECT_EQ(travelled->all.requests, 1000u);
  EXPECT_EQ(travelled->all.elapsed_ns, whole->all.elapsed_ns);
  EXPECT_FALSE(FromJson<LoopResult>({{"targets", {{1, 2}}}}).ok());
}

TEST(LoopSpec, TravelsWholeAndMustHaveAnEnd) {
  const LoopSpec spec{.requests = 3,
                      .duration = milliseconds(5),
                      .rate = 2.5,
                      .poisson = true,
                      .phase = 0.25,
                      .seed = 9,
                      .start_ns = 77,
                      .timeline = 4};
  const auto back = LoopSpecFromJson(ToJson(spec));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(spec));
  EXPECT_FALSE(LoopSpecFromJson(ToJson(LoopSpec{})).ok());
  EXPECT_FALSE(LoopSpecFromJson(Json::object()).ok());
}

TEST(ParseKvTrace, ReadsThePublishedForm) {
  const auto trace = ParseKvTrace("t",
                                  R"({"timestamp": 1000, "input_length": 600, "output_length": 5,)"
                                  R"( "hash_ids": [46, 47]})"
                                  "\n\n"
                                  R"({"timestamp": 1250.5, "input_length": 512, "hash_ids": [46]})"
                                  "\n",
                                  0);
  ASSERT_TRUE(trace.ok()) << trace.status();
  ASSERT_EQ(trace->size(), 2u);
  EXPECT_EQ((*trace)[0].arrival_ns, 0);
  EXPECT_EQ((*trace)[1].arrival_ns, 250'500'000);
  EXPECT_EQ((*trace)[0].hash_ids, (std::vector<uint64_t>{46, 47}));
  EXPECT_EQ((*trace)[0].blocks(16), 38u);
  EXPECT_EQ((*trace)[1].blocks(16), 32u);
}

TEST(ParseKvTrace, NamesTheLineThatIsWrong) {
  const std::string good = R"({"timestamp": 5, "input_length": 512, "hash_ids": [1]})";
  for (const char* bad : {"{", "[]", "7", R"({"timestamp": 5, "input_length": 512})",
                          R"({"timestamp": "5", "input_length": 512, "hash_ids": [1]})",
                          R"({"timestamp": 5, "input_length": 0, "hash_ids": []})",
                          R"({"timestamp": 5, "input_length": -3, "hash_ids": []})",
                          R"({"timestamp": 5, "input_length": 512, "hash_ids": ["a"]})",
                          R"({"timestamp": 5, "input_length": 512, "hash_ids": [1, 2]})",
                          R"({"timestamp": 4, "input_length": 512, "hash_ids": [1]})",
                          R"({"timestamp": -1, "input_length": 512, "hash_ids": [1]})"}) {
    const auto trace = ParseKvTrace("day.jsonl", good + "\n" + bad, 0);
    EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_NE(std::string(trace.status().message()).find("day.jsonl, line 2"), std::string::npos)
        << trace.status();
  }
  EXPECT_FALSE(ParseKvTrace("t", "\n \n", 0).ok());
  // Expect lines beyond the limit to be ignored.
  EXPECT_TRUE(ParseKvTrace("t", good + "\n{", 1).ok());
  EXPECT_EQ(LoadKvTrace("/no/such/file", 0).status().code(), absl::StatusCode::kNotFound);
}

TraceRequest Prompt(uint64_t tokens, std::vector<uint64_t> ids) {
  return {.tokens = tokens, .hash_ids = std::move(ids)};
}

TEST(PrefixCache, MovesOnlyWhatIsNotAtTheFrontAlready) {
  PrefixCache cache(/*blocks=*/96, /*block_tokens=*/16, TestSeed());
  const auto first = cache.Place(Prompt(1024 + 100, {1, 2, 3}));
  ASSERT_TRUE(first);
  EXPECT_EQ(first->blocks.size(), 64u + 7);
  EXPECT_EQ(first->hit_tokens, 0u);
  cache.Release(*first);
  const auto second = cache.Place(Prompt(1024 + 400, {1, 2, 4}));
  ASSERT_TRUE(second);
  EXPECT_EQ(second->hit_tokens, 1024u);
  EXPECT_EQ(second->blocks.size(), 25u);
  cache.Release(*second);
  // Expect ids behind a missing id to be ignored.
  const auto third = cache.Place(Prompt(512 + 30, {9, 2}));
  ASSERT_TRUE(third);
  EXPECT_EQ(third->hit_tokens, 0u);
  EXPECT_EQ(third->blocks.size(), 34u);
}

TEST(PrefixCache, LetsTheLeastRecentlyUsedGo) {
  PrefixCache cache(/*blocks=*/3, /*block_tokens=*/512, TestSeed());
  for (uint64_t id : {1u, 2u, 3u}) cache.Release(*cache.Place(Prompt(512, {id})));
  cache.Release(*cache.Place(Prompt(512, {1})));
  cache.Release(*cache.Place(Prompt(512, {4})));
  const auto kept = cache.Place(Prompt(512, {1}));
  EXPECT_EQ(kept->hit_tokens, 512u);
  const auto gone = cache.Place(Prompt(512, {2}));
  EXPECT_EQ(gone->hit_tokens, 0u);
}

// Random requests, several in flight at once: no block is in two of them, and blocks that are in
// flight or cached never exceed the cache.
TEST(PrefixCache, NeverHandsABlockOutTwice) {
  std::mt19937_64 random(TestSeed());
  constexpr uint32_t kBlocks = 200;
  PrefixCache cache(kBlocks, 32, TestSeed());
  std::vector<PrefixCache::Placement> active;
  size_t refused = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (!active.empty() && (active.size() == 4 || random() % 2 == 0)) {
      const size_t victim = random() % active.size();
      cache.Release(active[victim]);
      active.erase(active.begin() + static_cast<ptrdiff_t>(victim));
      continue;
    }
    TraceRequest request{.tokens = 1 + random() % 3000};
    const uint64_t tree = random() % 5;
    for (uint64_t k = 0; k < (request.tokens + 511) / 512; ++k) {
      request.hash_ids.push_back(100 * tree + (k < 2 ? k : 10 * k + random() % 3));
    }
    const auto placement = cache.Place(request);
    if (!placement) {
      ++refused;
      ASSERT_FALSE(active.empty()) << "an idle cache must take what fits it";
      continue;
    }
    std::set<uint32_t> under_way;
    for (const auto& other : active) under_way.insert(other.blocks.begin(), other.blocks.end());
    for (uint32_t block : placement->blocks) {
      ASSERT_LT(block, kBlocks);
      ASSERT_TRUE(under_way.insert(block).second) << "block " << block << " twice";
    }
    active.push_back(*placement);
  }
  EXPECT_GT(refused, 0u);
  for (const auto& placement : active) cache.Release(placement);
  EXPECT_EQ(cache.Place(Prompt(32 * kBlocks, {}))->blocks.size(), kBlocks);
}

TEST(ParseRate, TakesRequestsASecondAndPercent) {
  EXPECT_EQ(ParseRate("2000")->per_second, 2000);
  EXPECT_EQ(ParseRate("0.5")->per_second, 0.5);
  EXPECT_EQ(ParseRate("50%")->percent, 50);
  for (const char* bad : {"", "0", "-1", "fast", "50 %", "50%%", "2000/s", "1e99", "nan", "inf%"}) {
    EXPECT_EQ(ParseRate(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
}

TEST(MakePlan, SharesTheTotalAmongPeersAndThreads) {
  BenchOptions options;
  options.block_sizes = {4096};
  options.total = 1 << 20;
  options.peers = 8;
  options.threads = 4;
  const auto plan = MakePlan(options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->cases[0].request_blocks, 8u);
  EXPECT_EQ(plan->workers.initiators, 8u);
  EXPECT_EQ(plan->workers.targets, 1u);
  // Expect a fixed time if there are several peers.
  EXPECT_EQ(plan->loop.requests, 0u);
  EXPECT_GT(plan->loop.duration.count(), 0);
  const std::vector<MemoryNeed> needs = plan->needs(plan->cases[0]);
  ASSERT_EQ(needs.size(), 2u);
  for (const MemoryNeed& need : needs) EXPECT_EQ(need.bytes, 8u * 4 * 8 * 4096);
  options.total = 64 << 10;
  const auto small = MakePlan(options);
  EXPECT_EQ(small.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(small.status().message()).find("32 streams"), std::string::npos)
      << small.status();
}

TEST(MakePlan, KnowsWhatAModelMoves) {
  BenchOptions options;
  options.model = "llama-3.1-8b";
  options.tokens = 2048;
  options.tp = 2;
  const auto plan = MakePlan(options);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(plan->cases[0].pieces, 64u);
  EXPECT_EQ(plan->cases[0].block_bytes, 16u * 4 * 128 * 2);
  EXPECT_EQ(plan->cases[0].request_blocks, 128u);
  EXPECT_EQ(plan->loop.requests, 16u);
}

TEST(BenchCase, TravelsWhole) {
  BenchCase bench;
  bench.targets = {"127.0.0.1:1", "[::1]:2"};
  bench.backend = "tcp";
  bench.memory = {MemorySource::kAttached, MemoryChoice(MemorySource::kCuda, 3)};
  bench.write = false;
  bench.bidirectional = true;
  bench.threads = 3;
  bench.pieces = 4;
  bench.block_bytes = 5;
  bench.request_blocks = 6;
  bench.seed = UINT64_MAX;
  const auto back = BenchCaseFromJson(ToJson(bench));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(ToJson(*back), ToJson(bench));
  EXPECT_EQ(back->initiator_shape().blocks, 2u * 2 * 3 * 6);
  EXPECT_EQ(back->target_shape().blocks, 2u * 3 * 6);
  bench.request_blocks = uint64_t{1} << 62;
  EXPECT_FALSE(BenchCaseFromJson(ToJson(bench)).ok());
}

}  // namespace
}  // namespace kvxfer::cli
