// How the backend `libfabric` uses a fabric: AgentOptions::backend["libfabric"],
// KVXFER_LIBFABRIC_.... docs/fabrics.md explains each option, and has what libfabric's own settings
// do. The backend is taken by itself where the host has EFA devices.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_LIBFABRIC_OPTIONS_H_
#define KVXFER_BACKENDS_LIBFABRIC_OPTIONS_H_

#include <string>
#include <vector>

#include "kvxfer/backend_options.h"

namespace kvxfer::libfabric {

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

template <typename Io>
void Fields(Io& io, OptionRef<Io, LibfabricOptions> options) {
  io.Text("provider", options.provider);
  io.List("domains", options.domains);
  io.Text("listen", options.listen);
}

}  // namespace kvxfer::libfabric

#endif  // KVXFER_BACKENDS_LIBFABRIC_OPTIONS_H_
