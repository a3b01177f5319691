// Where `topo` and `doctor` look: this host, a copy of a sysfs tree, or a host that is described.
#ifndef KVXFER_CLI_TOPO_TOPOLOGY_SOURCE_H_
#define KVXFER_CLI_TOPO_TOPOLOGY_SOURCE_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/topo/sysfs_tree.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/port_selector.h"
#include "src/core/topology/topology.h"

namespace kvxfer::cli {

struct TopologySource {
  Sysfs sysfs;
  // Of a described host, which is gone with this object.
  std::optional<TemporaryFolder> folder{};
  std::string title{};                 // empty: not described
  std::string origin{};                // of a described host: "synthetic" or "recorded"
  std::string source{};                // where the description is from
  std::vector<std::string> fabrics{};  // that the description names
};

// `fixture` is the name of a built-in description, or a folder like a root; empty: `root`.
// InvalidArgument: both are given, or what is there is no sysfs tree; NotFound: no such fixture.
absl::StatusOr<TopologySource> OpenTopology(const std::string& root, const std::string& fixture);

// The topology there, with fabrics named as `fabrics` ("Fabric1=ibp60s0,ibp77s0") say or, where it
// is empty, as the description says.
absl::StatusOr<Topology> ReadNamedTopology(const TopologySource& source,
                                           const std::vector<std::string>& fabrics);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_TOPOLOGY_SOURCE_H_
