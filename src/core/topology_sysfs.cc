#include "src/core/topology_sysfs.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "src/core/strings.h"

namespace kvxfer {
namespace {

constexpr std::string_view kNodes = "/sys/devices/system/node";
constexpr std::string_view kPci = "/sys/bus/pci/devices";
constexpr std::string_view kRdma = "/sys/class/infiniband";
constexpr std::string_view kNet = "/sys/class/net";

constexpr uint32_t kAmazon = 0x1d0f;
constexpr uint32_t kNvidiaGpu = 0x10de;
constexpr uint32_t kAmdGpu = 0x1002;

std::string Join(std::string_view folder, std::string_view name) {
  return absl::StrCat(ToAbsl(folder), "/", ToAbsl(name));
}

uint32_t ReadUint(const Sysfs& sysfs, const std::string& path) {
  return static_cast<uint32_t>(sysfs.ReadInt(path).value_or(0));
}

// "0000:3c:00.0" and every bridge above it, of
// ".../devices/pci0000:37/0000:37:01.0/0000:3c:00.0/x".
PciPath PciPathOf(const std::string& resolved) {
  PciPath path;
  for (const absl::string_view part : absl::StrSplit(resolved, '/', absl::SkipEmpty())) {
    const bool bridge = path.empty() && ToStd(part).starts_with("pci");
    const bool device = !path.empty() && PciAddress::Parse(ToStd(part)).has_value();
    if (bridge || device) path.emplace_back(part.data(), part.size());
    if (!path.empty() && !bridge && !device) break;
  }
  return path.size() < 2 ? PciPath() : path;
}

// Of a device where the kernel says none (-1) and there is only one, that one.
int NumaNodeOf(const Sysfs& sysfs, const std::string& device, const std::vector<NumaNode>& nodes) {
  const auto node = static_cast<int>(sysfs.ReadInt(Join(device, "numa_node")).value_or(-1));
  return node < 0 && nodes.size() == 1 ? nodes[0].id : node;
}

std::vector<NumaNode> ReadNodes(const Sysfs& sysfs) {
  std::vector<NumaNode> nodes;
  for (const std::string& name : sysfs.List(kNodes)) {
    NumaNode node;
    if (!name.starts_with("node") || !absl::SimpleAtoi(name.substr(4), &node.id)) continue;
    const std::string folder = Join(kNodes, name);
    node.cpus = sysfs.Read(Join(folder, "cpulist")).value_or("");
    for (const absl::string_view part : absl::StrSplit(
             sysfs.Read(Join(folder, "distance")).value_or(""), ' ', absl::SkipEmpty())) {
      int distance = 0;
      if (absl::SimpleAtoi(part, &distance)) node.distances.push_back(distance);
    }
    // "Node 0 MemTotal:  1056507832 kB"
    const std::string memory = sysfs.Read(Join(folder, "meminfo")).value_or("");
    if (const size_t at = memory.find("MemTotal:"); at != std::string::npos) {
      const std::vector<std::string> words =
          absl::StrSplit(memory.substr(at), absl::ByAnyChar(" \n"), absl::SkipEmpty());
      uint64_t kib = 0;
      if (words.size() > 1 && absl::SimpleAtoi(words[1], &kib)) node.memory_bytes = kib * 1024;
    }
    nodes.push_back(std::move(node));
  }
  if (nodes.empty()) nodes.emplace_back();
  return nodes;
}

// 3D controllers, NVIDIA's display controllers, AMD's processing accelerators.
bool IsGpu(uint32_t vendor, uint32_t device_class) {
  const uint32_t kind = device_class >> 8;
  return kind == 0x0302 || (vendor == kNvidiaGpu && kind == 0x0300) ||
         (vendor == kAmdGpu && kind == 0x1200);
}

std::vector<Gpu> ReadGpus(const Sysfs& sysfs, const std::vector<NumaNode>& nodes) {
  std::vector<Gpu> gpus;
  for (const std::string& name : sysfs.List(kPci)) {
    const std::string folder = Join(kPci, name);
    const std::optional<PciAddress> pci = PciAddress::Parse(name);
    const uint32_t vendor = ReadUint(sysfs, Join(folder, "vendor"));
    if (!pci || !IsGpu(vendor, ReadUint(sysfs, Join(folder, "class")))) continue;
    gpus.push_back({.pci = *pci,
                    .path = PciPathOf(sysfs.Resolve(folder)),
                    .numa_node = NumaNodeOf(sysfs, folder, nodes),
                    .vendor = vendor,
                    .device = ReadUint(sysfs, Join(folder, "device"))});
  }
  std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) { return a.pci < b.pci; });
  return gpus;
}

