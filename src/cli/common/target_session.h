// A client's session at a PeerService: the two agents know each other, and there is memory for the
// client there.
#ifndef KVXFER_CLI_COMMON_TARGET_SESSION_H_
#define KVXFER_CLI_COMMON_TARGET_SESSION_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/bench/timeline.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/latency_histogram.h"

namespace kvxfer::cli {

// What a client asks for. `answer` and `drive` are regions of its own that it lets the service
// write and read: `answer` for an answer to each notification, `drive` for a load of its own.
struct SessionRequest {
  KvCacheShape shape{};  // without a gap
  std::vector<PagedRegion> answer{};
  std::vector<PagedRegion> drive{};
};

// What the other process has used up and seen.
struct TargetReport {
  std::string process{};  // differs between processes, on one host or on several
  double cpu_seconds = 0;
  uint64_t rss_bytes = 0;
  uint64_t notifications = 0;   // of this session since its last report
  LatencyHistogram notified{};  // of those: posted → told; empty where there is no common clock
  ArrivalTimes arrivals{};                  // likewise, of those with a number
};

// Thread-safety: one thread. `channel` and `agent` outlive it.
class TargetSession {
 public:
  // Memory that peers are to reach must be registered by now.
  static absl::StatusOr<TargetSession> Open(Channel& channel, Agent& agent,
                                            const SessionRequest& request, Duration timeout);

  const std::string& peer() const { return peer_; }  // the service's agent
  uint64_t id() const { return id_; }
  const std::vector<PagedRegion>& regions() const { return regions_; }  // there
  Channel& channel() const { return *channel_; }

  // Waits until the service has been told `notifications` times since the last report; it may be
  // behind what the initiator already knows. DataLoss: it was told more often, or less in time.
  absl::StatusOr<TargetReport> Report(uint64_t notifications, Duration timeout) const;

 private:
  Channel* channel_ = nullptr;
  std::string peer_;
  uint64_t id_ = 0;
  std::vector<PagedRegion> regions_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_TARGET_SESSION_H_
