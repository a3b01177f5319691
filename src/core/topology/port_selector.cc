#include "src/core/topology/port_selector.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

bool GlobMatches(const std::string& pattern, const std::string& text) {
  return fnmatch(pattern.c_str(), text.c_str(), 0) == 0;
}

bool NetdevMatches(const std::string& pattern, const RdmaPort& port) {
  return std::any_of(port.netdevs.begin(), port.netdevs.end(),
                     [&](const Netdev& n) { return GlobMatches(pattern, n.name); });
}

// Whether an address of the port is in `wanted`, which may be a single address (128 bits).
bool HasAddressIn(const IpSubnet& wanted, const RdmaPort& port) {
  for (const Netdev& netdev : port.netdevs) {
    for (const IpAddress& address : netdev.addresses) {
      if (wanted.Contains(address)) return true;
    }
  }
  return std::any_of(port.gids.begin(), port.gids.end(),
                     [&](const Gid& gid) { return wanted.Contains(gid.bytes); });
}

// Whether a network of the port lies within `wanted`: "10.0.0.0/8" selects a netdev in
// 10.77.0.0/24, but "10.77.0.0/24" does not select a netdev in 10.0.0.0/8 unless it has an address
// there.
bool HasNetworkIn(const IpSubnet& wanted, const RdmaPort& port) {
  for (const Netdev& netdev : port.netdevs) {
    for (const IpSubnet& subnet : netdev.subnets) {
      if (wanted.prefix_bits <= subnet.prefix_bits && wanted.Contains(subnet.address)) return true;
    }
  }
  return false;
}

bool PciMatches(const PciAddress& wanted, bool every_function, PciAddress there) {
  if (every_function) there.function = 0;
  return there == wanted;
}

// The ports of this host, for a person: "mlx5_0:1 (ibp60s0, 0000:3c:00.0, Fabric1), ..."
std::string WhatThereIs(const Topology& topology) {
  if (topology.ports.empty()) return "this host has no RDMA port";
  constexpr size_t kShown = 12;
  std::vector<std::string> shown;
  for (const RdmaPort& port : topology.ports) {
    if (shown.size() == kShown) break;
    std::vector<std::string> facts;
    for (const Netdev& netdev : port.netdevs) facts.push_back(netdev.name);
    const RdmaDevice& device = topology.DeviceOf(port);
    if (device.pci) facts.push_back(device.pci->ToString());
    facts.push_back(port.fabric);
    shown.push_back(absl::StrCat(topology.PortName(port), " (", absl::StrJoin(facts, ", "), ")"));
  }
  const size_t more = topology.ports.size() - shown.size();
  return absl::StrCat("there are ", absl::StrJoin(shown, ", "),
                      more == 0 ? "" : absl::StrCat(" and ", more, " more"));
}

// The ports on one wire are in one fabric. Ports that the user did not name inherit the name of the
// physical function's port on the same wire; if that has none, the name that the other ports on the
// wire were given, provided it is the same for all.
void InheritFabrics(Topology& topology) {
  struct Given {
    std::string name{};
    bool by_parent = false;
    bool same = true;
  };
  std::map<Wire, Given> given;
  for (const RdmaPort& port : topology.ports) {
    const std::optional<Wire> wire = WireOf(topology, port);
    if (!wire || !port.fabric_named) continue;
    const RdmaDevice& device = topology.DeviceOf(port);
    const bool parent = !device.physical_function && device.subfunction.empty();
    const auto [it, first] =
        given.emplace(*wire, Given{.name = port.fabric, .by_parent = parent, .same = true});
    // The physical function's name, once found, is final.
    if (first || it->second.by_parent) continue;
    if (parent) {
      it->second = {.name = port.fabric, .by_parent = true, .same = true};
    } else {
      it->second.same &= it->second.name == port.fabric;
    }
  }
  for (RdmaPort& port : topology.ports) {
    const std::optional<Wire> wire = WireOf(topology, port);
    if (!wire || port.fabric_named) continue;
    const auto it = given.find(*wire);
    if (it == given.end() || !it->second.same) continue;
    port.fabric = it->second.name;
    port.fabric_named = true;
  }
}

}  // namespace

absl::StatusOr<PortSelector::Pattern> PortSelector::ParsePattern(std::string_view text) {
  constexpr std::array<std::pair<std::string_view, Kind>, 5> kKinds = {
      {{"device:", Kind::kDevice},
       {"netdev:", Kind::kNetdev},
       {"fabric:", Kind::kFabric},
       {"pci:", Kind::kPci},
       {"subnet:", Kind::kSubnet}}};
  const auto bad = [whole = text](std::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("port selector '", ToAbsl(whole), "': ", ToAbsl(why)));
  };
  Pattern pattern;
  if (text.starts_with('^')) {
    pattern.exclude = true;
    text.remove_prefix(1);
  }
  for (const auto& [name, kind] : kKinds) {
    if (!text.starts_with(name)) continue;
    pattern.kind = kind;
    text.remove_prefix(name.size());
    break;
  }
  pattern.text = std::string(text);
  if (text.empty()) return bad("a pattern is empty; write names with commas between them");
  pattern.pci = PciAddress::Parse(text);
  pattern.every_function = text.find('.') == std::string_view::npos;
  pattern.subnet = IpSubnet::Parse(text);
  pattern.network = text.find('/') != std::string_view::npos;
  if (pattern.kind == Kind::kPci && !pattern.pci) {
    return bad("is no PCI address; write it as 0000:3c:00.0 or 3c:00");
  }
  if (pattern.kind == Kind::kSubnet && !pattern.subnet) {
    return bad("is no network; write it as 10.77.0.0/24 or fe80::/64");
  }
  return pattern;
}