RdmaDevice ReadDevice(const Sysfs& sysfs, const std::string& name,
                      const std::vector<NumaNode>& nodes) {
  const std::string folder = Join(kRdma, name);
  const std::string pci = Join(folder, "device");
  RdmaDevice device{.name = name};
  device.path = PciPathOf(sysfs.Resolve(pci));
  if (!device.path.empty()) device.pci = PciAddress::Parse(device.path.back());
  device.numa_node = NumaNodeOf(sysfs, pci, nodes);
  device.vendor = ReadUint(sysfs, Join(pci, "vendor"));
  device.device = ReadUint(sysfs, Join(pci, "device"));
  device.driver = sysfs.LinkName(Join(pci, "driver"));
  device.firmware = sysfs.Read(Join(folder, "fw_ver")).value_or("");
  device.board = sysfs.Read(Join(folder, "board_id")).value_or("");
  device.node_guid = sysfs.Read(Join(folder, "node_guid")).value_or("");
  device.physical_function = PciAddress::Parse(sysfs.LinkName(Join(pci, "physfn")));
  device.virtual_functions = ReadUint(sysfs, Join(pci, "sriov_numvfs"));
  return device;
}

// The networks that routing tables call directly connected, by network device.
using Subnets = std::map<std::string, std::vector<IpSubnet>>;

// /proc/net/route: name, destination, gateway, ..., mask; addresses as the CPU loads them.
void ReadV4Subnets(const Sysfs& sysfs, Subnets& subnets) {
  const std::string table = sysfs.Read("/proc/net/route").value_or("");
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
    uint32_t destination = 0;
    uint32_t gateway = 0;
    uint32_t mask = 0;
    if (fields.size() < 8 || !absl::SimpleHexAtoi(fields[1], &destination) ||
        !absl::SimpleHexAtoi(fields[2], &gateway) || !absl::SimpleHexAtoi(fields[7], &mask) ||
        gateway != 0 || mask == 0) {
      continue;
    }
    IpSubnet subnet;
    subnet.address[10] = subnet.address[11] = 0xff;
    std::memcpy(subnet.address.data() + 12, &destination, 4);
    subnet.prefix_bits = 96 + static_cast<uint32_t>(__builtin_popcount(mask));
    subnets[fields[0]].push_back(subnet);
  }
}

// /proc/net/if_inet6: address, interface index, prefix bits, scope, flags (hexadecimal), name.
// Link-local addresses, which every device has, tell nothing.
void ReadV6Subnets(const Sysfs& sysfs, Subnets& subnets) {
  const std::string table = sysfs.Read("/proc/net/if_inet6").value_or("");
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    IpSubnet subnet;
    if (fields.size() < 6 || fields[0].size() != 32 || fields[3] == "20" ||
        !absl::SimpleHexAtoi(fields[2], &subnet.prefix_bits) || subnet.prefix_bits > 128) {
      continue;
    }
    for (size_t i = 0; i < 16; ++i) {
      uint32_t byte = 0;
      if (!absl::SimpleHexAtoi(fields[0].substr(2 * i, 2), &byte)) byte = 0;
      subnet.address[i] = static_cast<uint8_t>(byte);
    }
    subnets[fields[5]].push_back(subnet);
  }
}

Netdev ReadNetdev(const Sysfs& sysfs, const std::string& name, const Subnets& subnets) {
  const std::string folder = Join(kNet, name);
  const auto known = subnets.find(name);
  return {.name = name,
          .mtu = ReadUint(sysfs, Join(folder, "mtu")),
          .operstate = sysfs.Read(Join(folder, "operstate")).value_or(""),
          .address = sysfs.Read(Join(folder, "address")).value_or(""),
          .subnets = known == subnets.end() ? std::vector<IpSubnet>() : known->second};
}

// "4: ACTIVE"
PortState StateOf(std::string_view text) {
  if (text.ends_with("ACTIVE") || text.ends_with("ACTIVE_DEFER")) return PortState::kActive;
  if (text.ends_with("ARMED")) return PortState::kArmed;
  if (text.ends_with("INIT")) return PortState::kInit;
  if (text.ends_with("DOWN")) return PortState::kDown;
  return PortState::kUnknown;
}

LinkLayer LinkOf(std::string_view text, const RdmaDevice& device) {
  if (device.vendor == kAmazon || device.driver == "efa") return LinkLayer::kEfa;
  if (text == "InfiniBand") return LinkLayer::kInfiniBand;
  return text == "Ethernet" ? LinkLayer::kEthernet : LinkLayer::kUnknown;
}

GidType GidTypeOf(std::string_view text) {
  if (text == "RoCE v2") return GidType::kRoceV2;
  // What the kernel writes for RoCE v1 is the same word as for InfiniBand; the port tells.
  return text == "IB/RoCE v1" ? GidType::kInfiniBand : GidType::kUnknown;
}

