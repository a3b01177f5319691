#include "src/cli/bench/loop.h"

#include <time.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "src/cli/common/stats.h"

namespace kvxfer::cli {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
// A sleeping thread wakes up tens of microseconds late, which would count as time of the request.
// So a thread spins for this long before a request is due.
constexpr int64_t kSpin = 50'000;
constexpr int64_t kLongestSleep = kSecond / 10;  // between checks of `stop`

void WaitUntil(int64_t due_ns, const std::atomic<bool>& stop) {
  for (int64_t now = MonotonicNanoseconds(); now < due_ns; now = MonotonicNanoseconds()) {
    if (stop.load(std::memory_order_relaxed)) return;
    const int64_t wake = std::min(due_ns - kSpin, now + kLongestSleep);
    if (wake <= now) continue;
    const timespec at{.tv_sec = wake / kSecond, .tv_nsec = wake % kSecond};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr);
  }
}

// One stream's share of a run.
struct Share {
  std::vector<Tally> targets;
  LatencyHistogram times;
  absl::Status status;
};

struct Run {
  const int64_t start_ns;
  const int64_t since_ns;  // the common start, even if this process starts late
  RequestSource& source;
  const Exchange& exchange;
  std::atomic<uint64_t>* const moved;
  std::atomic<bool> stop{false};
};

void RunStream(Run& run, size_t stream, Share& share) {
  WaitUntil(run.start_ns, run.stop);
  while (!run.stop.load(std::memory_order_relaxed)) {
    const std::optional<Request> request = run.source.Next(stream);
    if (!request) return;
    WaitUntil(request->due_ns, run.stop);
    if (run.stop.load(std::memory_order_relaxed)) {
      run.source.Done(stream);  // another stream may wait for the blocks
      return;
    }
    share.status = run.exchange(stream, *request);
    const int64_t end = MonotonicNanoseconds();
    run.source.Done(stream);
    if (!share.status.ok()) {
      run.stop.store(true, std::memory_order_relaxed);
      return;
    }
    share.times.Add(Duration(end - request->due_ns));
    share.targets[request->target].Merge({.requests = 1,
                                          .blocks = request->blocks(),
                                          .bytes = request->bytes(),
                                          .elapsed_ns = end - run.since_ns});
    if (run.moved != nullptr) run.moved->fetch_add(1, std::memory_order_relaxed);
  }
}

Json ToJson(const Tally& tally) {
  return {tally.requests, tally.blocks, tally.bytes, tally.elapsed_ns};
}

absl::StatusOr<Tally> TallyFromJson(const Json& json) {
  if (!json.is_array() || json.size() != 4 ||
      !std::all_of(json.begin(), json.end(), [](const Json& n) { return n.is_number_integer(); })) {
    return absl::InvalidArgumentError("an incomplete result");
  }
  return Tally{.requests = json[0].get<uint64_t>(),
               .blocks = json[1].get<uint64_t>(),
               .bytes = json[2].get<uint64_t>(),
               .elapsed_ns = json[3].get<int64_t>()};
}

}  // namespace

Json ToJson(const LoopSpec& spec) {
  return {{"requests", spec.requests},
          {"duration_ns", static_cast<uint64_t>(spec.duration.count())},
          {"rate", spec.rate},
          {"poisson", spec.poisson},
          {"phase", spec.phase},
          {"seed", spec.seed},
          {"start_ns", static_cast<uint64_t>(spec.start_ns)},
          {"timeline", spec.timeline}};
}

absl::StatusOr<LoopSpec> LoopSpecFromJson(const Json& json) {
  LoopSpec spec;
  const absl::StatusOr<uint64_t> requests = GetUint(json, "requests");
  const absl::StatusOr<uint64_t> duration = GetUint(json, "duration_ns");
  const absl::StatusOr<uint64_t> seed = GetUint(json, "seed");
  const absl::StatusOr<uint64_t> start = GetUint(json, "start_ns");
  for (const auto* field : {&requests, &duration, &seed, &start}) {
    if (!field->ok()) return field->status();
  }
  if (*duration > INT64_MAX || *start > INT64_MAX || (*requests == 0 && *duration == 0)) {
    return absl::InvalidArgumentError("a run must have an end");
  }
  spec.requests = *requests;
  spec.duration = Duration(static_cast<int64_t>(*duration));
  spec.seed = *seed;
  spec.start_ns = static_cast<int64_t>(*start);
  spec.rate = std::clamp(GetNumber(json, "rate"), 0.0, 1e9);
  spec.phase = std::clamp(GetNumber(json, "phase"), 0.0, 1.0);
  spec.timeline = GetUint(json, "timeline").value_or(0);
  const auto poisson = json.find("poisson");
  spec.poisson = poisson != json.end() && *poisson == true;
  return spec;
}

