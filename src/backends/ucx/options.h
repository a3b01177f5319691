// How the backend `ucx` uses UCX: AgentOptions::backend["ucx"], KVXFER_UCX_.... docs/ucx.md
// explains each option. What is empty here UCX takes from its own environment (UCX_TLS and so on)
// and configuration file.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_UCX_OPTIONS_H_
#define KVXFER_BACKENDS_UCX_OPTIONS_H_

#include <string>

#include "kvxfer/backend_options.h"

namespace kvxfer::ucx {

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

template <typename Io>
void Fields(Io& io, OptionRef<Io, UcxOptions> options) {
  io.Text("tls", options.tls);
  io.Text("net_devices", options.net_devices);
  io.Text("listen", options.listen);
}

}  // namespace kvxfer::ucx

#endif  // KVXFER_BACKENDS_UCX_OPTIONS_H_
