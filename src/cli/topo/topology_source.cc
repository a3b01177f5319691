#include "src/cli/topo/topology_source.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "src/cli/topo/topology_fixture.h"
#include "src/core/base/strings.h"
#include "src/transport/host/topology_sysfs.h"

namespace kvxfer::cli {
namespace {

absl::StatusOr<TopologySource> Described(const std::string& name) {
  absl::StatusOr<TopologyFixture> fixture = FindTopologyFixture(name);
  if (!fixture.ok()) return fixture.status();
  absl::StatusOr<TemporaryFolder> folder = TemporaryFolder::Make();
  if (!folder.ok()) return folder.status();
  if (absl::Status s = fixture->tree.WriteTo(folder->path()); !s.ok()) return s;
  return TopologySource{.sysfs = Sysfs(folder->path()),
                        .folder = *std::move(folder),
                        .title = std::move(fixture->title),
                        .origin = std::move(fixture->origin),
                        .source = std::move(fixture->source),
                        .fabrics = std::move(fixture->fabrics)};
}

}  // namespace

absl::StatusOr<TopologySource> OpenTopology(const std::string& root, const std::string& fixture) {
  if (!root.empty() && !fixture.empty()) {
    return absl::InvalidArgumentError("--root and --fixture exclude each other");
  }
  std::error_code error;
  if (!fixture.empty() && !std::filesystem::is_directory(fixture, error)) return Described(fixture);
  const std::string& folder = fixture.empty() ? root : fixture;
  TopologySource source{.sysfs = Sysfs(folder.empty() ? "/" : folder)};
  if (absl::Status s = source.sysfs.Check(); !s.ok()) {
    return Annotate(s, fixture.empty() ? "--root" : "--fixture");
  }
  return source;
}

absl::StatusOr<Topology> ReadNamedTopology(const TopologySource& source,
                                           const std::vector<std::string>& fabrics) {
  absl::StatusOr<Topology> topology = ReadTopology(source.sysfs);
  if (!topology.ok()) return topology.status();
  std::vector<FabricName> names;
  for (const std::string& text : fabrics.empty() ? source.fabrics : fabrics) {
    absl::StatusOr<FabricName> name = FabricName::Parse(text);
    if (!name.ok()) return Annotate(name.status(), "--fabric");
    names.push_back(*std::move(name));
  }
  if (absl::Status s = NameFabrics(names, *topology); !s.ok()) return s;
  return topology;
}

}  // namespace kvxfer::cli
