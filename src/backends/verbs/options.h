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
