// Topology out of a sysfs tree. docs/topology.md lists the files that are read.
//
// Thread-safety: free functions; any thread. They read some hundred small files: a matter of
// milliseconds, for start-up and for tools.

#ifndef KVXFER_TRANSPORT_HOST_TOPOLOGY_SYSFS_H_
#define KVXFER_TRANSPORT_HOST_TOPOLOGY_SYSFS_H_

#include "absl/status/statusor.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"

namespace kvxfer {

// What a file does not tell stays at its default; a host without RDMA devices or GPUs has none.
// Where there is one NUMA node, devices whose node is not told are on it.
// InvalidArgument: the root is no sysfs tree.
absl::StatusOr<Topology> ReadTopology(const Sysfs& sysfs);

// The fabric of a port as far as the port tells: "ib/<subnet prefix>", "eth", "efa".
std::string FabricHintOf(const RdmaPort& port);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_TOPOLOGY_SYSFS_H_
