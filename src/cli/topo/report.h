// The output of `kvxfer topo`.
#ifndef KVXFER_CLI_TOPO_REPORT_H_
#define KVXFER_CLI_TOPO_REPORT_H_

#include <string>

#include "src/cli/common/json_util.h"
#include "src/core/topology/port_selector.h"
#include "src/core/topology/topology.h"

namespace kvxfer::cli {

// For people: a matrix with a line for each port and its distance to each NUMA node and GPU, the
// rails of a transfer from each of them, and why other ports are left out.
std::string TopologyText(const Topology& topology, const PortSelector& selector);

// The same for programs; docs/topology.md describes the fields.
Json TopologyJson(const Topology& topology, const PortSelector& selector);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_REPORT_H_
