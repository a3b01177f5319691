// The host that `topo` and `doctor` look at: this one, a copy of a sysfs tree, or a described host.
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
  // The tree of a described host; it goes with this object.
  std::optional<TemporaryFolder> folder{};
  std::string title{};                 // empty: not a described host
  std::string origin{};                // of a described host: "synthetic" or "recorded"
  std::string source{};                // where the description comes from
  std::vector<std::string> fabrics{};  // that the description names
};

// `fixture` is the name of a built-in description, or a folder like `root`; if it is empty, `root`
// counts. InvalidArgument: both are given, or there is no sysfs tree. NotFound: there is no such
// fixture.
absl::StatusOr<TopologySource> OpenTopology(const std::string& root, const std::string& fixture);

// The topology of `source`, with fabrics named by `fabrics` ("Fabric1=ibp60s0,ibp77s0") or, if that
// is empty, by the description.
absl::StatusOr<Topology> ReadNamedTopology(const TopologySource& source,
                                           const std::vector<std::string>& fabrics);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_TOPOLOGY_SOURCE_H_
