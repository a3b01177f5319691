// Reads the Topology from a sysfs tree. docs/topology.md lists the files that are read.
//
// Thread-safety: free functions; any thread. They read some hundred small files, which takes
// milliseconds: meant for start-up and tools.

#ifndef KVXFER_TRANSPORT_HOST_TOPOLOGY_SYSFS_H_
#define KVXFER_TRANSPORT_HOST_TOPOLOGY_SYSFS_H_

#include "absl/status/statusor.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"

namespace kvxfer {

// What a file does not say keeps its default; a host without RDMA devices or GPUs has none. If
// there is one NUMA node, devices without a reported node are on it. InvalidArgument: the root is
// no sysfs tree.
absl::StatusOr<Topology> ReadTopology(const Sysfs& sysfs);

// A name for the port's fabric, from what the port itself reports: "ib/<subnet prefix>", "eth",
// "efa".
std::string FabricHintOf(const RdmaPort& port);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_TOPOLOGY_SYSFS_H_
