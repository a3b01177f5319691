// What a process does for the clients of its agent: it answers pings, explains paths, and is the
// target of benchmarks. `kvxfer serve` does this for every client that connects; `kvxfer bench`
// starts a process that does it for the benchmark.
//
// Requests are channel messages. A request that is not listed here is answered with an error.
//
//   hello {metadata, version} → {metadata, version}
//     Both agents know each other then. A channel is for one agent, an agent has one channel, and
//     both sides run the same version of kvxfer.
//   explain {} → {explanation, text}
//     The paths from here to the client.
//   prepare {pieces, block_bytes, blocks, memory, answer?, drive?} → {session, regions}
//     Creates a cache for the client. The client says hello again to get the metadata with it.
//   clear {} → {}
//     Zeros the cache.
//   fill | check {first, streams, request_blocks, content, seed} → {}
//     Writes, or compares, the content of some streams.
//   drive {op, threads, request_blocks, first, remote_first, seed, timeout_ns, loop} → a result
//     This side is the initiator of a load.
//   report {} → {notifications, notified, arrivals, process, cpu_seconds, rss_bytes}
//     What this side saw since the last report.
//
// The notifications of a session carry SessionNote. If prepare had `answer`, a region of the client
// as large as the cache here, each notification is answered at once by a notified write into it.
#ifndef KVXFER_CLI_COMMON_PEER_SERVICE_H_
#define KVXFER_CLI_COMMON_PEER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/bench/timeline.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/latency_histogram.h"

namespace kvxfer::cli {

// The bytes that a session with such a cache counts for: the cache, its guards and, for each block,
// the two ids by which content and loads name it.
uint64_t SessionBytes(const KvCacheShape& shape);

// The most regions of a session's cache.
inline constexpr uint64_t kMaxPieces = 4096;

class PeerService {
 public:
  // `max_session_bytes` limits the SessionBytes of each client.
  PeerService(std::unique_ptr<Agent> agent, uint64_t max_session_bytes);
  ~PeerService();

  Agent& agent() { return *agent_; }

  // Serves one client until it closes its channel or sends something that is not a message. Several
  // threads may call this at once, each with its own channel.
  void Serve(Channel& channel);

 private:
  // One client. It lives on the stack of Serve. Only that thread writes it, and it holds mutex_ for
  // that. The dispatcher reads it under mutex_, and only while it is in sessions_.
  struct Session {
    uint64_t id = 0;
    std::string peer;  // empty before its hello; differs between sessions
    bool same_clock = false;
    KvCache cache;
    std::vector<RegionId> regions;    // of `cache`, while they are registered
    std::vector<PagedRegion> answer;  // of the client; empty: notifications are not answered
    std::vector<PagedRegion> drive;   // of the client
    // These three count from the last report on.
    uint64_t notifications = 0;
    LatencyHistogram notified;
    ArrivalTimes arrivals;  // of transfers with a number, at most kMaxTimeline
  };

  absl::StatusOr<Json> Handle(Session& session, const Json& request);
  absl::StatusOr<Json> Hello(Session& session, const Json& request);
  absl::Status Claim(Session& session, const std::string& name);
  absl::StatusOr<Json> Prepare(Session& session, const Json& request);
  absl::StatusOr<Json> Content(Session& session, const std::string& type, const Json& request);
  absl::StatusOr<Json> Drive(Session& session, const Json& request);
  absl::StatusOr<Json> HandedOver() const;
  Json Report(Session& session);
  absl::Status Forget(Session& session);
  void Dispatch();
  void OnNotification(const Notification& notification);

  // Memory of clients that left before it was quiet. Declared before the agent, so that it is freed
  // after the agent, when nothing can write it any longer.
  std::vector<KvCache> stranded_;
  const std::unique_ptr<Agent> agent_;
  const uint64_t max_session_bytes_;
  std::mutex mutex_;  // guards sessions_, and what the dispatcher reads of each session
  std::map<uint64_t, Session*> sessions_;
  uint64_t next_session_ = 1;  // never reused: a late note must not reach a new session
  std::atomic<bool> stopping_{false};
  std::thread dispatcher_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_PEER_SERVICE_H_