std::vector<Gid> ReadGids(const Sysfs& sysfs, const std::string& folder, LinkLayer link) {
  std::vector<Gid> gids;
  for (const std::string& name : sysfs.List(Join(folder, "gids"))) {
    Gid gid;
    const std::string text = sysfs.Read(Join(Join(folder, "gids"), name)).value_or("");
    if (!absl::SimpleAtoi(name, &gid.index) ||
        inet_pton(AF_INET6, text.c_str(), gid.bytes.data()) != 1) {
      continue;
    }
    // An InfiniBand port without a GUID has a GID of a prefix alone: kept, for it tells of a fault.
    if (gid.Guid() == 0 && (link != LinkLayer::kInfiniBand || gid.index != 0)) continue;
    const std::string attributes = Join(folder, "gid_attrs");
    gid.type = GidTypeOf(sysfs.Read(Join(Join(attributes, "types"), name)).value_or(""));
    if (gid.type == GidType::kInfiniBand && link == LinkLayer::kEthernet) {
      gid.type = GidType::kRoceV1;
    }
    gid.netdev = sysfs.Read(Join(Join(attributes, "ndevs"), name)).value_or("");
    gids.push_back(std::move(gid));
  }
  return gids;
}

// Those below the PCI device that say they are of this port; else those that the GIDs name; else,
// of a software device, its parent.
std::vector<std::string> NetdevNames(const Sysfs& sysfs, const std::string& device,
                                     const RdmaPort& port) {
  std::vector<std::string> names;
  const std::string below = Join(device, "device/net");
  for (const std::string& name : sysfs.List(below)) {
    const auto dev_port = sysfs.ReadInt(Join(Join(below, name), "dev_port")).value_or(0);
    const auto dev_id = sysfs.ReadInt(Join(Join(below, name), "dev_id")).value_or(0);
    if (std::max(dev_port, dev_id) + 1 == port.number) names.push_back(name);
  }
  for (const Gid& gid : port.gids) {
    if (gid.netdev.empty()) continue;
    if (std::find(names.begin(), names.end(), gid.netdev) == names.end()) {
      names.push_back(gid.netdev);
    }
  }
  if (!names.empty()) return names;
  if (const auto parent = sysfs.Read(Join(device, "parent"))) names.push_back(*parent);
  return names;
}

RdmaPort ReadPort(const Sysfs& sysfs, const Topology& topology, size_t device,
                  const std::string& number, const Subnets& subnets) {
  const RdmaDevice& owner = topology.devices[device];
  const std::string rdma = Join(kRdma, owner.name);
  const std::string folder = Join(Join(rdma, "ports"), number);
  RdmaPort port{.device = device};
  if (!absl::SimpleAtoi(number, &port.number)) port.number = 0;
  port.state = StateOf(sysfs.Read(Join(folder, "state")).value_or(""));
  const std::string physical = sysfs.Read(Join(folder, "phys_state")).value_or("");  // "5: LinkUp"
  const size_t colon = physical.find(": ");
  port.physical_state = colon == std::string::npos ? physical : physical.substr(colon + 2);
  port.link = LinkOf(sysfs.Read(Join(folder, "link_layer")).value_or(""), owner);
  port.rate = sysfs.Read(Join(folder, "rate")).value_or("");
  if (!absl::SimpleAtod(port.rate.substr(0, port.rate.find(' ')), &port.gbps)) port.gbps = 0;
  port.lid = ReadUint(sysfs, Join(folder, "lid"));
  port.sm_lid = ReadUint(sysfs, Join(folder, "sm_lid"));
  port.gids = ReadGids(sysfs, folder, port.link);
  for (const std::string& name : NetdevNames(sysfs, rdma, port)) {
    port.netdevs.push_back(ReadNetdev(sysfs, name, subnets));
  }
  port.fabric = FabricHintOf(port);
  return port;
}

}  // namespace

std::string FabricHintOf(const RdmaPort& port) {
  switch (port.link) {
    case LinkLayer::kInfiniBand: {
      if (port.gids.empty()) return "ib";
      Gid prefix = port.gids.front();
      std::fill(prefix.bytes.begin() + 8, prefix.bytes.end(), uint8_t{0});
      return absl::StrCat("ib/", prefix.ToString());
    }
    case LinkLayer::kEthernet:
      return "eth";
    case LinkLayer::kEfa:
      return "efa";
    case LinkLayer::kUnknown:
      break;
  }
  return "?";
}

absl::StatusOr<Topology> ReadTopology(const Sysfs& sysfs) {
  if (absl::Status s = sysfs.Check(); !s.ok()) return s;
  Topology topology;
  topology.nodes = ReadNodes(sysfs);
  topology.gpus = ReadGpus(sysfs, topology.nodes);
  Subnets subnets;
  ReadV4Subnets(sysfs, subnets);
  ReadV6Subnets(sysfs, subnets);
  for (const std::string& name : sysfs.List(kRdma)) {
    topology.devices.push_back(ReadDevice(sysfs, name, topology.nodes));
    const size_t device = topology.devices.size() - 1;
    for (const std::string& number : sysfs.List(Join(Join(kRdma, name), "ports"))) {
      topology.ports.push_back(ReadPort(sysfs, topology, device, number, subnets));
    }
  }
  return topology;
}

}  // namespace kvxfer
