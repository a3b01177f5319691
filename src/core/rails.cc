#include "src/core/rails.h"

#include <algorithm>
#include <map>

#include "src/core/strings.h"

namespace kvxfer {
namespace {

// Steps away from memory: out of the root complex, over the link between CPUs.
uint32_t Steps(DeviceDistance distance) {
  switch (distance) {
    case DeviceDistance::kSwitch:
    case DeviceDistance::kRoot:
      return 0;
    case DeviceDistance::kNode:
      return 1;
    case DeviceDistance::kUnknown:
    case DeviceDistance::kOtherNode:
      return 2;
  }
  return 2;
}

int NodeOf(const Topology& topology, const MemoryPlace& place) {
  if (place.kind == MemoryPlace::Kind::kGpu) {
    return place.index < topology.gpus.size() ? topology.gpus[place.index].numa_node : -1;
  }
  return place.index < topology.nodes.size() ? topology.nodes[place.index].id : -1;
}

// What firmware says about the way between two nodes; 0 where either is not known.
int NodeDistance(const Topology& topology, int from, int to) {
  for (const NumaNode& node : topology.nodes) {
    if (node.id != from) continue;
    for (size_t i = 0; i < topology.nodes.size() && i < node.distances.size(); ++i) {
      if (topology.nodes[i].id == to) return node.distances[i];
    }
  }
  return 0;
}

std::string WhyInfiniBand(const RdmaDevice& device, const RdmaPort& port) {
  if (device.physical_function && (port.gids.empty() || port.gids.front().Guid() == 0)) {
    return "a virtual function without a port GUID: set one on its parent (ip link set PARENT vf N "
           "port_guid GUID) and rebind it";
  }
  if (port.state == PortState::kActive && port.lid == 0) {
    return "no LID: no subnet manager has seen it; start one (opensm, or on the switch)";
  }
  return {};
}

std::string WhyEthernet(const RdmaPort& port) {
  const bool v2 = std::any_of(port.gids.begin(), port.gids.end(),
                              [](const Gid& gid) { return gid.type == GidType::kRoceV2; });
  if (v2) return {};
  return port.gids.empty() ? "no GID: give its netdev an address and bring it up"
                           : "no RoCE v2 GID: give its netdev an IP address";
}

std::string WhyDown(const RdmaPort& port) {
  std::string why = absl::StrCat("port ", ToString(port.state));
  if (!port.physical_state.empty()) absl::StrAppend(&why, " (", port.physical_state, ")");
  if (port.state == PortState::kInit || port.state == PortState::kArmed) {
    return why + ": waits for a subnet manager; start one, or look at its log";
  }
  if (port.physical_state == "Polling") return why + ": no signal; look at cable and switch port";
  if (port.physical_state == "Disabled") return why + ": switched off here or in firmware";
  return why;
}

}  // namespace

std::string WhyUnusable(const Topology& topology, const RdmaPort& port) {
  const RdmaDevice& device = topology.DeviceOf(port);
  if (port.link == LinkLayer::kInfiniBand) {
    if (std::string why = WhyInfiniBand(device, port); !why.empty()) return why;
  }
  if (port.state != PortState::kActive) return WhyDown(port);
  return port.link == LinkLayer::kEthernet ? WhyEthernet(port) : std::string();
}

RailPlan PlanRails(const Topology& topology, const MemoryPlace& place,
                   const PortSelector& selector) {
  RailPlan plan;
  std::map<std::string, DeviceDistance> nearest;  // by fabric
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    const RdmaPort& port = topology.ports[i];
    if (!selector.Matches(topology, port)) {
      plan.left_out.push_back({i, absl::StrCat("not selected by '", selector.text(), "'")});
      continue;
    }
    if (std::string why = WhyUnusable(topology, port); !why.empty()) {
      plan.left_out.push_back({i, std::move(why)});
      continue;
    }
    const DeviceDistance distance = DistanceOf(topology, topology.DeviceOf(port), place);
    plan.rails.push_back({.port = i, .distance = distance});
    const auto [it, first] = nearest.emplace(port.fabric, distance);
    if (!first) it->second = std::min(it->second, distance);
  }
  for (PlannedRail& rail : plan.rails) {
    const DeviceDistance best = nearest[topology.ports[rail.port].fabric];
    rail.near = rail.distance == best;
    rail.penalty = rail.near ? 0 : std::max(1u, Steps(rail.distance) - Steps(best));
  }
  const int node = NodeOf(topology, place);
  const auto far = [&](const PlannedRail& rail) {
    return NodeDistance(topology, node, topology.DeviceOf(topology.ports[rail.port]).numa_node);
  };
  std::stable_sort(plan.rails.begin(), plan.rails.end(),
                   [&](const PlannedRail& a, const PlannedRail& b) {
                     return a.distance != b.distance ? a.distance < b.distance : far(a) < far(b);
                   });
  return plan;
}

FabricHint HintOf(const RdmaPort& port) {
  return {.link = port.link,
          .name = port.fabric_named ? port.fabric : std::string(),
          .subnet_prefix = port.link == LinkLayer::kInfiniBand ? port.SubnetPrefix() : 0};
}

Reach ReachOf(const FabricHint& a, const FabricHint& b) {
  if (a.link != b.link) return Reach::kNo;
  if (!a.name.empty() && !b.name.empty()) return a.name == b.name ? Reach::kLikely : Reach::kNo;
  if (a.link != LinkLayer::kInfiniBand) return Reach::kMaybe;
  if (a.subnet_prefix != b.subnet_prefix) return Reach::kUnlikely;
  return a.subnet_prefix == kDefaultSubnetPrefix ? Reach::kMaybe : Reach::kLikely;
}

}  // namespace kvxfer
