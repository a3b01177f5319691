// How the backend `tcp` uses the network: AgentOptions::backend["tcp"], KVXFER_TCP_.... docs/tcp.md
// explains each option. AgentOptions::listen and ::advertise say where control streams come in.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_TCP_OPTIONS_H_
#define KVXFER_BACKENDS_TCP_OPTIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "kvxfer/backend_options.h"

namespace kvxfer::tcp {

struct TcpOptions {
  uint32_t streams = 2;  // data streams (rails) to each peer, 1 to 16
  // Local addresses of data streams: up to 8 addresses or names of network interfaces (for an
  // interface, its first IPv4 address, else its first IPv6 address). Outgoing streams start from
  // them, and the backend also listens on each, on any free port, even if AgentOptions::listen is
  // loopback. The agent opens as many streams to a peer as it takes to use every address of both
  // sides, and at least `streams`. Empty: the routing table chooses.
  std::vector<std::string> addresses{};
  // Threads that move the bytes of data streams, 0 to 16. 0: the agent's driving thread does.
  uint32_t data_threads = 0;
};

template <typename Io>
void Fields(Io& io, OptionRef<Io, TcpOptions> options) {
  io.Number("streams", options.streams, 1, 16);
  io.List("addresses", options.addresses);
  io.Number("data_threads", options.data_threads, 0, 16);
}

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_OPTIONS_H_
