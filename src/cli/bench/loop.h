// Moves requests, one after the other on each of several threads, and takes their times.
//
// A closed loop begins the next request of a thread when the last has ended. An open loop begins
// requests when they arrive, and counts their time from then on, however late the thread that
// takes one is: a stall is seen by every request that arrived during it, not by one.
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
#include "src/cli/bench/timeline.h"
#include "src/cli/common/json_util.h"
#include "src/cli/common/latency_histogram.h"

namespace kvxfer::cli {

inline constexpr Duration kLongestRun = std::chrono::hours(1);

// How many requests, when. Travels between processes.
struct LoopSpec {
  uint64_t requests = 0;  // of all streams; 0: until `duration` has passed
  Duration duration{};
  double rate = 0;        // requests a second of all streams; 0: a closed loop
  bool poisson = false;   // arrivals are drawn, at `rate` on average; else evenly spaced
  double phase = 0;       // of the first arrival, in parts of the distance between two
  uint64_t seed = 1;      // of drawn arrivals
  int64_t start_ns = 0;   // MonotonicNanoseconds at which all begin; past: at once
  uint64_t timeline = 0;  // requests of which the stages are kept
};

Json ToJson(const LoopSpec& spec);
absl::StatusOr<LoopSpec> LoopSpecFromJson(const Json& json);

// One transfer that is due at `due_ns`. The spans stay valid until Done.
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

// Where the requests of a run come from: a fixed set of blocks for each stream (drive.h), or
// a trace. Thread-safety: each stream is one thread's; several call at once.
class RequestSource {
 public:
  virtual ~RequestSource() = default;
  // Nothing: the run is over for this stream.
  virtual std::optional<Request> Next(size_t stream) = 0;
  // The blocks of the stream's last request are free again.
  virtual void Done(size_t /*stream*/) {}
};

// When the requests of the streams are due, by a LoopSpec.
class Schedule {
 public:
  Schedule(const LoopSpec& spec, size_t streams);
  // MonotonicNanoseconds; nothing after the last one.
  std::optional<int64_t> Next(size_t stream);

 private:
  std::optional<int64_t> NextArrival();

  const LoopSpec spec_;
  const int64_t start_ns_;
  std::vector<uint64_t> left_;  // of a closed loop with a number of requests, for each stream
  std::mutex mutex_;            // of what follows, which an open loop uses
  uint64_t arrived_ = 0;
  double next_s_ = 0;  // since start_ns_
  std::mt19937_64 random_;
};

// What one target, or one initiator, had of a run.
struct Tally {
  uint64_t requests = 0;
  uint64_t blocks = 0;
  uint64_t bytes = 0;
  int64_t elapsed_ns = 0;  // from the start of the run to the end of the last request

  void Merge(const Tally& other);
  double gb_per_s() const {
    return elapsed_ns > 0 ? static_cast<double>(bytes) / static_cast<double>(elapsed_ns) : 0;
  }
};

struct LoopResult {
  Tally all{};
  std::vector<Tally> targets{};
  LatencyHistogram times{};     // due → ended at the initiator
  LatencyHistogram notified{};  // posted → the target's application was told, on one clock only
  Timeline timeline{};          // of as many as LoopSpec::timeline says
};

Json ToJson(const LoopResult& result);
absl::StatusOr<LoopResult> LoopResultFromJson(const Json& json);

// Moves one request and returns when it has ended.
using Exchange = std::function<absl::Status(size_t stream, const Request&)>;

// A thread for each stream. Waits for spec.start_ns. After the first error no request is begun; it
// is returned when all threads have ended. `moved`, where not null, counts requests meanwhile.
absl::StatusOr<LoopResult> RunLoop(const LoopSpec& spec, size_t streams, size_t targets,
                                   RequestSource& source, const Exchange& exchange,
                                   std::atomic<uint64_t>* moved);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_LOOP_H_
