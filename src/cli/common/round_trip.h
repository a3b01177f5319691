// One notified write and its answer, which `ping` and `bench --latency` measure.
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

// Writes a block with a notification. The peer's PeerService is notified and writes as many bytes
// back, with a notification. The round trip ends when that notification arrives.
//
// Thread-safety: one thread. It drives the agent while it waits, and takes all of its
// notifications.
class RoundTrip {
 public:
  // Allocates the memory for both directions in `cache`, which must outlive the agent, and opens
  // the session. If `register_ms` is not null, it gets the time that registration took.
  static absl::StatusOr<RoundTrip> Open(Channel& channel, Agent& agent, KvCache& cache,
                                        uint64_t size, const MemorySides& memory, Duration timeout,
                                        double* register_ms = nullptr);

  // One round trip. Returns the status of the write at once if that fails. Unavailable: the peer
  // was lost, and did not come back within a second or two.
  absl::Status Once();

  // One round trip with content that identifies its place. DataLoss: the answer differs. `took_us`
  // gets the time of the round trip alone.
  absl::Status Verify(double* took_us);

  const TargetSession& session() const { return session_; }

 private:
  absl::Status WaitAnswer(const Transfer& transfer);
  // OK while an answer can still arrive; else why none can.
  absl::Status CheckPeer();

  Agent* agent_ = nullptr;
  const KvCache* cache_ = nullptr;
  Duration timeout_{};
  TargetSession session_;
  Time lost_since_{};      // if lost_ is not OK
  absl::Status lost_;      // why the peer is lost; OK: it is connected
  uint64_t sequence_ = 0;  // tells the answer from a late one to an earlier write
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_ROUND_TRIP_H_
