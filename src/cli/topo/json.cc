#include "absl/strings/str_format.h"
#include "src/cli/topo/places.h"
#include "src/cli/topo/report.h"
#include "src/core/base/strings.h"
#include "src/core/topology/rails.h"

namespace kvxfer::cli {
namespace {

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
    for (const IpAddress& address : netdev.addresses) addresses.push_back(ToString(address));
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

}  // namespace kvxfer::cli
