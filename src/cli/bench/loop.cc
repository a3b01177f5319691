#include "src/cli/bench/loop.h"

#include <time.h>

#include <algorithm>
#include <thread>
#include <utility>

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

}  // namespace

template <typename Io>
void Fields(Io& io, JsonRef<Io, LoopSpec> spec) {
  io("requests", spec.requests);
  io("duration_ns", spec.duration);
  io("rate", spec.rate);
  io("poisson", spec.poisson);
  io("phase", spec.phase);
  io("seed", spec.seed);
  io("start_ns", spec.start_ns);
  io("timeline", spec.timeline);
}

Json ToJson(const LoopSpec& spec) { return FieldsToJson(spec); }

absl::StatusOr<LoopSpec> LoopSpecFromJson(const Json& json) {
  absl::StatusOr<LoopSpec> spec = FromJson<LoopSpec>(json);
  if (!spec.ok()) return spec;
  if (spec->start_ns < 0 || (spec->requests == 0 && spec->duration == Duration::zero())) {
    return Invalid("a run must have an end");
  }
  spec->rate = std::clamp(spec->rate, 0.0, 1e9);
  spec->phase = std::clamp(spec->phase, 0.0, 1.0);
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

absl::Status FromJson(const Json& json, Timeline& timeline) {
  if (json.size() > kMaxTimeline) return Invalid("is too long");
  return FromJson<TransferTimes>(json, timeline);
}

void LoopResult::Append(const LoopResult& other) {
  all.Merge(other.all);
  targets.insert(targets.end(), other.targets.begin(), other.targets.end());
  times.Merge(other.times);
  notified.Merge(other.notified);
  timeline.insert(timeline.end(), other.timeline.begin(), other.timeline.end());
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

TimelineRecorder::TimelineRecorder(uint64_t most) : kept_(std::min(most, kMaxTimeline)) {}

uint64_t TimelineRecorder::Begin() {
  // A load first, so that the threads of a long run do not write shared memory.
  if (begun_.load(std::memory_order_relaxed) >= kept_.size()) return 0;
  const uint64_t number = begun_.fetch_add(1, std::memory_order_relaxed) + 1;
  return number <= kept_.size() ? number : 0;
}

Timeline TimelineRecorder::Take(int64_t start_ns) {
  kept_.resize(std::min<size_t>(kept_.size(), begun_.load()));
  for (TransferTimes& times : kept_) {
    for (int64_t* time :
         {&times.due_ns, &times.posted_ns, &times.first_slice_ns, &times.ended_ns}) {
      *time -= start_ns;
    }
  }
  return std::move(kept_);
}

void AddArrivalTimes(const ArrivalTimes& arrivals, Timeline& timeline) {
  for (const auto& [number, after_ns] : arrivals) {
    if (number == 0 || number > timeline.size()) continue;
    TransferTimes& times = timeline[number - 1];
    times.notified_ns = times.posted_ns + after_ns;
  }
}

}  // namespace kvxfer::cli
