// Descriptions of hosts: each is a short JSON document from which a sysfs tree is made. Those in
// src/cli/topo/topologies are built in. docs/topology.md describes the format.

#ifndef KVXFER_CLI_TOPO_TOPOLOGY_FIXTURE_H_
#define KVXFER_CLI_TOPO_TOPOLOGY_FIXTURE_H_

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/json_util.h"
#include "src/cli/topo/sysfs_tree.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/port_selector.h"
#include "src/core/topology/topology.h"

namespace kvxfer::cli {

struct BuiltinTopology {
  std::string_view name;  // the name of its file
  std::string_view json;
};

// In the order of their names. The definition is generated from src/cli/topo/topologies.
std::span<const BuiltinTopology> BuiltinTopologies();

struct TopologyFixture {
  std::string title{};                 // what the host is
  std::string origin{};                // "synthetic" or "recorded"
  std::string source{};                // where the facts come from
  std::vector<std::string> fabrics{};  // "Fabric1=ibp60s0,ibp77s0", as --fabric takes them
  SysfsTree tree{};
};

// InvalidArgument names the field that makes this no such description.
absl::StatusOr<TopologyFixture> ParseTopologyFixture(std::string_view json);
absl::StatusOr<TopologyFixture> MakeTopologyFixture(const Json& description);

// Returns the built-in description `name`. NotFound: there is none; says which was probably meant.
absl::StatusOr<TopologyFixture> FindTopologyFixture(std::string_view name);

// The host that `topo` and `doctor` look at: this one, a copy of a sysfs tree, or a described host.
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

#endif  // KVXFER_CLI_TOPO_TOPOLOGY_FIXTURE_H_