Schedule::Schedule(const LoopSpec& spec, size_t streams)
    : spec_(spec),
      start_ns_(std::max(spec.start_ns, MonotonicNanoseconds())),
      next_s_(spec.rate > 0 ? spec.phase / spec.rate : 0),
      random_(spec.seed) {
  for (size_t i = 0; i < streams; ++i) {
    left_.push_back(spec.requests / streams + (i < spec.requests % streams ? 1 : 0));
  }
}

std::optional<int64_t> Schedule::Next(size_t stream) {
  if (spec_.rate > 0) return NextArrival();
  const int64_t now = MonotonicNanoseconds();
  if (spec_.requests == 0) {
    if (now >= start_ns_ + spec_.duration.count()) return std::nullopt;
    return now;
  }
  if (left_[stream] == 0) return std::nullopt;
  --left_[stream];
  return now;
}

std::optional<int64_t> Schedule::NextArrival() {
  const std::lock_guard lock(mutex_);
  if (spec_.requests != 0 && arrived_ == spec_.requests) return std::nullopt;
  const auto since = static_cast<int64_t>(next_s_ * static_cast<double>(kSecond));
  if (spec_.requests == 0 && since >= spec_.duration.count()) return std::nullopt;
  ++arrived_;
  next_s_ += (spec_.poisson ? std::exponential_distribution<double>(1.0)(random_) : 1) / spec_.rate;
  return start_ns_ + since;
}

void Tally::Merge(const Tally& other) {
  requests += other.requests;
  blocks += other.blocks;
  bytes += other.bytes;
  elapsed_ns = std::max(elapsed_ns, other.elapsed_ns);
}

Json ToJson(const LoopResult& result) {
  Json targets = Json::array();
  for (const Tally& tally : result.targets) targets.push_back(ToJson(tally));
  return {{"targets", std::move(targets)},
          {"times", result.times.ToJson()},
          {"notified", result.notified.ToJson()},
          {"timeline", ToJson(result.timeline)}};
}

absl::StatusOr<LoopResult> LoopResultFromJson(const Json& json) {
  const auto targets = json.find("targets");
  const auto times = json.find("times");
  const auto notified = json.find("notified");
  if (targets == json.end() || !targets->is_array() || times == json.end() ||
      notified == json.end()) {
    return absl::InvalidArgumentError("an incomplete result");
  }
  LoopResult result;
  for (const Json& item : *targets) {
    const absl::StatusOr<Tally> tally = TallyFromJson(item);
    if (!tally.ok()) return tally.status();
    result.targets.push_back(*tally);
    result.all.Merge(*tally);
  }
  for (auto [from, to] : {std::pair(&*times, &result.times), {&*notified, &result.notified}}) {
    absl::StatusOr<LatencyHistogram> histogram = LatencyHistogram::FromJson(*from);
    if (!histogram.ok()) return histogram.status();
    *to = std::move(*histogram);
  }
  absl::StatusOr<Timeline> timeline = TimelineFromJson(json.value("timeline", Json::array()));
  if (!timeline.ok()) return timeline.status();
  result.timeline = *std::move(timeline);
  return result;
}

absl::StatusOr<LoopResult> RunLoop(const LoopSpec& spec, size_t streams, size_t targets,
                                   RequestSource& source, const Exchange& exchange,
                                   std::atomic<uint64_t>* moved) {
  const int64_t start_ns = std::max(spec.start_ns, MonotonicNanoseconds());
  Run run{.start_ns = start_ns,
          .since_ns = spec.start_ns != 0 ? spec.start_ns : start_ns,
          .source = source,
          .exchange = exchange,
          .moved = moved};
  std::vector<Share> shares(streams);
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < streams; ++i) {
      shares[i].targets.resize(targets);
      threads.emplace_back([&run, i, &share = shares[i]] { RunStream(run, i, share); });
    }
  }
  LoopResult result;
  result.targets.resize(targets);
  for (const Share& share : shares) {
    if (!share.status.ok()) return share.status;
    result.times.Merge(share.times);
    for (size_t i = 0; i < targets; ++i) result.targets[i].Merge(share.targets[i]);
  }
  for (const Tally& tally : result.targets) result.all.Merge(tally);
  return result;
}

}  // namespace kvxfer::cli
