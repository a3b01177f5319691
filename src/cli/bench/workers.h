// The processes of a `kvxfer bench` run: initiators and, without a server, targets. A single
// initiator runs in this process. Several initiators, like several targets, share at most four
// processes.

#ifndef KVXFER_CLI_BENCH_WORKERS_H_
#define KVXFER_CLI_BENCH_WORKERS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/drive.h"
#include "src/cli/bench/kv_trace.h"
#include "src/cli/bench/loop.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/peer_service.h"

namespace kvxfer::cli {

// Facts about a configuration that is set up and whose first round is verified. The times are the
// largest ones of all initiators.
struct Opened {
  std::string backend{};
  std::string path{};
  double register_ms = 0;
  double first_transfer_us = 0;

  void Merge(const Opened& other);
};

template <typename Io>
void Fields(Io& io, JsonRef<Io, Opened> opened) {
  io("backend", opened.backend);
  io("path", opened.path);
  io("register_ms", opened.register_ms);
  io("first_transfer_us", opened.first_transfer_us);
}

// Makes the loss of a peer during a run a failed run (Aborted), in contrast to a peer that cannot
// be reached. Any other status stays as it is.
absl::Status BrokenOff(const absl::Status& status);

// One agent that moves requests to its targets, in one configuration. Thread-safety: one thread at
// a time.
class BenchInitiator {
 public:
  // Creates the agent, its cache and the sessions with the targets. `index` is its number among the
  // initiators of the run, and makes its content different from theirs.
  static absl::StatusOr<std::unique_ptr<BenchInitiator>> Open(const BenchCase& bench,
                                                              uint32_t index);
  ~BenchInitiator();

  // Moves one request of each stream in each direction and checks every byte at the receiver.
  // DataLoss: a byte is wrong. The first request makes the connection.
  absl::Status Verify();

  struct Ran {
    LoopResult result;                   // both directions
    std::vector<TargetReport> before{};  // of each target
    std::vector<TargetReport> after{};
  };
  // Repeats the verified requests as `spec` says, or moves the requests of `trace`. Returns when
  // each target was notified of every request.
  absl::StatusOr<Ran> Run(const LoopSpec& spec, TraceSource* trace, std::atomic<uint64_t>* moved);

  Opened opened() const;  // with the path to the first target
  const KvCache& cache() const { return cache_; }
  const DriveLink& link() const { return links_[0]; }
  size_t threads() const { return bench_.threads; }

 private:
  explicit BenchInitiator(const BenchCase& bench, uint32_t index) : bench_(bench), index_(index) {}
  absl::Status VerifyAll();
  absl::Status OpenAgent();
  absl::Status OpenSessions();
  absl::Status VerifyDirection(bool forward);
  absl::Status Content(bool fill, bool at_targets, bool forward);
  absl::Status Clear(bool at_targets);
  absl::Status MoveOnce(bool forward);
  // Makes the target the initiator of a load on this agent's cache.
  absl::StatusOr<LoopResult> DriveBack(const LoopSpec& spec);
  absl::StatusOr<Ran> RunAll(const LoopSpec& spec, TraceSource* trace,
                             std::atomic<uint64_t>* moved);
  absl::StatusOr<LoopResult> Forward(const LoopSpec& spec, TraceSource* trace,
                                     std::atomic<uint64_t>* moved);
  // Waits until each target was notified of `expected` requests since its last report; empty: none.
  absl::StatusOr<std::vector<TargetReport>> Report(const std::vector<Tally>& expected);
  absl::Status AwaitNotified(uint64_t expected) const;

  const BenchCase bench_;
  const uint32_t index_;
  KvCache cache_;                // outlives the agent that has it registered
  std::list<Channel> channels_;  // one to each target
  std::unique_ptr<Agent> agent_;
  std::vector<TargetSession> sessions_;
  std::vector<DriveLink> links_;
  std::optional<RoundTrip> trip_;  // for `latency`; sessions_[0] is its session
  std::optional<FixedRequests> requests_;
  double register_ms_ = 0;
  double first_transfer_us_ = 0;
  std::atomic<uint64_t> notified_{0};  // notifications of the targets' loads at this agent
};

// The resources that one target process has used during a run.
struct ProcessUse {
  double cpu_before = 0;
  double cpu_after = 0;
  uint64_t rss_bytes = 0;
};

// The result of a run; its targets are those of the run or, with several initiators, one for each
// initiator.
struct Ran : LoopResult {
  double cpu_seconds = 0;  // of the initiators' processes, as is `rss_bytes`
  uint64_t rss_bytes = 0;
  std::map<std::string, ProcessUse> processes{};  // of the targets
  uint64_t tokens = 0;                            // prompt tokens of a trace
  uint64_t hit_tokens = 0;

