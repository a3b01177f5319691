// How an agent is set up.
//
// Thread-safety: plain values. OptionsFromEnvironment reads the environment once, where it is
// called; nothing else in kvxfer reads environment variables.
//
// Example:
//   kvxfer::AgentOptions options;
//   options.name = "prefill-0";
//   options.listen = "0.0.0.0:0";
//   auto agent = kvxfer::Agent::Create(options);

#ifndef KVXFER_OPTIONS_H_
#define KVXFER_OPTIONS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer {

// Default port of `kvxfer serve` and of host:port arguments without a port.
inline constexpr uint16_t kDefaultPort = 7471;

// The options of one backend, each with its value as text: {"devices", "mlx5_0,mlx5_1"}. A list has
// commas between its values; a key with a duration ends in its unit.
using BackendOptions = std::map<std::string, std::string>;

struct AgentOptions {
  // How peers call this agent; unique among the agents that exchange metadata. 1 to 255 bytes,
  // as kMaxNameBytes says.
  std::string name{};

  // Backends to use, best first, each once; "faulty:<backend>" decorates. Each must be usable here.
  // Empty: those of {"loopback", "cuda_ipc", "shm", "verbs", "libfabric" (over EFA), "tcp"} that
  // are; Explain of Agent says why one is not. "^<backend>": as empty, but without it; not beside
  // names without "^". "ucx" is taken where it is named. A transfer takes the first that reaches
  // the peer, unless a later one was seen clearly faster in the last minute, or
  // TransferOptions::backend names one.
  std::vector<std::string> backends{};
  // Folders where backends that are plugins (libkvxfer_backend_<name>.so) are looked for, before
  // those beside this library or program and where kvxfer was installed.
  std::vector<std::string> plugin_path{};
  // AddPeer fails unless the peer is reached over one of these; empty: any.
  std::vector<std::string> require_backends{};

  // Where the tcp backend listens: "host:port", "[v6]:port"; port 0: any free one. Loopback
  // unless told otherwise, for there is no authentication yet.
  std::string listen = "127.0.0.1:0";
  // What peers are told to connect to, "host" or "host:port"; empty: the listening address, or,
  // where that is a wildcard, the source address of the default route. Advertising loopback to a
  // peer on another host is refused there.
  std::string advertise{};
  // Whoever reaches a port where tcp listens is told this agent's metadata, rkeys included, by
  // FetchMetadata (kvxfer/metadata.h). False: such a request is refused. Needs the backend tcp.
  bool serve_metadata = false;
  // Transfers of fewer bytes stay on one rail, as long as it takes them: a second lane costs the
  // target one more count, and the initiator one more write.
  uint64_t stripe_from = 256 * 1024;
  // Each at most a year.
  Duration heartbeat = std::chrono::milliseconds(500);  // between pings on a connection in use
  // Of silence while a transfer to the peer is under way: peer event kSuspect. A connection without
  // one is pinged every ten heartbeats, at most 10 s, and the second ping that finds the first
  // unanswered makes its peer suspect.
  Duration suspect_after = std::chrono::seconds(2);
  // One attempt to connect; and a peer that connects has as long, but at least 2 s.
  Duration connect_timeout = std::chrono::seconds(2);
  Duration cancel_grace = std::chrono::seconds(1);  // Cancel waits so long for quiet
  // A request that peers write into a KV cache is given up when for so long nothing came of it.
  Duration kv_request_timeout = std::chrono::minutes(2);

  // Bounds of what this agent keeps for one peer.
  uint32_t max_notifications = 4096;                   // undrained notifications of one peer
  uint64_t max_notification_bytes = 16 * 1024 * 1024;  // and their payload bytes
  uint32_t max_active_transfers = 1024;                // being sent to one peer at once

  // Time to spin before sleeping; negative: adaptive (none below 4 usable CPUs).
  Duration spin{-1};

  // Pinned host memory by way of which GPU memory goes over backends that cannot reach it, bytes;
  // made with the first registration of GPU memory. Half is for what peers move, half for what this
  // agent does. Below 8 MiB: none, and such memory is refused where no backend takes it; at most
  // kMaxStagingBytes.
  static constexpr uint64_t kMaxStagingBytes = uint64_t{64} << 30;
  uint64_t staging_bytes = 64 * 1024 * 1024;

  // By backend, e.g. backend["verbs"] = {{"devices", "mlx5_*"}}; "faulty" is the decorator's. A
  // backend documents, reads and checks its own section (src/backends/<name>/options.h; docs/cli.md
  // has a table of all; kvxfer/backend_options.h reads and writes them). Create refuses a section
  // of a backend that does not exist, and warns of one whose backend the agent does not have.
  std::map<std::string, BackendOptions> backend{};
};

// Defaults changed by KVXFER_NAME, KVXFER_BACKENDS, KVXFER_LISTEN and so on; docs/cli.md has a
// table of all. KVXFER_<BACKEND>_<KEY>, as in KVXFER_VERBS_DEVICES, goes into `backend`, for every
// backend that kvxfer is made for or that KVXFER_BACKENDS names. InvalidArgument names the variable
// that does not parse. A variable that begins with KVXFER_ and does not exist is named in a
// warning, with the one that may be meant.
absl::StatusOr<AgentOptions> OptionsFromEnvironment();

}  // namespace kvxfer

#endif  // KVXFER_OPTIONS_H_
