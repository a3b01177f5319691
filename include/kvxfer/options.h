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
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer {

// Default port of `kvxfer serve` and of host:port arguments without a port.
inline constexpr uint16_t kDefaultPort = 7471;

// What the decorator `faulty:<backend>` does to the backend beneath it. All choices are drawn from
// `seed`. Probabilities are per op or message.
struct FaultOptions {
  uint64_t seed = 1;
  uint32_t reorder_window = 0;      // hold up to this many ops, immediates, messages; release any
  Duration max_delay{};             // hold each for up to this long
  bool overtake = false;            // messages overtake the data posted before them
  double error_probability = 0;     // an op completes with an error
  double cut_probability = 0;       // the connection is cut
  uint64_t blackhole_after = 0;     // after this many ops and messages nothing passes; 0: never
  uint32_t slow_rail = UINT32_MAX;  // every op of this rail is held for slow_rail_delay
  Duration slow_rail_delay{};
  // An op takes its rail down; some rails start as down. Set it at both sides or at neither.
  double rail_down_probability = 0;
  Duration rail_down_for{};  // at most this long after ReopenRail the rail is up again
};

// How the backend `verbs` uses RDMA devices; docs/verbs.md explains each option.
struct VerbsOptions {
  // Ports to use, as patterns: a device ("mlx5_0", "mlx5_*"), port ("mlx5_0:1"), netdev
  // ("ibp60s0"), subnet ("10.1.0.0/24"), PCI address ("3c:00") or fabric ("fabric:blue"); "^..."
  // leaves ports out. Empty: every active port, but only one of a physical function and its virtual
  // functions on one wire.
  std::vector<std::string> devices{};
  // The fabrics that ports belong to, as names with patterns: "blue=mlx5_0,3c:00". A port with a
  // fabric name talks only to ports with that name. Names are needed if two fabrics share a subnet
  // prefix.
  std::vector<std::string> fabrics{};
  // The address for incoming control connections; empty: the host of AgentOptions::listen, any free
  // port.
  std::string listen{};
  int32_t gid_index = -1;   // in the port's GID table; -1: the best RoCE v2 entry (InfiniBand: 0)
  uint32_t p_key = 0xffff;  // looked up in the port's table by its lower 15 bits
  uint32_t service_level = 0;  // 0 to 15
  uint32_t traffic_class = 0;  // 0 to 255, in the GRH (RoCE: DSCP and ECN)
  uint32_t mtu = 0;            // bytes, 256 to 4096; 0: the largest that both ports have
  // As in ibv_qp_attr: `timeout`, 1 to 31, waits 4.096 µs * 2^timeout for an ACK (14: 67 ms);
  // `retry_count`, 1 to 7, is how often an unacknowledged packet is sent again; `rnr_timer`, 0 to
  // 31, is the code of the delay before a peer without a posted receive is tried again (12:
  // 0.64 ms), until the transfer's deadline.
  uint32_t timeout = 14;
  uint32_t retry_count = 7;
  uint32_t rnr_timer = 12;
  uint32_t queue_depth = 1024;     // work requests in flight per rail
  uint32_t receive_depth = 32768;  // receives posted per device, for immediates
  uint32_t max_inline = 128;       // bytes sent inline in a work request
  // A work request that has no completion after this long fails its rail.
  Duration stall_timeout = std::chrono::seconds(30);
};

// How the backend `ucx` uses UCX; docs/ucx.md explains each option. For an option that is empty
// here, UCX uses its own environment variables (UCX_TLS and so on) and configuration file.
struct UcxOptions {
  // Transports, as in UCX_TLS: "tcp,posix", "rc,self", "^cma".
  std::string tls{};
  // Network devices, as in UCX_NET_DEVICES: "mlx5_0:1", "eth0". Empty: all; but only loopback if
  // AgentOptions::listen is loopback and UCX's own configuration names no devices either.
  std::string net_devices{};
  // "host" or "host:port" of one address of this host. Peers then connect by this socket address
  // (rdmacm, TCP) instead of by the UCX worker's address. Needed for devices over which UCX's own
  // wire-up fails, such as soft-RoCE. Empty: by worker address.
  std::string listen{};
};

// How the backend `libfabric` uses a fabric; docs/fabrics.md describes libfabric's own settings. On
// a host with EFA devices this backend is used by default.
struct LibfabricOptions {
  // "efa", "net", "shm", ... (fi_info lists them). Peers must use the same provider. Some are
  // refused, with the reason. Empty: efa.
  std::string provider{};
  // Domains to use, one rail each; the first domain of one side talks to the first of the other,
  // and so on. Empty: the first domain of the provider.
  std::vector<std::string> domains{};
  // The address for incoming control connections; empty: the host of AgentOptions::listen, any free
  // port.
  std::string listen{};
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
  // AddPeer fails unless one of these backends reaches the peer; empty: any backend will do.
  std::vector<std::string> require_backends{};

  // Where the tcp backend listens: "host:port", "[v6]:port"; port 0: any free port. The default is
  // loopback because there is no authentication yet.
  std::string listen = "127.0.0.1:0";
  // The address that peers connect to, "host" or "host:port". Empty: the listening address, or the
  // source address of the default route if that is a wildcard. A peer on another host refuses
  // metadata that advertises loopback.
  std::string advertise{};
  uint32_t tcp_streams = 2;  // data streams (rails) to each peer, 1 to 16
  // Local addresses of tcp's data streams: up to 8 addresses or names of network interfaces (for an
  // interface, its first IPv4 address, else its first IPv6 address). Outgoing streams start from
  // them, and the backend also listens on each, on any free port, even if `listen` is loopback. The
  // agent opens as many streams to a peer as it takes to use every address of both sides, and at
  // least tcp_streams. Empty: the routing table chooses.
  std::vector<std::string> tcp_addresses{};
  // True: anyone who can connect to tcp's listening port gets this agent's metadata, including
  // rkeys, through FetchMetadata (kvxfer/metadata.h). False: such a request is refused. Requires
  // the tcp backend.
  bool serve_metadata = false;
  uint32_t loopback_rails = 2;  // queues to each peer in this process, 1 to 16
  // A transfer of fewer bytes stays on one rail as long as that rail accepts it: a second lane
  // costs the target another counter and the initiator another write.
  uint64_t stripe_from = 256 * 1024;
  // Threads that share large copies to and from attached memory (shm), 1 to 8. 0: 2 if at least 4
  // CPUs are usable, else 1. With more than one, a copy takes CPUs from the application while it
  // lasts.
  uint32_t shm_copy_threads = 0;

  // The following durations are at most a year each.
  Duration heartbeat = std::chrono::milliseconds(500);  // between pings on a connection in use
  // A peer that is silent for this long while a transfer to it is in progress becomes suspect
  // (PeerEventKind::kSuspect). A connection without a transfer is pinged every ten heartbeats, but
  // at least every 10 s; if the first ping is still unanswered when the second is due, the peer
  // becomes suspect.
  Duration suspect_after = std::chrono::seconds(2);
  // For one attempt to connect. A peer that connects to this agent has the same time, but at least
  // 2 s, to complete its hello.
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

  VerbsOptions verbs{};
  UcxOptions ucx{};
  LibfabricOptions libfabric{};

  FaultOptions faults{};
};

// The default options, changed by KVXFER_NAME, KVXFER_BACKENDS, KVXFER_LISTEN and so on;
// KVXFER_VERBS_..., KVXFER_UCX_... and KVXFER_LIBFABRIC_... change VerbsOptions, UcxOptions and
// LibfabricOptions. docs/cli.md lists all variables. InvalidArgument names a variable whose value
// does not parse. For a variable that begins with KVXFER_ and is unknown, one warning names it and
// the variable that is probably meant.
absl::StatusOr<AgentOptions> OptionsFromEnvironment();

}  // namespace kvxfer

#endif  // KVXFER_OPTIONS_H_
