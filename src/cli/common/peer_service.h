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
// as large as the cache here, each notification is answered at once: by a notified write into it,
// or by a notification alone if the note asks for that.

#ifndef KVXFER_CLI_COMMON_PEER_SERVICE_H_
#define KVXFER_CLI_COMMON_PEER_SERVICE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/agent.h"
#include "src/cli/bench/loop.h"
#include "src/cli/common/channel.h"
#include "src/cli/common/kv_cache.h"
#include "src/cli/common/stats.h"
#include "src/cli/common/units.h"
#include "src/core/base/clock.h"

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

// What a client asks for. `answer` and `drive` are regions of the client that the service may write
// and read: `answer` for the answer to each notification, `drive` for a load of the service.
struct SessionRequest {
  KvCacheShape shape{};  // without a gap
  std::vector<PagedRegion> answer{};
  std::vector<PagedRegion> drive{};
};

// The notification payload of pings and benchmarks: 25 bytes, little-endian.
struct SessionNote {
  uint64_t session = 0;
  uint64_t sequence = 0;    // number of the round trip, or of the transfer in the timeline; 0: none
  int64_t posted_ns = 0;    // MonotonicNanoseconds at the sender
  bool by_message = false;  // the answer is a notification without a write

  std::string Encode() const;
  static std::optional<SessionNote> Decode(std::string_view payload);
};

// Resources that the target process has used, and notifications that it has received.
struct TargetReport {
  std::string process{};  // identifies the process among those of all hosts
  double cpu_seconds = 0;
  uint64_t rss_bytes = 0;
  uint64_t notifications = 0;  // of this session since its last report
  // The time of each from posting to notification; empty without a common clock.
  LatencyHistogram notified{};
  ArrivalTimes arrivals{};  // of those with a number, likewise
};

Json ToJson(const TargetReport& report);

// A client's session at a PeerService: the two agents know each other, and the service has memory
// for the client. Thread-safety: one thread. `channel` and `agent` outlive it.
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

// One notified write and its answer, which `ping` and `bench --latency` measure.
//
// Writes a block with a notification. The peer's PeerService is notified and writes as many bytes
// back, with a notification; or it sends a notification alone. The round trip ends when that
// notification arrives.
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
  absl::Status Once(bool by_message = false);

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

#endif  // KVXFER_CLI_COMMON_PEER_SERVICE_H_