absl::StatusOr<PortSelector> PortSelector::Parse(std::string_view text) {
  PortSelector selector;
  selector.text_ = std::string(text);
  if (text.empty()) return selector;
  for (const absl::string_view part : absl::StrSplit(ToAbsl(text), ',')) {
    absl::StatusOr<Pattern> pattern = ParsePattern(ToStd(absl::StripAsciiWhitespace(part)));
    if (!pattern.ok()) return pattern.status();
    selector.patterns_.push_back(*std::move(pattern));
  }
  return selector;
}

bool PortSelector::PatternMatches(const Pattern& pattern, const Topology& topology,
                                  const RdmaPort& port) {
  const RdmaDevice& device = topology.DeviceOf(port);
  const auto is = [&pattern](Kind kind) {
    return pattern.kind == kind || pattern.kind == Kind::kAny;
  };
  if (is(Kind::kDevice) && (GlobMatches(pattern.text, device.name) ||
                            GlobMatches(pattern.text, topology.PortName(port)))) {
    return true;
  }
  if (is(Kind::kNetdev) && NetdevMatches(pattern.text, port)) return true;
  if (is(Kind::kFabric) && GlobMatches(pattern.text, port.fabric)) return true;
  if (is(Kind::kPci) && pattern.pci && device.pci) {
    if (PciMatches(*pattern.pci, pattern.every_function, *device.pci)) return true;
    // In a pod the virtual function may be the only visible part of the card, at an address of its
    // own. A pattern for the whole card selects it too.
    if (pattern.every_function && device.physical_function &&
        PciMatches(*pattern.pci, true, *device.physical_function)) {
      return true;
    }
  }
  if (!is(Kind::kSubnet) || !pattern.subnet) return false;
  return HasAddressIn(*pattern.subnet, port) ||
         (pattern.network && HasNetworkIn(*pattern.subnet, port));
}

bool PortSelector::PatternNames(const Pattern& pattern, const Topology& topology,
                                const RdmaPort& port) {
  if (pattern.exclude || pattern.kind == Kind::kFabric) return false;
  if (!PatternMatches(pattern, topology, port)) return false;
  const RdmaDevice& device = topology.DeviceOf(port);
  if (pattern.text == device.name || pattern.text == topology.PortName(port)) return true;
  if (pattern.pci && !pattern.every_function) return true;
  if (pattern.subnet && !pattern.network) return true;
  return std::any_of(port.netdevs.begin(), port.netdevs.end(),
                     [&](const Netdev& netdev) { return netdev.name == pattern.text; });
}

bool PortSelector::Names(const Topology& topology, const RdmaPort& port) const {
  return Matches(topology, port) &&
         std::any_of(patterns_.begin(), patterns_.end(),
                     [&](const Pattern& pattern) { return PatternNames(pattern, topology, port); });
}

bool PortSelector::Matches(const Topology& topology, const RdmaPort& port) const {
  bool named = false;
  bool any_wanted = false;
  for (const Pattern& pattern : patterns_) {
    any_wanted |= !pattern.exclude;
    if (!PatternMatches(pattern, topology, port)) continue;
    // An exclusion wins over every other pattern, in any position.
    if (pattern.exclude) return false;
    named = true;
  }
  return named || !any_wanted;
}

absl::StatusOr<std::vector<size_t>> PortSelector::Select(const Topology& topology) const {
  for (const Pattern& pattern : patterns_) {
    if (pattern.exclude) continue;
    const bool found =
        std::any_of(topology.ports.begin(), topology.ports.end(),
                    [&](const RdmaPort& port) { return PatternMatches(pattern, topology, port); });
    if (!found) {
      return absl::NotFoundError(absl::StrCat("port selector '", pattern.text,
                                              "' matches no port; ", WhatThereIs(topology)));
    }
  }
  std::vector<size_t> selected;
  for (size_t i = 0; i < topology.ports.size(); ++i) {
    if (Matches(topology, topology.ports[i])) selected.push_back(i);
  }
  if (selected.empty() && !patterns_.empty()) {
    return absl::NotFoundError(
        absl::StrCat("port selector '", text_, "' leaves no port; ", WhatThereIs(topology)));
  }
  return selected;
}

absl::StatusOr<FabricName> FabricName::Parse(std::string_view text) {
  const size_t equals = text.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == text.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "fabric '", ToAbsl(text), "': write a name and its ports, as in Fabric1=ibp60s0,ibp77s0"));
  }
  absl::StatusOr<PortSelector> ports = PortSelector::Parse(text.substr(equals + 1));
  if (!ports.ok()) return Annotate(ports.status(), absl::StrCat("fabric '", ToAbsl(text), "'"));
  return FabricName{.name = std::string(text.substr(0, equals)), .ports = *std::move(ports)};
}

absl::Status NameFabrics(const std::vector<FabricName>& names, Topology& topology) {
  std::vector<const FabricName*> name_of(topology.ports.size());
  for (const FabricName& name : names) {
    const absl::StatusOr<std::vector<size_t>> ports = name.ports.Select(topology);
    if (!ports.ok()) return Annotate(ports.status(), absl::StrCat("fabric ", name.name));
    for (const size_t port : *ports) {
      if (name_of[port] != nullptr && name_of[port]->name != name.name) {
        return absl::InvalidArgumentError(
            absl::StrCat("port ", topology.PortName(topology.ports[port]),
                         " is in two fabrics: ", name_of[port]->name, " and ", name.name));
      }
      name_of[port] = &name;
    }
  }
  for (size_t i = 0; i < name_of.size(); ++i) {
    if (name_of[i] == nullptr) continue;
    topology.ports[i].fabric = name_of[i]->name;
    topology.ports[i].fabric_named = true;
  }
  InheritFabrics(topology);
  return absl::OkStatus();
}

}  // namespace kvxfer
