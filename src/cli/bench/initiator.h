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

// A peer that is lost once a run has begun is a failed run (Aborted), not one that cannot be
// reached; any other status stays as it is.
absl::Status BrokenOff(const absl::Status& status);

// Thread-safety: one thread at a time.
class BenchInitiator {
 public:
  // Makes the agent, its cache and the sessions at the targets. `index` is its number among the
  // initiators of the run: content differs by it.
  static absl::StatusOr<std::unique_ptr<BenchInitiator>> Open(const BenchCase& bench,
                                                              uint32_t index);
  ~BenchInitiator();

  // Moves one request of each stream, in each direction, and checks every byte where it landed:
  // DataLoss. The first of them makes the connection.
  absl::Status Verify();

  struct Ran {
    LoopResult result;                   // both directions
    std::vector<TargetReport> before{};  // of each target
    std::vector<TargetReport> after{};
  };
  // What was verified, as often as `spec` says; with `trace`, its requests in place of that.
  // Returns when each target's application has been told of every request.
  absl::StatusOr<Ran> Run(const LoopSpec& spec, TraceSource* trace, std::atomic<uint64_t>* moved);

  double register_ms() const { return register_ms_; }
  double first_transfer_us() const { return first_transfer_us_; }
  std::string path() const;     // to the first target
  std::string backend() const;  // that path's
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
  // The target's load against this agent's cache.
  absl::StatusOr<LoopResult> DriveBack(const LoopSpec& spec);
  absl::StatusOr<Ran> RunAll(const LoopSpec& spec, TraceSource* trace,
                             std::atomic<uint64_t>* moved);
  absl::StatusOr<LoopResult> Forward(const LoopSpec& spec, TraceSource* trace,
                                     std::atomic<uint64_t>* moved);
  // `expected` requests of each target since the last report; empty: none.
  absl::StatusOr<std::vector<TargetReport>> Report(const std::vector<Tally>& expected);
  absl::Status AwaitNotified(uint64_t expected) const;

  const BenchCase bench_;
  const uint32_t index_;
  KvCache cache_;                // outlives the agent that has it registered
  std::list<Channel> channels_;  // one to a target
  std::unique_ptr<Agent> agent_;
  std::vector<TargetSession> sessions_;
  std::vector<DriveLink> links_;
  std::optional<RoundTrip> trip_;  // of `latency`; its session is sessions_[0] too
  std::optional<FixedRequests> requests_;
  double register_ms_ = 0;
  double first_transfer_us_ = 0;
  std::atomic<uint64_t> notified_{0};  // of the targets' loads, at this agent
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_BENCH_INITIATOR_H_
