// Checks of relations between ports: fabrics and MTUs.

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "src/cli/doctor/doctor.h"

namespace kvxfer::cli {
namespace {

// Identifies the subnet of a port, also where several subnets have one prefix.
using Subnet = std::pair<uint64_t, uint32_t>;  // prefix, LID of the subnet manager

std::string SubnetText(const Topology& topology, const std::vector<size_t>& ports) {
  return absl::StrCat(PortNames(topology, ports), " (subnet manager at LID ",
                      topology.ports[ports.front()].sm_lid, ")");
}

Findings NamedFabrics(const Topology& topology,
                      const std::map<std::string, std::map<Subnet, std::vector<size_t>>>& names) {
  Findings bad;
  std::vector<std::string> parts;
  for (const auto& [name, subnets] : names) {
    std::vector<std::string> inside;
    for (const auto& [subnet, ports] : subnets) inside.push_back(SubnetText(topology, ports));
    parts.push_back(absl::StrCat(name, ": ", absl::StrJoin(inside, "; ")));
    if (subnets.size() < 2) continue;
    Append(bad, Problem(absl::StrCat(
                            name, " has ports of different subnets: ", absl::StrJoin(inside, "; ")),
                        "some of its ports cannot reach each other",
                        "correct the list of --fabric " + name + "=..."));
  }
  return OrOk(bad, absl::StrJoin(parts, "; "));
}

Findings Fabrics(const SystemView& view) {
  const Topology& topology = view.topology();
  std::map<Subnet, std::vector<size_t>> subnets;
  std::map<std::string, std::map<Subnet, std::vector<size_t>>> names;
  bool all_named = true;
  std::set<uint64_t> prefixes;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    const RdmaPort& port = topology.ports[i];
    if (!IsActiveInfiniBand(port) || port.sm_lid == 0) continue;
    const Subnet subnet{port.SubnetPrefix(), port.sm_lid};
    subnets[subnet].push_back(i);
    names[port.fabric][subnet].push_back(i);
    prefixes.insert(port.SubnetPrefix());
    all_named &= port.fabric_named;
  }
  if (subnets.empty()) return NotApplicable("no InfiniBand port in a subnet");
  if (all_named) return NamedFabrics(topology, names);
  if (subnets.size() == 1) return Ok("one subnet");
  std::vector<std::string> parts;
  parts.reserve(subnets.size());
  for (const auto& [subnet, ports] : subnets) parts.push_back(SubnetText(topology, ports));
  if (prefixes.size() == subnets.size()) {
    return Ok(absl::StrCat(subnets.size(), " subnets, with different prefixes"));
  }
  return Warning(
      absl::StrCat(subnets.size(), " fabrics with one subnet prefix: ", absl::StrJoin(parts, "; ")),
      "ports of different fabrics cannot reach each other, and their GIDs do not show that: kvxfer "
      "has to try each pair",
      "give the fabrics the same names on every host: --fabric NAME=PORTS; or give each subnet "
      "manager its own prefix (opensm: subnet_prefix)");
}

// The largest InfiniBand MTU that fits the netdev's MTU with RoCE v2 headers.
uint32_t ActiveMtu(uint32_t netdev_mtu) {
  constexpr uint32_t kHeaders = 96;  // the longest headers, by the kernel's calculation
  for (uint32_t mtu = 4096; mtu > 256; mtu /= 2) {
    if (mtu + kHeaders <= netdev_mtu) return mtu;
  }
  return 256;
}

Findings Mtus(const SystemView& view) {
  const Topology& topology = view.topology();
  std::map<uint32_t, std::vector<size_t>> ethernet;
  std::map<std::string, std::set<uint32_t>> by_fabric;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    const RdmaPort& port = topology.ports[i];
    if (port.state != PortState::kActive || port.netdevs.empty()) continue;
    const uint32_t mtu = port.netdevs.front().mtu;
    if (mtu == 0) continue;
    by_fabric[port.fabric].insert(mtu);
    if (port.link == LinkLayer::kEthernet) ethernet[mtu].push_back(i);
  }
  if (by_fabric.empty()) return NotApplicable("no active port with a netdev");
  Findings bad;
  for (const auto& [mtu, ports] : ethernet) {
    if (ActiveMtu(mtu) == 4096) continue;
    const RdmaPort& first = topology.ports[ports.front()];
    Append(bad, Warning(absl::StrCat(PortNames(topology, ports), ": netdev MTU ", mtu,
                                     ", so active MTU ", ActiveMtu(mtu), " of 4096"),
                        "more packets and headers for the same bytes",
                        absl::StrCat("ip link set ", first.netdevs.front().name,
                                     " mtu 9000 (and on the switch, and on every other host)")));
  }
  std::vector<std::string> seen;
  for (const auto& [fabric, mtus] : by_fabric) {
    std::string part = absl::StrCat(absl::StrJoin(mtus, ", "), " in ", fabric);
    if (mtus.size() > 1) {
      Append(bad, Warning("netdevs of one fabric differ in MTU: " + part,
                          "a connection uses the smaller MTU of its two ends; datagrams that are "
                          "too long are lost silently",
                          "ip link set NETDEV mtu N, the same N on all of them"));
    }
    seen.push_back(std::move(part));
  }
  return OrOk(bad, absl::StrJoin(seen, "; "));
}

}  // namespace

std::span<const Check> FabricChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"fabrics", "/sys/class/infiniband/*/ports/*/{gids/0,sm_lid}, --fabric", &Fabrics},
      {"mtu", "/sys/class/net/*/mtu of the ports' netdevs", &Mtus},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
