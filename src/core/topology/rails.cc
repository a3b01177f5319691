#include "src/core/topology/rails.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// The cost of a distance in steps: leaving the root complex is one, crossing between CPUs two.
uint32_t Steps(DeviceDistance distance) {
  switch (distance) {
    case DeviceDistance::kSwitch:
    case DeviceDistance::kRoot:
      return 0;
    case DeviceDistance::kNode:
    case DeviceDistance::kSocket:
      return 1;
    case DeviceDistance::kOtherNode:
    case DeviceDistance::kUnknown:
      break;
  }
  return 2;
}

// An unknown distance counts as far: it must not look nearer than a known far one.
DeviceDistance Nearness(DeviceDistance distance) {
  return std::min(distance, DeviceDistance::kOtherNode);
}

int NodeOf(const Topology& topology, const MemoryPlace& place) {
  if (place.kind == MemoryPlace::Kind::kGpu) {
    return place.index < topology.gpus.size() ? topology.gpus[place.index].numa_node : -1;
  }
  return place.index < topology.nodes.size() ? topology.nodes[place.index].id : -1;
}

// The SLIT distance that firmware reports between two nodes; 0 if either is unknown.
int NodeDistance(const Topology& topology, int from, int to) {
  for (const NumaNode& node : topology.nodes) {
    if (node.id != from) continue;
    for (size_t i = 0; i < topology.nodes.size() && i < node.distances.size(); ++i) {
      if (topology.nodes[i].id == to) return node.distances[i];
    }
  }
  return 0;
}

// Each text names the cause and how to fix it, for `kvxfer topo`.
std::string WhyInfiniBand(const RdmaDevice& device, const RdmaPort& port) {
  if (device.physical_function && (port.gids.empty() || port.gids.front().Guid() == 0)) {
    return "a virtual function without a port GUID: set one on its parent (ip link set PARENT vf N "
           "port_guid GUID) and rebind it";
  }
  if (device.physical_function && port.state == PortState::kDown) {
    return "a virtual function whose port is down: its parent's link policy may keep it so; ip "
           "link "
           "set PARENT vf N state auto";
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

std::string WhyDown(const RdmaDevice& device, const RdmaPort& port) {
  if (port.state == PortState::kUnknown) {
    return absl::StrCat("port state unknown: /sys/class/infiniband/", device.name, "/ports/",
                        port.number, "/state cannot be read, or tells none");
  }
  std::string why = absl::StrCat("port ", ToString(port.state));
  if (!port.physical_state.empty()) absl::StrAppend(&why, " (", port.physical_state, ")");
  if (port.state == PortState::kInit || port.state == PortState::kArmed) {
    return why + ": waits for a subnet manager; start one, or look at its log";
  }
  if (port.link == LinkLayer::kEthernet && port.physical_state == "Disabled") {
    // Ethernet drivers report this for every link without carrier, whether switched off or not.
    return absl::StrCat(why, ": no carrier; ip link set ",
                        port.netdevs.empty() ? "NETDEV" : port.netdevs.front().name,
                        " up, else look at cable and switch port");
  }
  if (port.physical_state == "Polling") return why + ": no signal; look at cable and switch port";
  if (port.physical_state == "Disabled") return why + ": switched off here or in firmware";
  return why;
}

// How ready a port is: 0 can carry data now; 1 can once its link is up; 2 neither.
int Standing(const Topology& topology, const RdmaPort& port) {
  if (WhyUnusable(topology, port).empty()) return 0;
  // Asks again as if the link were up and a subnet manager had assigned a LID.
  RdmaPort up = port;
  up.state = PortState::kActive;
  up.lid = std::max(up.lid, 1u);
  return WhyUnusable(topology, up).empty() ? 1 : 2;
}

// The ports that can carry data. The others go to `left_out` with the reason.
std::vector<size_t> UsablePorts(const Topology& topology, const PortSelector& selector,
                                std::vector<LeftOut>& left_out) {
  std::vector<size_t> usable;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    const RdmaPort& port = topology.ports[i];
    if (!selector.Matches(topology, port)) {
      left_out.push_back({i, absl::StrCat("not selected by '", selector.text(), "'")});
    } else if (std::string why = WhyUnusable(topology, port); !why.empty()) {
      left_out.push_back({i, std::move(why)});
    } else {
      usable.push_back(i);
    }
  }
  std::ranges::move(LeaveOutSharers(topology, selector, usable), std::back_inserter(left_out));
  std::sort(left_out.begin(), left_out.end(),
            [](const LeftOut& a, const LeftOut& b) { return a.port < b.port; });
  return usable;
}

}  // namespace

