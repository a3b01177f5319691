// A client's session at a PeerService: the two agents know each other, and the service has memory
// for the client.
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

// What a client asks for. `answer` and `drive` are regions of the client that the service may write
// and read: `answer` for the answer to each notification, `drive` for a load of the service.
struct SessionRequest {
  KvCacheShape shape{};  // without a gap
  std::vector<PagedRegion> answer{};
  std::vector<PagedRegion> drive{};
};

// Resources that the target process has used, and notifications that it has received.
struct TargetReport {
  std::string process{};  // identifies the process among those of all hosts
  double cpu_seconds = 0;
  uint64_t rss_bytes = 0;
  uint64_t notifications = 0;  // of this session since its last report
  LatencyHistogram
      notified{};           // of those, from posting to notification; empty without a common clock
  ArrivalTimes arrivals{};  // of those with a number, likewise
};

// Thread-safety: one thread. `channel` and `agent` outlive it.
class TargetSession {
 public:
  // Register the memory that the service may reach before this.
  static absl::StatusOr<TargetSession> Open(Channel& channel, Agent& agent,
                                            const SessionRequest& request, Duration timeout);

  const std::string& peer() const { return peer_; }  // the service's agent
  uint64_t id() const { return id_; }
  const std::vector<PagedRegion>& regions() const { return regions_; }  // of the service
  Channel& channel() const { return *channel_; }

  // Waits until the service was notified `notifications` times since the last report: it may lag
  // behind the initiator. DataLoss: more notifications, or fewer within `timeout`.
  absl::StatusOr<TargetReport> Report(uint64_t notifications, Duration timeout) const;

 private:
  Channel* channel_ = nullptr;
  std::string peer_;
  uint64_t id_ = 0;
  std::vector<PagedRegion> regions_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_TARGET_SESSION_H_
