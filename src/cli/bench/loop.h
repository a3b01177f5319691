// Moves requests on several threads, one after the other on each, and measures their times.
//
// A closed loop begins the next request of a thread when the last one has ended. An open loop
// begins requests when they arrive. It measures their time from the arrival, even if a thread takes
// the request later: a stall counts for every request that arrives during it, not only for one.
//
// `--timeline` records when single transfers of a run passed from stage to stage.

#ifndef KVXFER_CLI_BENCH_LOOP_H_
#define KVXFER_CLI_BENCH_LOOP_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <random>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/stats.h"

namespace kvxfer::cli {

inline constexpr Duration kLongestRun = std::chrono::hours(1);

// The number of requests and when they begin. It is sent between processes.
struct LoopSpec {
  uint64_t requests = 0;  // on all streams; 0: until `duration` has passed
  Duration duration{};
  double rate = 0;        // requests a second on all streams; 0: a closed loop
  bool poisson = false;   // random arrivals, `rate` on average; else evenly spaced ones
  double phase = 0;       // time of the first arrival, as a share of the time between two
  uint64_t seed = 1;      // for random arrivals
  int64_t start_ns = 0;   // MonotonicNanoseconds when all begin; at once if that is past
  uint64_t timeline = 0;  // number of requests whose stages are recorded
};

Json ToJson(const LoopSpec& spec);
absl::StatusOr<LoopSpec> LoopSpecFromJson(const Json& json);

// One transfer, due at `due_ns`. The spans stay valid until Done.
struct Request {
  int64_t due_ns = 0;
  uint32_t target = 0;
  std::span<const PagedRegion> local{};
  std::span<const PagedRegion> remote{};
  std::span<const uint32_t> local_ids{};
  std::span<const uint32_t> remote_ids{};

  uint64_t blocks() const { return local.size() * local_ids.size(); }
  uint64_t bytes() const { return local.empty() ? 0 : blocks() * local[0].block_bytes; }
};

// The source of a run's requests: a fixed set of blocks for each stream (drive.h), or a trace.
// Thread-safety: several threads call this at once, each for a stream of its own.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  // Nothing once the stream has no more requests.
  virtual std::optional<Request> Next(size_t stream) = 0;
  // The blocks of the stream's last request are free again.
  virtual void Done(size_t /*stream*/) {}
};

// The times when the requests of the streams are due, by a LoopSpec.
class Schedule {
 public:
  Schedule(const LoopSpec& spec, size_t streams);
  // MonotonicNanoseconds; nothing after the last one.
  std::optional<int64_t> Next(size_t stream);

 private:
  std::optional<int64_t> NextArrival();

  const LoopSpec spec_;
  const int64_t start_ns_;
  std::vector<uint64_t> left_;  // requests of each stream, in a closed loop with a number of them
  std::mutex mutex_;            // guards the members below, which an open loop uses
  uint64_t arrived_ = 0;
  double next_s_ = 0;  // since start_ns_
  std::mt19937_64 random_;
};

// The most transfers in one result: they are sent between processes in one message.
inline constexpr uint64_t kMaxTimeline = 4096;

// All times in nanoseconds since the common start of the run.
struct TransferTimes {
  uint32_t peer = 0;    // index into `peer_gb_per_s`
  uint32_t thread = 0;  // of that peer
  uint64_t bytes = 0;
  int64_t due_ns = 0;
  int64_t posted_ns = 0;
  int64_t first_slice_ns = 0;            // the backend got the first slice
  std::optional<int64_t> notified_ns{};  // the target's application was; needs a common clock
  int64_t ended_ns = 0;                  // at the initiator
};

template <typename Io>
void Fields(Io& io, JsonRef<Io, TransferTimes> times) {
  io("peer", times.peer);
  io("thread", times.thread);
  io("bytes", times.bytes);
  io("due_ns", times.due_ns);
  io("posted_ns", times.posted_ns);
  io("first_slice_ns", times.first_slice_ns);
  io("notified_ns", times.notified_ns);
  io("ended_ns", times.ended_ns);
}

using Timeline = std::vector<TransferTimes>;

// InvalidArgument too if it has more than kMaxTimeline requests.
absl::Status FromJson(const Json& json, Timeline& timeline);

// When a target's application was notified of a transfer.
struct ArrivalTime {
  uint64_t number = 0;   // of the transfer
  int64_t after_ns = 0;  // since its posting
};

template <typename Io>
void Fields(Io& io, JsonRef<Io, ArrivalTime> arrival) {
  io("number", arrival.number);
  io("after_ns", arrival.after_ns);
}

using ArrivalTimes = std::vector<ArrivalTime>;

// Records the first transfers of a run, in the order of their posting.
// Thread-safety: any thread may call Begin and Put. Take: no other thread may use the object.
class TimelineRecorder {
 public:
  explicit TimelineRecorder(uint64_t most);
  // Call it before posting. Returns the number of the transfer, from 1, or 0 if it is not recorded.
  uint64_t Begin();
  // Stores the times of a transfer that has ended, by the clock of MonotonicNanoseconds. For the
  // thread that called Begin.
  void Put(uint64_t number, const TransferTimes& times) { kept_[number - 1] = times; }
  // The recorded transfers by number, with times since `start_ns`.
  Timeline Take(int64_t start_ns);

 private:
  Timeline kept_;
  std::atomic<uint64_t> begun_{0};
};

// Ignores numbers that are not in the timeline.
void AddArrivalTimes(const ArrivalTimes& arrivals, Timeline& timeline);

// The requests of one target, or of one initiator, in a run.
struct Tally {
  uint64_t requests = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  int64_t elapsed_ns = 0;  // from the start of the run to the end of the last request

  void Merge(const Tally& other);
  double gb_per_s() const {
    return elapsed_ns > 0 ? static_cast<double>(bytes) / static_cast<double>(elapsed_ns) : 0;
  }
  double per_second(uint64_t count) const {
    return elapsed_ns > 0 ? static_cast<double>(count) / (static_cast<double>(elapsed_ns) * 1e-9)
                          : 0;
  }
};

template <typename Io>
void Fields(Io& io, JsonRef<Io, Tally> tally) {
  io("requests", tally.requests);
  io("blocks", tally.blocks);
  io("bytes", tally.bytes);
  io("elapsed_ns", tally.elapsed_ns);
}

struct LoopResult {
  Tally all{};
  std::vector<Tally> targets{};
  LatencyHistogram times{};     // from due to the end at the initiator
  LatencyHistogram notified{};  // from posting to the target's notification; needs a common clock
  Timeline timeline{};          // of at most LoopSpec::timeline requests

  // Adds the result of another run at the same time, with its own targets.
  void Append(const LoopResult& other);
};

template <typename Io>
void Fields(Io& io, JsonRef<Io, LoopResult> result) {
  io("targets", result.targets);
  io("times", result.times);
  io("notified", result.notified);
  io("timeline", result.timeline);
  if constexpr (Io::kReads) {
    for (const Tally& tally : result.targets) result.all.Merge(tally);
  }
}

// Moves one request and returns when it has ended.
using Exchange = std::function<absl::Status(size_t stream, const Request&)>;

// Runs a thread for each stream, from spec.start_ns on. After an error no request begins, and the
// error is returned when all threads have ended. If `moved` is not null, it counts requests
// meanwhile.
absl::StatusOr<LoopResult> RunLoop(const LoopSpec& spec, size_t streams, size_t targets,
                                   RequestSource& source, const Exchange& exchange,
                                   std::atomic<uint64_t>* moved);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_LOOP_H_
