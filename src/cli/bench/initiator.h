// One agent of `kvxfer bench` that moves requests to its targets, in one configuration.
#ifndef KVXFER_CLI_BENCH_INITIATOR_H_
#define KVXFER_CLI_BENCH_INITIATOR_H_

#include <atomic>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/bench/case.h"
#include "src/cli/bench/drive.h"
#include "src/cli/bench/kv_trace.h"
#include "src/cli/bench/loop.h"
#include "src/cli/common/round_trip.h"
#include "src/cli/common/target_session.h"

namespace kvxfer::cli {

// Makes the loss of a peer during a run a failed run (Aborted), in contrast to a peer that cannot
// be reached. Any other status stays as it is.
absl::Status BrokenOff(const absl::Status& status);

// Thread-safety: one thread at a time.
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

  double register_ms() const { return register_ms_; }
  double first_transfer_us() const { return first_transfer_us_; }
  std::string path() const;     // to the first target
  std::string backend() const;  // of that path
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

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_INITIATOR_H_
