// The output of `kvxfer topo`.

#ifndef KVXFER_CLI_TOPO_REPORT_H_
#define KVXFER_CLI_TOPO_REPORT_H_

#include <string>
#include <vector>

#include "src/cli/common/json_util.h"
#include "src/core/topology/port_selector.h"
#include "src/core/topology/rails.h"
#include "src/core/topology/topology.h"

namespace kvxfer::cli {

// For people: a matrix with a line for each port and its distance to each NUMA node and GPU, the
// rails of a transfer from each of them, and why other ports are left out.
std::string TopologyText(const Topology& topology, const PortSelector& selector);

// The same for programs; docs/topology.md describes the fields.
Json TopologyJson(const Topology& topology, const PortSelector& selector);

// A place where transfers can begin on a host, and the rails that they would take.
struct Place {
  MemoryPlace place{};
  std::string column{};  // title of its column in the matrix: "N0", "G0"
  std::string name{};    // "node 0", "GPU 0"
  RailPlan plan{};
};

// Every NUMA node, then every GPU.
std::vector<Place> Places(const Topology& topology, const PortSelector& selector);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_REPORT_H_
