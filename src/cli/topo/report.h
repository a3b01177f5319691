// What `kvxfer topo` prints.
#ifndef KVXFER_CLI_TOPO_REPORT_H_
#define KVXFER_CLI_TOPO_REPORT_H_

#include <string>

#include "src/cli/common/json_util.h"
#include "src/core/topology/port_selector.h"
#include "src/core/topology/topology.h"

namespace kvxfer::cli {

// Of each NUMA node and GPU the distance to each port, the rails of a transfer from there, and why
// other ports are left out. For a person; a matrix with a port on each line.
std::string TopologyText(const Topology& topology, const PortSelector& selector);

// The same for programs; docs/topology.md has the fields.
Json TopologyJson(const Topology& topology, const PortSelector& selector);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_REPORT_H_
