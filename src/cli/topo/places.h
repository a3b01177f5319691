// The places where transfers can begin on a host, and the rails that they would take.
#ifndef KVXFER_CLI_TOPO_PLACES_H_
#define KVXFER_CLI_TOPO_PLACES_H_

#include <string>
#include <vector>

#include "src/core/topology/port_selector.h"
#include "src/core/topology/rails.h"
#include "src/core/topology/topology.h"

namespace kvxfer::cli {

struct Place {
  MemoryPlace place{};
  std::string column{};  // title of its column in the matrix: "N0", "G0"
  std::string name{};    // "node 0", "GPU 0"
  RailPlan plan{};
};

// Every NUMA node, then every GPU.
std::vector<Place> Places(const Topology& topology, const PortSelector& selector);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_PLACES_H_
