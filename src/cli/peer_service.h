// What a process does for the clients of its agent: answers pings, explains, and is the other side
// of benchmarks. `kvxfer serve` offers it to all who connect, `kvxfer bench` to itself.
//
// Requests (channel messages) and answers; any other is answered with an error:
//   hello {metadata}                      → {metadata}        both agents know each other; one
//                                           agent a channel, and one channel an agent
//   explain {}                            → {explanation}     the path from here to the client
//   prepare {bytes, memory, answer?}      → {session, base}   memory for the client; say hello
//   again clear {} | fill {block_bytes, count, seed} | check {…}    → {}   content of that memory
//   report {}                             → {notified_ns, boot_id, cpu_seconds}   since the last
//
// A session's notifications carry SessionNote. Where prepare had `answer` (a region of the client's
// of `bytes` bytes) each is answered at once by a notified write of as many bytes into it.
#ifndef KVXFER_CLI_PEER_SERVICE_H_
#define KVXFER_CLI_PEER_SERVICE_H_

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
#include "src/cli/channel.h"
#include "src/cli/host_memory.h"

namespace kvxfer::cli {

// The notification payload of pings and benchmarks: 16 bytes, little-endian.
struct SessionNote {
  uint64_t session = 0;
  uint64_t sequence = 0;

  std::string Encode() const;
  static std::optional<SessionNote> Decode(std::string_view payload);
};

// The clock of `notified_ns`, comparable between processes where `boot_id` is equal.
int64_t MonotonicNanoseconds();
std::string BootId();

class PeerService {
 public:
  // `max_session_bytes` bounds what one client may have allocated: its memory and, while that is
  // filled or checked, the block ids.
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
    HostMemory memory;
    RegionId region = RegionId::kNone;  // of `memory`, while it is registered
    std::vector<PagedRegion> answer;    // of the client; empty: do not answer
    std::vector<int64_t> notified_ns;   // since the last report, in the order of coming
  };

  absl::StatusOr<Json> Handle(Session& session, const Json& request);
  absl::StatusOr<Json> Hello(Session& session, const Json& request);
  absl::Status Claim(Session& session, const std::string& name);
  absl::StatusOr<Json> Prepare(Session& session, const Json& request);
  absl::StatusOr<Json> Content(Session& session, const std::string& type, const Json& request);
  Json Report(Session& session);
  absl::Status Forget(Session& session);
  void Dispatch();
  void OnNotification(const Notification& notification);

  // Of clients that left before it was quiet. Declared before the agent, so that it is freed after
  // it: then nothing can land there any more.
  std::vector<HostMemory> stranded_;
  const std::unique_ptr<Agent> agent_;
  const uint64_t max_session_bytes_;
  std::mutex mutex_;  // of sessions_, and of what the dispatcher reads of each
  std::map<uint64_t, Session*> sessions_;
  uint64_t next_session_ = 1;  // an id is not used again: a late note must not reach a new session
  std::atomic<bool> stopping_{false};
  std::thread dispatcher_;
};

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_PEER_SERVICE_H_