  void Merge(const Ran& other);
};

template <typename Io>
void Fields(Io& io, JsonRef<Io, ProcessUse> use) {
  io("before", use.cpu_before);
  io("after", use.cpu_after);
  io("rss_bytes", use.rss_bytes);
}

template <typename Io>
void Fields(Io& io, JsonRef<Io, Ran> ran) {
  JsonRef<Io, LoopResult> loop = ran;
  Fields(io, loop);
  io("cpu_seconds", ran.cpu_seconds);
  io("rss_bytes", ran.rss_bytes);
  io("processes", ran.processes);
}

// The share that initiator `index` of `total` has of a run's load.
LoopSpec ShareOf(const LoopSpec& whole, uint32_t index, uint32_t total);

// The initiators of one process, which run at the same time. Thread-safety: one thread at a time.
class InitiatorGroup {
 public:
  // Sets up and verifies initiators `first` to `first + count` of a run.
  absl::StatusOr<Opened> Open(const BenchCase& bench, uint32_t first, uint32_t count);
  // `whole` is the load of all `total` initiators of the run. With `trace`, which one initiator
  // moves, the trace is the load. If `moved` is not null, it counts requests.
  absl::StatusOr<Ran> Run(const LoopSpec& whole, uint32_t total, const TraceSpec* trace,
                          std::atomic<uint64_t>* moved);
  void Close() { initiators_.clear(); }

 private:
  uint32_t first_ = 0;
  std::vector<std::unique_ptr<BenchInitiator>> initiators_;
};

inline constexpr uint32_t kMaxWorkers = 4;  // for initiators, and for targets

// A process of initiators reports every kAliveEvery while it works. After kLongestSilence it is
// given up: a stopped process does not close its connection.
inline constexpr Duration kAliveEvery = std::chrono::milliseconds(250);
inline constexpr Duration kLongestSilence = std::chrono::seconds(10);

struct BenchWorkersSpec {
  std::vector<std::string> servers{};  // empty: worker processes are the targets
  uint32_t targets = 1;                // with servers, their number
  uint32_t initiators = 1;
  std::string backend{};
  uint64_t seed = 1;
  bool gpu_memory = false;     // sessions of the target processes use GPU memory
  uint64_t session_bytes = 0;  // the largest session that the target processes allow
};

// Thread-safety: one thread.
class BenchWorkers {
 public:
  static absl::StatusOr<std::unique_ptr<BenchWorkers>> Start(const BenchWorkersSpec& spec);

  // For BenchCase::targets.
  const std::vector<std::string>& targets() const { return targets_; }

  absl::StatusOr<Opened> Open(const BenchCase& bench);
  // All initiators begin at the same time. Calls `tick` about every 100 ms with the number of
  // requests moved so far.
  absl::StatusOr<Ran> Run(LoopSpec spec, const TraceSpec* trace,
                          const std::function<void(uint64_t)>& tick);
  absl::Status Close();

  // If one of the processes has ended and so caused `status`, says how it ended; else returns
  // `status`.
  absl::Status Explain(absl::Status status);

 private:
  explicit BenchWorkers(const BenchWorkersSpec& spec) : spec_(spec), targets_(spec.servers) {}
  absl::Status StartTargets();
  absl::Status StartInitiators();
  // Sends each worker process its message and collects the answers in any order. Aborted names a
  // process that was silent for kLongestSilence. `tick` may be null.
  absl::StatusOr<std::vector<Json>> CallAll(const std::vector<Json>& messages, Duration timeout,
                                            const std::function<void(uint64_t)>& tick);
  struct Awaited;
  absl::Status Hear(size_t worker, bool spoke, Duration passed, Awaited& awaited);

  const BenchWorkersSpec spec_;
  std::vector<std::string> targets_;
  std::vector<WorkerProcess> target_workers_;
  std::vector<WorkerProcess> initiator_workers_;
  InitiatorGroup here_;  // the single initiator; closed before the targets end
};

// What the worker processes do; the first message of their parent says which of the two.
absl::Status ServeTargets(Channel& parent, const Json& first);
absl::Status ServeInitiators(Channel& parent);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_WORKERS_H_