std::string WhyUnusable(const Topology& topology, const RdmaPort& port) {
  const RdmaDevice& device = topology.DeviceOf(port);
  if (!device.given) {
    return absl::StrCat(
        "not given to this container: /dev/infiniband/", device.uverbs,
        " is not there; request it of the RDMA device plugin, or run with --device");
  }
  if (device.iwarp) {
    return "iWARP (node type RNIC): not supported; switch the card to RoCE if it can do it";
  }
  if (port.link == LinkLayer::kInfiniBand) {
    if (std::string why = WhyInfiniBand(device, port); !why.empty()) return why;
  }
  if (port.state != PortState::kActive) return WhyDown(device, port);
  return port.link == LinkLayer::kEthernet ? WhyEthernet(port) : std::string();
}

std::vector<LeftOut> LeaveOutSharers(const Topology& topology, const PortSelector& selector,
                                     std::vector<size_t>& ports) {
  const auto rank = [&](size_t i) {
    const RdmaPort& port = topology.ports[i];
    const RdmaDevice& device = topology.DeviceOf(port);
    // Tuples compare in this order: named by the user, ready, not a virtual or sub-function. Lower
    // wins.
    const bool part = device.physical_function || !device.subfunction.empty();
    return std::tuple(!selector.Names(topology, port), Standing(topology, port), part);
  };
  using Key = std::pair<Wire, std::string>;
  const auto key = [&](size_t i) -> std::optional<Key> {
    const RdmaPort& port = topology.ports[i];
    const std::optional<Wire> wire = WireOf(topology, port);
    if (!wire) return std::nullopt;
    // Ports on one wire in two fabrics that the user named are both kept.
    return Key{*wire, port.fabric_named ? port.fabric : std::string()};
  };
  std::map<Key, size_t> taken;
  for (const size_t i : ports) {
    const std::optional<Key> wire = key(i);
    if (!wire) continue;
    const auto [it, first] = taken.emplace(*wire, i);
    // Strictly less: the first of equals stays.
    if (!first && rank(i) < rank(it->second)) it->second = i;
  }
  std::vector<size_t> kept;
  std::vector<LeftOut> left_out;
  for (const size_t i : ports) {
    const std::optional<Key> wire = key(i);
    const size_t holder = wire ? taken.at(*wire) : i;
    if (holder == i) {
      kept.push_back(i);
      continue;
    }
    left_out.push_back(
        {i, absl::StrCat("shares the port of ", topology.DeviceOf(topology.ports[holder]).name,
                         ", which is a rail; name this one to take it instead")});
  }
  ports = std::move(kept);
  return left_out;
}

std::vector<uint32_t> Penalties(const Topology& topology, const MemoryPlace& place,
                                std::span<const size_t> ports) {
  std::vector<DeviceDistance> distances;
  std::map<std::string, DeviceDistance> nearest;  // by fabric
  for (const size_t i : ports) {
    const RdmaPort& port = topology.ports[i];
    const DeviceDistance distance = DistanceOf(topology, topology.DeviceOf(port), place);
    distances.push_back(Nearness(distance));
    const auto [it, first] = nearest.emplace(port.fabric, distances.back());
    if (!first) it->second = std::min(it->second, distances.back());
  }
  // Penalties are relative to the nearest port of the same fabric. A port that is farther but costs
  // equal steps still gets 1.
  std::vector<uint32_t> penalties;
  for (size_t i = 0; i < ports.size(); ++i) {
    const DeviceDistance best = nearest[topology.ports[ports[i]].fabric];
    const bool near = distances[i] == best;
    // the unsigned difference is never negative: `best` is the minimum
    penalties.push_back(near ? 0 : std::max(1u, Steps(distances[i]) - Steps(best)));
  }
  return penalties;
}

RailPlan PlanRails(const Topology& topology, const MemoryPlace& place,
                   const PortSelector& selector) {
  RailPlan plan;
  const std::vector<size_t> ports = UsablePorts(topology, selector, plan.left_out);
  const std::vector<uint32_t> penalties = Penalties(topology, place, ports);
  for (size_t i = 0; i < ports.size(); ++i) {
    const RdmaDevice& device = topology.DeviceOf(topology.ports[ports[i]]);
    plan.rails.push_back({.port = ports[i],
                          .distance = DistanceOf(topology, device, place),
                          .near = penalties[i] == 0,
                          .penalty = penalties[i]});
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

Reach ReachOf(const FabricHint& a, const FabricHint& b) {
  if (a.link != b.link) return Reach::kNo;
  if (!a.name.empty() && !b.name.empty()) return a.name == b.name ? Reach::kLikely : Reach::kNo;
  if (a.link != LinkLayer::kInfiniBand) return Reach::kMaybe;
  if (a.subnet_prefix != b.subnet_prefix) return Reach::kUnlikely;
  // A port without a GID has prefix 0.
  const bool telling = a.subnet_prefix != kDefaultSubnetPrefix && a.subnet_prefix != 0;
  return telling ? Reach::kLikely : Reach::kMaybe;
}

}  // namespace kvxfer
