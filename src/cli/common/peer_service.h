// What a process does for the clients of its agent: answers pings, explains, and is the other side
// of benchmarks. `kvxfer serve` offers it to all who connect, `kvxfer bench` to itself.
//
// Requests (channel messages) and answers; any other is answered with an error:
//   hello {metadata, version}          → {metadata, version}  both agents know each other; one
//   agent
//                                        a channel, and one channel an agent; one version of kvxfer
//   explain {}                         → {explanation}        the path from here to the client
//   prepare {pieces, block_bytes, blocks, memory, answer?, drive?}
//                                      → {session, regions}   a cache for the client; say hello
//                                      again
//   clear {}                           → {}                   zeros in all of that cache
//   fill | check {first, streams, request_blocks, content, seed} → {}   content of some streams
//   drive {op, threads, share, …}      → a result             this side is the initiator of a load
//   report {}                          → {notifications, notified, told, process, cpu_seconds,
//                                        rss_bytes}
//
// A session's notifications carry SessionNote. Where prepare had `answer` (a region of the client's
// as large as its cache here) each is answered at once by a notified write into it.
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

// What a session with such a cache counts against PeerService's bound: the cache and, for each of
// its blocks, the two ids by which content and loads name it.
uint64_t SessionBytes(const KvCacheShape& shape);

// Regions of a session's cache at most.
inline constexpr uint64_t kMaxPieces = 4096;

class PeerService {
 public:
  // `max_session_bytes` bounds the SessionBytes of each client.
  PeerService(std::unique_ptr<Agent> agent, uint64_t max_session_bytes);
  ~PeerService();

  Agent& agent() { return *agent_; }

  // Serves one client until it closes or sends what is no message. Several threads may call it at
  // once, each with its own channel.
  void Serve(Channel& channel);

 private:
  // One client. It lives on the stack of Serve, whose thread alone writes it, under mutex_; the
  // dispatcher reads it under mutex_, and only while it is in sessions_.
  struct Session {
    uint64_t id = 0;
    std::string peer;  // empty before its hello; no two sessions have the same
    bool same_clock = false;
    KvCache cache;
    std::vector<RegionId> regions;    // of `cache`, while they are registered
    std::vector<PagedRegion> answer;  // of the client; empty: do not answer
    std::vector<PagedRegion> drive;   // of the client
    uint64_t notifications = 0;       // since the last report, as is `notified`
    LatencyHistogram notified;
    ArrivalTimes arrivals;  // likewise, of transfers with a number; the first kMaxTimeline
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

  // Of clients that left before it was quiet. Declared before the agent, so that it is freed after
  // it: then nothing can land there any more.
  std::vector<KvCache> stranded_;
  const std::unique_ptr<Agent> agent_;
  const uint64_t max_session_bytes_;
  std::mutex mutex_;  // of sessions_, and of what the dispatcher reads of each
  std::map<uint64_t, Session*> sessions_;
  uint64_t next_session_ = 1;  // an id is not used again: a late note must not reach a new session
  std::atomic<bool> stopping_{false};
  std::thread dispatcher_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_PEER_SERVICE_H_
