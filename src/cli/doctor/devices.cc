// Checks of RDMA devices: drivers, firmware, physical and virtual functions.

#include <array>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/cli/doctor/doctor.h"
#include "src/transport/host/sysfs_device.h"

namespace kvxfer::cli {
namespace {

// A NIC on the PCI bus without an RDMA device, and the kernel module that creates one.
struct NicWithoutDevice {
  std::string pci;
  std::string module;
};

// The module for a NIC of Mellanox or for an EFA; null for other devices.
const char* RdmaModule(int64_t vendor, int64_t device, int64_t device_class) {
  const bool network = (device_class >> 8) == 0x0200 || (device_class >> 8) == 0x0207;
  if (vendor == 0x15b3 && network) return "mlx5_ib";
  if (vendor == kPciVendorAmazon && device >= 0xefa0 && device <= 0xefaf) return "efa";
  return nullptr;
}

std::vector<NicWithoutDevice> NicsWithoutDevice(const SystemView& view) {
  const std::string bus = "/sys/bus/pci/devices/";
  std::set<std::string> known;
  for (const RdmaDevice& device : view.topology().devices) {
    if (device.pci) known.insert(device.pci->ToString());
  }
  std::vector<NicWithoutDevice> nics;
  for (const std::string& pci : view.files().List(bus)) {
    const auto read = [&](const char* file) {
      return view.files().ReadInt(absl::StrCat(bus, pci, "/", file)).value_or(0);
    };
    const char* module = RdmaModule(read("vendor"), read("device"), read("class"));
    // A virtual function without a device is in use by a pod, or unused.
    const bool virtual_function = !view.files().LinkName(absl::StrCat(bus, pci, "/physfn")).empty();
    if (module == nullptr || virtual_function || known.contains(pci)) continue;
    nics.push_back({.pci = pci, .module = module});
  }
  return nics;
}

Findings Devices(const SystemView& view) {
  const Topology& topology = view.topology();
  const std::vector<NicWithoutDevice> missing = NicsWithoutDevice(view);
  if (!topology.devices.empty()) {
    std::vector<std::string> names;
    for (const RdmaDevice& device : topology.devices) names.push_back(device.name);
    // A pod sees the whole PCI bus of its host, but only its own devices.
    return Ok(absl::StrCat(
        Names(names),
        missing.empty() ? ""
                        : absl::StrCat("; ", missing.size(), " more NICs are not available here")));
  }
  if (missing.empty()) {
    return NotApplicable("no RDMA NIC: transfers between hosts go over tcp");
  }
  std::vector<std::string> pcis;
  pcis.reserve(missing.size());
  for (const NicWithoutDevice& nic : missing) pcis.push_back(nic.pci);
  const std::string module = missing.front().module;
  return Problem(
      absl::StrCat("no RDMA device for ", Names(pcis)),
      "the module " + module +
          " is not loaded, or the pod was not given the devices: transfers go over tcp",
      "modprobe " + module + "; in a pod: request the RDMA resource of the device plugin");
}

Findings Firmware(const SystemView& view) {
  // For each kind of card: its firmware versions, each with its devices.
  std::map<std::string, std::map<std::string, std::vector<std::string>>> versions;
  for (const RdmaDevice& device : view.topology().devices) {
    if (device.firmware.empty() || !device.pci) continue;
    const std::string kind =
        absl::StrFormat("%04x:%04x %s", device.vendor, device.device, device.board);
    versions[kind][device.firmware].push_back(device.name);
  }
  if (versions.empty()) return NotApplicable("no device reports a firmware version");
  Findings bad;
  std::vector<std::string> seen;
  for (const auto& [kind, by_version] : versions) {
    std::vector<std::string> parts;
    for (const auto& [version, names] : by_version) {
      parts.push_back(absl::StrCat(version, " on ", Names(names)));
      seen.push_back(version);
    }
    if (by_version.size() < 2) continue;
    Append(bad, Warning("equal cards, different firmware: " + absl::StrJoin(parts, "; "),
                        "rails may behave differently, which is hard to find later",
                        "mlxfwmanager --online -u -d PCI_ADDRESS, then mlxfwreset"));
  }
  const std::set<std::string> distinct(seen.begin(), seen.end());
  return OrOk(bad, absl::StrJoin(distinct, ", "));
}

// A parent and its virtual function share one port. kvxfer uses that port once; UCX and libfabric
// may use it twice.
Findings Functions(const SystemView& view) {
  const Topology& topology = view.topology();
  size_t physical = 0;
  size_t virtual_ones = 0;
  std::set<std::string> doubled;
  for (const RdmaPort& port : topology.ports) {
    const RdmaDevice& device = topology.DeviceOf(port);
    if (!device.pci) continue;
    ++(device.physical_function ? virtual_ones : physical);
    const RdmaDevice* parent = topology.ParentOf(device);
    if (parent == nullptr || port.state != PortState::kActive || port.lid == 0) continue;
    doubled.insert(parent->name);
  }
  if (physical + virtual_ones == 0) return NotApplicable("no PCI device");
  if (doubled.empty()) {
    return Ok(absl::StrCat(physical, " physical, ", virtual_ones, " virtual functions"));
  }
  const std::vector<std::string> names(doubled.begin(), doubled.end());
  return Warning(absl::StrCat("virtual functions are active beside their parents ", Names(names)),
                 "both share one port: kvxfer uses the parent as its rail, unless the other is "
                 "named; UCX and libfabric count the port twice",
                 "remove the virtual functions, or name the one to use: "
                 "KVXFER_VERBS_DEVICES=" +
                     names.front());
}

// The number in "32.0 GT/s PCIe".
double LinkSpeed(const SystemView& view, const std::string& file) {
  const std::string text = view.files().Read(file).value_or("");
  return std::atof(text.c_str());
}

Findings PciLink(const SystemView& view) {
  Findings bad;
  size_t seen = 0;
  for (const RdmaDevice& device : view.topology().devices) {
    if (!device.pci || device.physical_function) continue;
    const std::string folder = absl::StrCat("/sys/bus/pci/devices/", device.pci->ToString(), "/");
    const double speed = LinkSpeed(view, folder + "current_link_speed");
    const double most = LinkSpeed(view, folder + "max_link_speed");
    const int64_t width = view.files().ReadInt(folder + "current_link_width").value_or(0);
    const int64_t widest = view.files().ReadInt(folder + "max_link_width").value_or(0);
    if (speed == 0 || most == 0 || width == 0 || widest == 0) continue;
    ++seen;
    if (speed >= most && width >= widest) continue;
    Append(bad, Warning(absl::StrFormat("%s: PCIe runs at %.3g GT/s x%d, the card has %.3g x%d",
                                        device.name, speed, width, most, widest),
                        absl::StrFormat("at most %.0f Gb/s reach memory",
                                        speed * static_cast<double>(width)),
                        "lspci -vv -s " + device.pci->ToString() +
                            " (LnkSta); reseat the card, check slot and BIOS"));
  }
  if (seen == 0) return NotApplicable("no device reports its PCIe link");
  return OrOk(bad, absl::StrCat("full speed and width on ", seen, seen == 1 ? " card" : " cards"));
}

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

std::span<const Check> DeviceChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"devices", "/sys/class/infiniband, /sys/bus/pci/devices", &Devices},
      {"firmware", "/sys/class/infiniband/*/fw_ver, board_id", &Firmware},
      {"functions", "/sys/class/infiniband/*/device/physfn", &Functions},
      {"pci-link", "/sys/bus/pci/devices/*/{current,max}_link_{speed,width}", &PciLink},
  });
  return kChecks;
}

std::span<const Check> FabricChecks() {
  static constexpr auto kChecks = std::to_array<Check>({
      {"fabrics", "/sys/class/infiniband/*/ports/*/{gids/0,sm_lid}, --fabric", &Fabrics},
      {"mtu", "/sys/class/net/*/mtu of the ports' netdevs", &Mtus},
  });
  return kChecks;
}

}  // namespace kvxfer::cli
