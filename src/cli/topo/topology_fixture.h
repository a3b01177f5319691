// Descriptions of hosts: each is a short JSON document from which a sysfs tree is made. Those in
// src/cli/topo/topologies are built in. docs/topology.md describes the format.
#ifndef KVXFER_CLI_TOPO_TOPOLOGY_FIXTURE_H_
#define KVXFER_CLI_TOPO_TOPOLOGY_FIXTURE_H_

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "src/cli/common/json_util.h"
#include "src/cli/topo/sysfs_tree.h"

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

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_TOPO_TOPOLOGY_FIXTURE_H_
