// Checks of single ports: state, link layer, rate, LID, subnet manager, GIDs, GUID.

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {
namespace {

bool HasGuid(const RdmaPort& port) { return !port.gids.empty() && port.gids.front().Guid() != 0; }

// A virtual function without a GUID; it has a check of its own.
bool IsBlank(const RdmaPort& port, const RdmaDevice& device) {
  return device.physical_function && port.link == LinkLayer::kInfiniBand && !HasGuid(port);
}

void AddOnce(std::vector<std::string>& list, const std::string& item) {
  if (std::ranges::find(list, item) == list.end()) list.push_back(item);
}

std::string NetdevOf(const RdmaPort& port) {
  return port.netdevs.empty() ? "NETDEV" : port.netdevs.front().name;
}

std::string FixOf(const Topology& topology, const RdmaPort& port) {
  const std::string& device = topology.DeviceOf(port).name;
  if (port.state == PortState::kInit || port.state == PortState::kArmed) {
    return "sminfo; start a subnet manager (systemctl start opensm, or on the switch)";
  }
  if (port.physical_state == "Disabled") {
    return absl::StrCat("ip link set ", NetdevOf(port), " up; ibportstate -D 0 1 enable");
  }
  return absl::StrCat("ibstat ", device, "; check cable and switch port");
}

Findings PortStates(const SystemView& view) {
  const Topology& topology = view.topology();
  std::map<std::pair<PortState, std::string>, std::vector<size_t>> bad;
  size_t active = 0;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    const RdmaPort& port = topology.ports[i];
    if (IsBlank(port, topology.DeviceOf(port))) continue;
    if (IsActive(port)) ++active;
    if (!IsActive(port)) bad[{port.state, port.physical_state}].push_back(i);
  }
  if (topology.ports.empty()) return NotApplicable("no port");
  Findings findings;
  for (const auto& [state, ports] : bad) {
    const RdmaPort& first = topology.ports[ports.front()];
    const bool waits = state.first == PortState::kInit || state.first == PortState::kArmed;
    // A port that is unused on purpose looks like a broken one, so that it is only a warning while
    // other ports carry data.
    const Severity severity = waits || active == 0 ? Severity::kProblem : Severity::kWarning;
    findings.push_back({severity,
                        absl::StrCat(PortNames(topology, ports), ": ", ToString(state.first), " (",
                                     state.second, ")"),
                        waits         ? "no subnet manager has configured the port"
                        : active == 0 ? "no port carries data"
                                      : "it cannot be a rail; other ports carry its share",
                        FixOf(topology, first)});
  }
  if (active == 0 && bad.empty()) return NotApplicable("only virtual functions without a GUID");
  return OrOk(findings, absl::StrCat(active, " active"));
}

Findings LinkLayers(const SystemView& view) {
  const Topology& topology = view.topology();
  std::map<LinkLayer, std::vector<size_t>> layers;
  for (const size_t i : PortsWhere(topology, IsActive)) layers[topology.ports[i].link].push_back(i);
  if (layers.empty()) return NotApplicable("no active port");
  std::vector<std::string> parts;
  parts.reserve(layers.size());
  for (const auto& [layer, ports] : layers) {
    parts.push_back(absl::StrCat(ToString(layer), " on ", PortNames(topology, ports)));
  }
  const std::string what = absl::StrJoin(parts, "; ");
  if (layers.contains(LinkLayer::kUnknown)) {
    return Warning(what, "kvxfer does not know how to connect over such a port",
                   "cat /sys/class/infiniband/*/ports/*/link_layer; leave it out with "
                   "KVXFER_VERBS_DEVICES='^DEVICE'");
  }
  if (layers.size() == 1) return Ok(what);
  return Warning(
      what, "these are different networks: a port of one cannot reach a port of the other",
      "set the link type of the odd one (mlxconfig -d PCI_ADDRESS set LINK_TYPE_P1=1 for "
      "InfiniBand, 2 for Ethernet), or leave it out with KVXFER_VERBS_DEVICES");
}

// The highest rate of the chip, in Gb/s; 0: unknown. Some boards with the chip have a lower rate.
double ChipGbps(const RdmaDevice& device) {
  if (device.vendor != 0x15b3) return 0;
  switch (device.device) {
    case 0x1023:
      return 800;  // ConnectX-8
    case 0x1021:
      return 400;  // ConnectX-7
    case 0x101b:
    case 0x101d:
      return 200;  // ConnectX-6, 6 Dx
    case 0x1017:
    case 0x1019:
      return 100;  // ConnectX-5, 5 Ex
    default:
      return 0;
  }
}

// Finds ports that are slower than other ports of the same kind of card here, or than their chip.
Findings Rates(const SystemView& view) {
  const Topology& topology = view.topology();
  std::map<std::pair<uint32_t, uint32_t>, double> best;
  const std::vector<size_t> active = PortsWhere(topology, IsActive);
  std::vector<std::string> seen;
  for (const size_t i : active) {
    const RdmaDevice& device = topology.DeviceOf(topology.ports[i]);
    double& most = best[{device.vendor, device.device}];
    most = std::max(most, topology.ports[i].gbps);
  }
  // By the actual and the possible rate.
  std::map<std::pair<std::string, double>, std::vector<size_t>> slow;
  for (const size_t i : active) {
    const RdmaPort& port = topology.ports[i];
    const RdmaDevice& device = topology.DeviceOf(port);
    const double could = std::max(best[{device.vendor, device.device}], ChipGbps(device));
    AddOnce(seen, port.rate);
    if (port.gbps > 0 && port.gbps < could) slow[{port.rate, could}].push_back(i);
  }
  if (active.empty()) return NotApplicable("no active port");
  Findings bad;
  for (const auto& [rates, ports] : slow) {
    Append(bad, Warning(absl::StrFormat("%s: %s, of up to %g Gb/s", PortNames(topology, ports),
                                        rates.first, rates.second),
                        "a cable or switch of an older generation, or lost lanes",
                        "mlxlink -d " + topology.DeviceOf(topology.ports[ports.front()]).name +
                            " -m; ibdiagnet; check cable, switch port and the limit of the board"));
  }
  return OrOk(bad, absl::StrJoin(seen, ", "));
}

Findings Lids(const SystemView& view) {
  const Topology& topology = view.topology();
  const auto all = PortsWhere(topology, IsActiveInfiniBand);
  if (all.empty()) return NotApplicable("no active InfiniBand port");
  const auto bad = PortsWhere(topology, [](const RdmaPort& p) {
    return IsActiveInfiniBand(p) && (p.lid == 0 || p.lid >= 0xc000);
  });
  if (bad.empty()) return Ok(absl::StrCat("on ", all.size(), " ports"));
  return Problem(absl::StrCat("no LID on ", PortNames(topology, bad)),
                 "other ports cannot address it: connections time out",
                 "sminfo; start a subnet manager, or restart it (systemctl restart opensm)");
}

Findings SubnetManagers(const SystemView& view) {
  const Topology& topology = view.topology();
  const auto all = PortsWhere(topology, IsActiveInfiniBand);
  if (all.empty()) return NotApplicable("no active InfiniBand port");
  std::vector<size_t> bad;
  std::vector<std::string> lids;
  for (const size_t i : all) {
    if (topology.ports[i].sm_lid == 0) bad.push_back(i);
    AddOnce(lids, absl::StrCat(topology.ports[i].sm_lid));
  }
  if (bad.empty()) return Ok("at LID " + absl::StrJoin(lids, ", "));
  return Problem(absl::StrCat("no subnet manager seen by ", PortNames(topology, bad)),
                 "its links and paths are not managed: new connections fail",
                 "sminfo; systemctl start opensm, or start the switch's");
}

// Why other ports cannot address this port by its GIDs; empty: they can.
Findings GidsOf(const Topology& topology, const RdmaPort& port) {
  const std::string name = topology.DeviceOf(port).name;
  if (port.link == LinkLayer::kEthernet) {
    const std::string fix =
        absl::StrCat("ip addr add ADDRESS/24 dev ", NetdevOf(port), "; rdma link; show_gids");
    bool v2 = false;
    bool routed = false;
    for (const Gid& gid : port.gids) {
      v2 |= gid.type == GidType::kRoceV2;
      routed |= gid.type == GidType::kRoceV2 && gid.SubnetPrefix() != kDefaultSubnetPrefix;
    }
    if (!v2) {
      return Problem(name + ": no RoCE v2 GID", "no connection can be made over it", fix);
    }
    if (!routed) {
      return Warning(
          name + ": RoCE v2 GIDs of link-local addresses only",
          "it only reaches ports of its own Ethernet segment: routers do not forward its "
          "packets",
          fix);
    }
  } else if (!HasGuid(port)) {
    return Problem(name + ": no GID", "no connection can be made over it",
                   "ibv_devinfo -v -d " + name + "; reload the driver");
  }
  return {};
}

Findings Gids(const SystemView& view) {
  const Topology& topology = view.topology();
  const std::vector<size_t> active = PortsWhere(topology, IsActive);
  if (active.empty()) return NotApplicable("no active port");
  Findings bad;
  size_t blank = 0;
  for (const size_t i : active) {
    const RdmaPort& port = topology.ports[i];
    const bool is_blank = IsBlank(port, topology.DeviceOf(port));
    if (is_blank) ++blank;
    if (!is_blank) Append(bad, GidsOf(topology, port));
  }
  return OrOk(bad, absl::StrCat("on ", active.size() - blank, " ports"));
}

// A pod uses its virtual functions. On their host, virtual functions without a GUID are spare,
// unless others of the same parent have a GUID.
Findings VirtualGuids(const SystemView& view) {
  const Topology& topology = view.topology();
  const auto all = PortsWhere(topology, [&](const RdmaPort& p) {
    return topology.DeviceOf(p).physical_function && p.link == LinkLayer::kInfiniBand;
  });
  if (all.empty()) return NotApplicable("no InfiniBand virtual function");
  std::set<PciAddress> parents_in_use;
  for (const size_t i : all) {
    const RdmaDevice& device = topology.DeviceOf(topology.ports[i]);
    if (topology.ParentOf(device) == nullptr || HasGuid(topology.ports[i])) {
      parents_in_use.insert(*device.physical_function);
    }
  }
  size_t spare = 0;
  std::vector<size_t> blank;
  for (const size_t i : all) {
    const RdmaDevice& device = topology.DeviceOf(topology.ports[i]);
    if (!IsBlank(topology.ports[i], device)) continue;
    if (parents_in_use.contains(*device.physical_function)) {
      blank.push_back(i);
    } else {
      ++spare;
    }
  }
  if (blank.empty()) {
    return Ok(absl::StrCat(all.size() - spare, " virtual functions have one",
                           spare > 0 ? absl::StrCat(", ", spare, " spare ones have none") : ""));
  }
  const RdmaDevice& first = topology.DeviceOf(topology.ports[blank.front()]);
  const std::string fix = absl::StrCat(
      "on the host: ip link set PF_NETDEV vf N node_guid GUID port_guid GUID; echo ",
      first.pci ? first.pci->ToString() : "PCI_ADDRESS",
      " > /sys/bus/pci/drivers/mlx5_core/unbind, then > .../bind; or the GUID pool of the SR-IOV "
      "operator");
  return {{blank.size() == all.size() ? Severity::kProblem : Severity::kWarning,
           absl::StrCat("port GUID zero on ", PortNames(topology, blank)),
           "the subnet manager does not know it: it stays down and cannot be a rail", fix}};
}

}  // namespace

bool IsActive(const RdmaPort& port) { return port.state == PortState::kActive; }

bool IsActiveInfiniBand(const RdmaPort& port) {
  return IsActive(port) && port.link == LinkLayer::kInfiniBand;
}

std::span<const Check> PortChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"port-state", "/sys/class/infiniband/*/ports/*/{state,phys_state}", &PortStates},
      {"link-layer", "/sys/class/infiniband/*/ports/*/link_layer", &LinkLayers},
      {"rate", "/sys/class/infiniband/*/ports/*/rate", &Rates},
      {"lid", "/sys/class/infiniband/*/ports/*/lid", &Lids},
      {"sm-lid", "/sys/class/infiniband/*/ports/*/sm_lid", &SubnetManagers},
      {"gids", "/sys/class/infiniband/*/ports/*/{gids,gid_attrs}", &Gids},
      {"vf-guid", "/sys/class/infiniband/*/ports/*/gids/0 of virtual functions", &VirtualGuids},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
