// `kvxfer topo`: NUMA nodes, GPUs and NIC ports, the distances between them, and the rails that a
// transfer from each memory takes.

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/cli/common/command_line.h"
#include "src/cli/common/options.h"
#include "src/cli/topo/report.h"
#include "src/cli/topo/sysfs_tree.h"
#include "src/cli/topo/topology_fixture.h"
#include "src/core/base/strings.h"
#include "src/core/topology/rails.h"
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

// Incremented when a field is removed or changes its meaning, but not for new fields.
constexpr int kTopologyJsonVersion = 2;

Json GidsJson(const RdmaPort& port) {
  Json gids = Json::array();
  for (const Gid& gid : port.gids) {
    gids.push_back({{"index", gid.index},
                    {"gid", gid.ToString()},
                    {"type", ToString(gid.type)},
                    {"netdev", gid.netdev}});
  }
  return gids;
}

Json NetdevsJson(const RdmaPort& port) {
  Json netdevs = Json::array();
  for (const Netdev& netdev : port.netdevs) {
    Json subnets = Json::array();
    for (const IpSubnet& subnet : netdev.subnets) subnets.push_back(subnet.ToString());
    Json addresses = Json::array();
    for (const IpAddress& address : netdev.addresses)
      addresses.push_back(kvxfer::ToString(address));
    netdevs.push_back({{"name", netdev.name},
                       {"mtu", netdev.mtu},
                       {"operstate", netdev.operstate},
                       {"hardware_address", netdev.address},
                       {"subnets", subnets},
                       {"addresses", addresses}});
  }
  return netdevs;
}

Json PciJson(const std::optional<PciAddress>& pci) {
  return pci ? Json(pci->ToString()) : Json(nullptr);
}

// In the form of `lspci -n`, for text searches.
std::string IdText(uint32_t id) { return absl::StrFormat("0x%04x", id); }

Json DeviceJson(const Topology& topology, const RdmaDevice& device) {
  const RdmaDevice* parent = topology.ParentOf(device);
  return {{"name", device.name},
          {"pci", PciJson(device.pci)},
          {"pci_path", device.path},
          {"numa_node", device.numa_node},
          {"vendor_id", IdText(device.vendor)},
          {"device_id", IdText(device.device)},
          {"driver", device.driver},
          {"firmware", device.firmware},
          {"board", device.board},
          {"node_guid", device.node_guid},
          {"physical_function", PciJson(device.physical_function)},
          {"subfunction", device.subfunction},
          {"parent", parent == nullptr ? Json(nullptr) : Json(parent->name)},
          {"virtual_functions", device.virtual_functions},
          {"iwarp", device.iwarp},
          {"uverbs", device.uverbs},
          {"given", device.given}};
}

Json PortJson(const Topology& topology, const RdmaPort& port) {
  const RdmaDevice& device = topology.DeviceOf(port);
  return {{"port", topology.PortName(port)},
          {"device", device.name},
          {"number", port.number},
          {"state", ToString(port.state)},
          {"physical_state", port.physical_state},
          {"link_layer", ToString(port.link)},
          {"gbps", port.gbps},
          {"rate", port.rate},
          {"lid", port.lid},
          {"sm_lid", port.sm_lid},
          {"gids", GidsJson(port)},
          {"netdevs", NetdevsJson(port)},
          {"fabric", port.fabric},
          {"fabric_named", port.fabric_named}};
}

Json PlaceJson(const Topology& topology, const Place& place) {
  const bool gpu = place.place.kind == MemoryPlace::Kind::kGpu;
  Json distances = Json::object();
  for (const RdmaPort& port : topology.ports) {
    distances[topology.PortName(port)] =
        ToString(DistanceOf(topology, topology.DeviceOf(port), place.place));
  }
  Json rails = Json::array();
  for (const PlannedRail& rail : place.plan.rails) {
    const RdmaPort& port = topology.ports[rail.port];
    rails.push_back({{"port", topology.PortName(port)},
                     {"fabric", port.fabric},
                     {"distance", ToString(rail.distance)},
                     {"near", rail.near},
                     {"penalty", rail.penalty}});
  }
  Json left_out = Json::array();
  for (const LeftOut& out : place.plan.left_out) {
    left_out.push_back({{"port", topology.PortName(topology.ports[out.port])}, {"why", out.why}});
  }
  return {{"place", place.name},
          {"kind", gpu ? "gpu" : "node"},
          {"pci", gpu ? PciJson(topology.gpus[place.place.index].pci) : Json(nullptr)},
          {"distances", distances},
          {"rails", rails},
          {"left_out", left_out}};
}

}  // namespace

void AddTopo(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<TopoFlags>();
  CLI::App* command = AddCommand(
      app, action, "topo", "Shows NUMA nodes, GPUs and NIC ports, and which rails transfers take",
      [flags] { return RunTopo(*flags); });
  AddHost(command, flags->fixture, flags->root, flags->fabrics);
  AddText(command, "--ports", flags->ports, "PORTS",
          "Ports to use: devices, netdevs, PCI addresses, subnets or fabrics, separated by commas; "
          "^ leaves some out (default: all)");
  AddText(
      command, "--save", flags->save, "FOLDER",
      "Copies what is read into this new folder, for --root on another host (default: no copy)");
  AddJson(command, flags->json);
}

Json TopologyJson(const Topology& topology, const PortSelector& selector) {
  Json nodes = Json::array();
  for (const NumaNode& node : topology.nodes) {
    nodes.push_back({{"id", node.id},
                     {"cpus", node.cpus},
                     {"memory_bytes", node.memory_bytes},
                     {"package", node.package},
                     {"distances", node.distances}});
  }
  Json gpus = Json::array();
  for (const Gpu& gpu : topology.gpus) {
    gpus.push_back({{"pci", gpu.pci.ToString()},
                    {"pci_path", gpu.path},
                    {"numa_node", gpu.numa_node},
                    {"vendor_id", IdText(gpu.vendor)},
                    {"device_id", IdText(gpu.device)}});
  }
  Json devices = Json::array();
  for (const RdmaDevice& device : topology.devices) {
    devices.push_back(DeviceJson(topology, device));
  }
  Json ports = Json::array();
  for (const RdmaPort& port : topology.ports) ports.push_back(PortJson(topology, port));
  Json memory = Json::array();
  for (const Place& place : Places(topology, selector)) {
    memory.push_back(PlaceJson(topology, place));
  }
  return {{"version", kTopologyJsonVersion},
          {"nodes", nodes},
          {"gpus", gpus},
          {"devices", devices},
          {"ports", ports},
          {"memory", memory}};
}

std::vector<Place> Places(const Topology& topology, const PortSelector& selector) {
  std::vector<Place> places;
  const auto add = [&](MemoryPlace place, const char* letter, const char* word, int number) {
    places.push_back({.place = place,
                      .column = absl::StrCat(letter, number),
                      .name = absl::StrCat(word, " ", number),
                      .plan = PlanRails(topology, place, selector)});
  };
  for (size_t i = 0; i < topology.nodes.size(); ++i) {
    add({MemoryPlace::Kind::kNode, i}, "N", "node", topology.nodes[i].id);
  }
  for (size_t i = 0; i < topology.gpus.size(); ++i) {
    add({MemoryPlace::Kind::kGpu, i}, "G", "GPU", static_cast<int>(i));
  }
  return places;
}

}  // namespace kvxfer::cli
