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
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer {

// Default port of `kvxfer serve` and of host:port arguments without a port.
inline constexpr uint16_t kDefaultPort = 7471;

// What the decorator `faulty:<backend>` does to the backend beneath it. Every choice is drawn from
// `seed`; probabilities are per operation or message.
struct FaultOptions {
  uint64_t seed = 1;
  uint32_t reorder_window = 0;      // hold up to this many ops, immediates, messages; let any go
  Duration max_delay{};             // hold each for up to this long
  bool overtake = false;            // messages overtake the data posted before them
  double error_probability = 0;     // an op completes with an error
  double cut_probability = 0;       // the connection is cut
  uint64_t blackhole_after = 0;     // after this many ops and messages nothing passes; 0: never
  uint32_t slow_rail = UINT32_MAX;  // every op of this rail is held for slow_rail_delay
  Duration slow_rail_delay{};
  // An op takes its rail down; some rails begin as down. Both sides must have it, or neither.
  double rail_down_probability = 0;
  Duration rail_down_for{};  // until it is up again, at most, from when it may be
};

// How the backend `verbs` uses RDMA devices; docs/verbs.md explains each.
struct VerbsOptions {
  // Ports to use, by patterns that name a device ("mlx5_0", "mlx5_*"), port ("mlx5_0:1"), netdev
  // ("ibp60s0"), subnet ("10.1.0.0/24"), PCI address ("3c:00") or fabric ("fabric:blue"); "^..."
  // leaves out. Empty: every active one, but one only of a card's function and its virtual ones.
  std::vector<std::string> devices{};
  // What fabrics ports belong to, "blue=mlx5_0,3c:00": a name and patterns. A port with a name
  // talks to ports of that name only; names are needed where two fabrics share a subnet prefix.
  std::vector<std::string> fabrics{};
  // Where control connections come in; empty: the host of AgentOptions::listen, any free port.
  std::string listen{};
  int32_t gid_index = -1;       // in the port's GID table; -1: the best of RoCE v2 (InfiniBand: 0)
  uint32_t p_key = 0xffff;      // looked up in the port's table by its lower 15 bits
  uint32_t service_level = 0;   // 0 to 15
  uint32_t traffic_class = 0;   // 0 to 255, of the GRH (RoCE: DSCP and ECN)
  uint32_t mtu = 0;             // bytes, 256 to 4096; 0: what both ports have
  uint32_t timeout = 14;        // of an acknowledgement: 4.096 µs * 2^timeout, 1 to 31
  uint32_t retry_count = 7;     // of an unanswered packet, 1 to 7
  uint32_t rnr_timer = 12;      // a peer without a receive is tried again after this; 0 to 31
  uint32_t queue_depth = 1024;  // work requests in flight on one rail
  uint32_t receive_depth = 32768;  // receives posted on one device, for immediates
  uint32_t max_inline = 128;       // bytes that travel inside of a work request
  Duration stall_timeout = std::chrono::seconds(30);  // work that neither completes nor fails
};

// How the backend `ucx` uses UCX; docs/ucx.md explains each. What is empty here UCX takes from its
// own environment (UCX_TLS and so on) and configuration file.
struct UcxOptions {
  // Transports, as UCX_TLS: "tcp,posix", "rc,self", "^cma".
  std::string tls{};
  // Network devices, as UCX_NET_DEVICES: "mlx5_0:1", "eth0". Empty: all, but where
  // AgentOptions::listen is loopback and UCX is not told either, only that.
  std::string net_devices{};
  // Where peers connect by socket address (rdmacm, TCP) instead of by the address of UCX's worker:
  // "host", "host:port" of one address of this host. It is for devices over which UCX's own
  // wire-up does not come about, as soft-RoCE. Empty: by worker address.
  std::string listen{};
};

// How the backend `libfabric` uses a fabric; docs/fabrics.md has what libfabric's own settings do.
// Taken by itself where the host has EFA devices.
struct LibfabricOptions {
  // "efa", "net", "shm", ... (fi_info shows them); peers need the same one. Some are refused, with
  // the reason. Empty: efa.
  std::string provider{};
  // Domains to use, each a rail; the first of one side talks to the first of the other, and so on.
  // Empty: the first that the provider has.
  std::vector<std::string> domains{};
  // Where control connections come in; empty: the host of AgentOptions::listen, any free port.
  std::string listen{};
};

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
  uint32_t tcp_streams = 2;  // data streams (rails) to each peer, 1 to 16
  // Where data streams of tcp begin and come in: up to 8 local addresses or names of network
  // interfaces (of each its first IPv4 address, else its first IPv6 one). Each is listened on too,
  // at any free port, also where `listen` is loopback. There are at least as many streams to a peer
  // as it takes to use every address of both sides. Empty: the route chooses.
  std::vector<std::string> tcp_addresses{};
  // Whoever reaches a port where tcp listens is told this agent's metadata, rkeys included, by
  // FetchMetadata (kvxfer/metadata.h). False: such a request is refused. Needs the backend tcp.
  bool serve_metadata = false;
  uint32_t loopback_rails = 2;  // queues to each peer in this process, 1 to 16
  // Transfers of fewer bytes stay on one rail, as long as it takes them: a second lane costs the
  // target one more count, and the initiator one more write.
  uint64_t stripe_from = 256 * 1024;
  // Threads that share large copies to and from attached memory (shm), 1 to 8; 0: 2 where 4 CPUs
  // are usable, else 1. More than one takes their CPUs from the application for as long as copies
  // last.
  uint32_t shm_copy_threads = 0;

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

  VerbsOptions verbs{};
  UcxOptions ucx{};
  LibfabricOptions libfabric{};

  FaultOptions faults{};
};

// Defaults changed by KVXFER_NAME, KVXFER_BACKENDS, KVXFER_LISTEN and so on, and of VerbsOptions,
// UcxOptions and LibfabricOptions by KVXFER_VERBS_..., KVXFER_UCX_... and KVXFER_LIBFABRIC_...;
// docs/cli.md has a table of all. InvalidArgument names the variable that does not parse. A
// variable that begins with KVXFER_ and does not exist is named in a warning, with the one that may
// be meant.
absl::StatusOr<AgentOptions> OptionsFromEnvironment();

}  // namespace kvxfer

#endif  // KVXFER_OPTIONS_H_
