// `kvxfer topo`: NUMA nodes, GPUs and NIC ports, the distances between them, and the rails that a
// transfer from each memory takes.

#include <CLI/CLI.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "src/cli/commands.h"
#include "src/cli/common/options.h"
#include "src/cli/common/shared_options.h"
#include "src/cli/topo/report.h"
#include "src/cli/topo/sysfs_copy.h"
#include "src/cli/topo/topology_source.h"
#include "src/core/base/strings.h"
#include "src/transport/host/topology_sysfs.h"

namespace kvxfer::cli {
namespace {

struct TopoFlags {
  std::string root{};
  std::string fixture{};
  std::string ports{};
  std::vector<std::string> fabrics{};
  std::string save{};
  bool json = false;
};

void Print(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stdout); }

absl::Status SaveTopology(const Sysfs& sysfs, const std::string& folder) {
  std::vector<std::string> asked;
  const absl::StatusOr<Topology> topology = ReadTopology(Sysfs(sysfs.root(), &asked));
  if (!topology.ok()) return topology.status();
  if (absl::Status s = CopySysfs(sysfs, asked, folder); !s.ok()) return Annotate(s, "--save");
  Print(absl::StrCat("saved the description of ", topology->ports.size(), " ports and ",
                     topology->gpus.size(), " GPUs; to look at it: kvxfer topo --root ", folder,
                     "\n"));
  return absl::OkStatus();
}

absl::Status RunTopo(const TopoFlags& flags) {
  const absl::StatusOr<PortSelector> selector = PortSelector::Parse(flags.ports);
  if (!selector.ok()) return selector.status();
  const absl::StatusOr<TopologySource> source = OpenTopology(flags.root, flags.fixture);
  if (!source.ok()) return source.status();
  if (!flags.save.empty()) return SaveTopology(source->sysfs, flags.save);
  const absl::StatusOr<Topology> topology = ReadNamedTopology(*source, flags.fabrics);
  if (!topology.ok()) return topology.status();
  // A pattern that matches nothing is a usage error, not an empty report.
  if (const auto selected = selector->Select(*topology); !selected.ok()) return selected.status();
  if (flags.json) {
    Json report = TopologyJson(*topology, *selector);
    report["described"] = source->title.empty() ? Json(nullptr)
                                                : Json({{"title", source->title},
                                                        {"origin", source->origin},
                                                        {"source", source->source}});
    Print(DumpJson(report, 2) + "\n");
    return absl::OkStatus();
  }
  if (!source->title.empty()) {
    std::printf("%s\n(%s: %s)\n\n", source->title.c_str(), source->origin.c_str(),
                source->source.c_str());
  }
  Print(TopologyText(*topology, *selector));
  return absl::OkStatus();
}

}  // namespace

void AddTopo(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "topo", "Shows NUMA nodes, GPUs and NIC ports, and which rails transfers take");
  const auto flags = std::make_shared<TopoFlags>();
  AddHost(command, flags->fixture, flags->root, flags->fabrics);
  AddText(command, "--ports", flags->ports, "PORTS",
          "Ports to use: devices, netdevs, PCI addresses, subnets or fabrics, separated by commas; "
          "^ leaves some out (default: all)");
  AddText(
      command, "--save", flags->save, "FOLDER",
      "Copies what is read into this new folder, for --root on another host (default: no copy)");
  AddJson(command, flags->json);
  command->callback([flags, &action] { action = [flags] { return RunTopo(*flags); }; });
}

}  // namespace kvxfer::cli
