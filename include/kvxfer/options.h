// The configuration of an agent.
//
// Thread-safety: plain values. OptionsFromEnvironment reads the environment when it is called;
// nothing else in kvxfer reads environment variables.
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
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer {

// Default port of `kvxfer serve` and of host:port arguments without a port.
inline constexpr uint16_t kDefaultPort = 7471;

// The options of one backend, each with its value as text: {"devices", "mlx5_0,mlx5_1"}. A list has
// commas between its values. The key of a duration ends in its unit.
using BackendOptions = std::map<std::string, std::string>;

// What control frames travel over (docs/protocol.md, "Carriers").
enum class ControlCarrier : uint8_t {
  kAuto,  // of a link: a way of its backend's own, such as ucx's; as an option: the best one
  kTcp,   // the TCP control stream of tcp, verbs, libfabric and cuda_ipc
  kRdma,  // SEND on a queue pair of its own: verbs
  kShm,   // rings in memory that both processes have mapped: shm, cuda_ipc
};

struct AgentOptions {
  // The name under which peers know this agent; unique among the agents that exchange metadata. 1
  // to kMaxNameBytes bytes.
  std::string name{};

  // Backends to use, best first, each once; "faulty:<backend>" decorates one. A named backend must
  // be usable here. Empty: those of {"loopback", "cuda_ipc", "shm", "verbs", "libfabric" (over
  // EFA), "tcp"} that are usable; Agent::Explain says why one is not. "^<backend>": the default
  // list without that one; names with and without "^" cannot be mixed. "ucx" is used only if named.
  // A transfer uses the first backend that reaches the peer, unless a later one was clearly faster
  // in the last minute, or TransferOptions::backend names one.
  std::vector<std::string> backends{};
  // Folders that are searched for backend plugins (libkvxfer_backend_<name>.so), before the folder
  // of this library or program and the installation folder.
  std::vector<std::string> plugin_path{};
  // What the control frames of a session travel over. kAuto: each link uses the best that its
  // backend has here and at the peer. Anything else is kept to: a link that cannot carry them so
  // moves data only, and is used only while another link of the session carries them. Create fails
  // if none of the backends can, AddPeer if none of those that reach the peer can. The handshake of
  // a connection is not affected.
  ControlCarrier control = ControlCarrier::kAuto;
  // AddPeer fails unless one of these backends reaches the peer; empty: any backend will do.
  std::vector<std::string> require_backends{};

  // Where the tcp backend listens: "host:port", "[v6]:port"; port 0: any free port. The default is
  // loopback because there is no authentication yet.
  std::string listen = "127.0.0.1:0";
  // The address that peers connect to, "host" or "host:port". Empty: the listening address, or the
  // source address of the default route if that is a wildcard. A peer on another host refuses
  // metadata that advertises loopback.
  std::string advertise{};
  // True: anyone who can connect to tcp's listening port gets this agent's metadata, including
  // rkeys, through FetchMetadata (kvxfer/metadata.h). False: such a request is refused. Requires
  // the tcp backend.
  bool serve_metadata = false;
  // A transfer of fewer bytes stays on one rail as long as that rail accepts it: a second lane
  // costs the target another counter and the initiator another write.
  uint64_t stripe_from = 256 * 1024;
  // The following durations are at most a year each.
  // Between pings to a peer while something is awaited of it: a transfer to it, its answer to
  // Quiesce or DeregisterMemory, its fetch under a lease; and while a call of WaitLayers waits, of
  // every peer that has connected to this agent.
  Duration heartbeat = std::chrono::milliseconds(500);
  // A peer that is silent while something is awaited of it becomes suspect
  // (PeerEventKind::kSuspect) at the latest after this long, of silence or of waiting, whichever is
  // shorter; and up to 1.1 heartbeats earlier, for it may have stopped a heartbeat before a ping.
  // It is not given up for that. Where this is less than two heartbeats, it takes up to two. While
  // nothing is awaited, a connection that this agent made is pinged every ten heartbeats, but at
  // least every 10 s; if the first ping is still unanswered when the second is due, the peer
  // becomes suspect. Longer than `heartbeat`.
  Duration suspect_after = std::chrono::seconds(2);
  // For one attempt to connect. A peer that connects to this agent has the same time, but at least
  // 2 s, to say hello and to prove who it is. A peer that does not fence a failed rail within this
  // time loses the connection.
  Duration connect_timeout = std::chrono::seconds(2);
  Duration cancel_grace = std::chrono::seconds(1);  // how long Cancel waits for quiet
  // A request that peers write into a KV cache is given up after this long without new data for it.
  Duration kv_request_timeout = std::chrono::minutes(2);

  // Bounds of the state that this agent keeps for one peer.
  uint32_t max_notifications = 4096;                   // that the application has not read yet
  uint64_t max_notification_bytes = 16 * 1024 * 1024;  // their payload bytes
  uint32_t max_active_transfers = 1024;                // transfers being sent to one peer at once

  // How long to spin before sleeping; negative: adaptive (no spinning with fewer than 4 usable
  // CPUs).
  Duration spin{-1};

  // Bytes of pinned host memory that stage GPU memory for backends that cannot reach it; allocated
  // with the first registration of GPU memory. One half is for transfers of peers, the other for
  // those of this agent. Below 8 MiB there is no staging, and GPU memory that no backend takes is
  // refused. At most kMaxStagingBytes.
  static constexpr uint64_t kMaxStagingBytes = uint64_t{64} << 30;
  uint64_t staging_bytes = 64 * 1024 * 1024;
  // The most multiprocessors (SMs) of a GPU that copies of this agent occupy at a time, those of
  // cuda_ipc and those of staging each, so that the application's kernels keep the others; 0: as
  // many as make copies fast. At most kMaxCopySms.
  static constexpr uint32_t kMaxCopySms = 4096;
  uint32_t copy_sms = 0;

  // The options of backends, by name: backend["verbs"] = {{"devices", "mlx5_*"}}; "faulty" is the
  // decorator's. Each backend documents, reads and checks its own section
  // (src/backends/<name>/options.h; docs/cli.md has a table of all; kvxfer/backend_options.h reads
  // and writes sections). Create refuses a section of a backend that does not exist, and logs a
  // warning for a section whose backend the agent does not have.
  std::map<std::string, BackendOptions> backend{};
};

// The default options, changed by KVXFER_NAME, KVXFER_BACKENDS, KVXFER_LISTEN and so on;
// docs/cli.md lists all variables. KVXFER_<BACKEND>_<KEY>, as in KVXFER_VERBS_DEVICES, goes into
// AgentOptions::backend, for every backend that kvxfer is made for or that KVXFER_BACKENDS names.
// InvalidArgument names a variable whose value does not parse. For a variable that begins with
// KVXFER_ and is unknown, one warning names it and the variable that is probably meant.
absl::StatusOr<AgentOptions> OptionsFromEnvironment();

// "auto", "tcp", "rdma", "shm". ParseControlCarrier: InvalidArgument for anything else.
std::string_view NameOf(ControlCarrier carrier);
absl::StatusOr<ControlCarrier> ParseControlCarrier(std::string_view name);

}  // namespace kvxfer

#endif  // KVXFER_OPTIONS_H_
