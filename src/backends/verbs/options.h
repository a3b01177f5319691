// How the backend `verbs` uses RDMA devices: AgentOptions::backend["verbs"], KVXFER_VERBS_....
// docs/verbs.md explains each option.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_VERBS_OPTIONS_H_
#define KVXFER_BACKENDS_VERBS_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvxfer/backend_options.h"

namespace kvxfer::verbs {

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

template <typename Io>
void Fields(Io& io, OptionRef<Io, VerbsOptions> options) {
  io.List("devices", options.devices);
  io.List("fabrics", options.fabrics);
  io.Text("listen", options.listen);
  io.Number("gid_index", options.gid_index, -1, 255);
  io.Number("p_key", options.p_key, 1, 0xffff);
  io.Number("service_level", options.service_level, 0, 15);
  io.Number("traffic_class", options.traffic_class, 0, 255);
  io.Number("mtu", options.mtu, 0, 4096);
  io.Number("timeout", options.timeout, 1, 31);
  io.Number("retry_count", options.retry_count, 1, 7);
  io.Number("rnr_timer", options.rnr_timer, 0, 31);
  io.Number("queue_depth", options.queue_depth, 16, 32768);
  io.Number("receive_depth", options.receive_depth, 64, 1 << 20);
  io.Number("max_inline", options.max_inline, 0, 1024);
  io.Time("stall_timeout_ms", options.stall_timeout, std::chrono::milliseconds(1),
          std::chrono::milliseconds(100), std::chrono::hours(24));
}

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_OPTIONS_H_
