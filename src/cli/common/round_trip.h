// One notified write and its answer: what `ping` and `bench --latency` measure.
#ifndef KVXFER_CLI_COMMON_ROUND_TRIP_H_
#define KVXFER_CLI_COMMON_ROUND_TRIP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/memory_choice.h"
#include "src/cli/common/target_session.h"
#include "src/core/base/clock.h"

namespace kvxfer::cli {

// Writes a block with a notification; the service's application is notified and writes as many
// bytes back, with a notification. It has ended when that is here.
//
// Thread-safety: one thread, which drives the agent while it waits and takes all its notifications.
class RoundTrip {
 public:
  // Makes the memory for both directions, in `cache` (which must outlive the agent), and the
  // session. `register_ms`, where not null, gets the time that registering took.
  static absl::StatusOr<RoundTrip> Open(Channel& channel, Agent& agent, KvCache& cache,
                                        uint64_t size, const MemorySides& memory, Duration timeout,
                                        double* register_ms = nullptr);

  // Until the answer is here. A transfer that fails ends it at once, with its status; a peer that
  // is lost and does not come back, within a second or two: Unavailable.
  absl::Status Once();

  // Writes content that says where it belongs and compares what came back: DataLoss. `took_us` gets
  // the time of the round trip alone.
  absl::Status Verify(double* took_us);

  const TargetSession& session() const { return session_; }

 private:
  absl::Status WaitAnswer(const Transfer& transfer);
  // Why no answer can come any more; OK while one can.
  absl::Status CheckPeer();

  Agent* agent_ = nullptr;
  const KvCache* cache_ = nullptr;
  Duration timeout_{};
  TargetSession session_;
  Time lost_since_{};      // where lost_ is not OK
  absl::Status lost_;      // why the peer was lost last; OK: it was not, or is back
  uint64_t sequence_ = 0;  // tells the answer from a late one to an earlier write
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_ROUND_TRIP_H_
