#include "src/transport/host/topology_sysfs.h"

#include <arpa/inet.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "src/core/base/strings.h"
#include "src/transport/host/sysfs_device.h"
#include "src/transport/host/topology_netdevs.h"

namespace kvxfer {
namespace {

constexpr std::string_view kNodes = "/sys/devices/system/node";
constexpr std::string_view kRdma = "/sys/class/infiniband";
constexpr std::string_view kUverbs = "/sys/class/infiniband_verbs";
constexpr std::string_view kDeviceFiles = "/dev/infiniband";

constexpr uint32_t kNvidiaGpu = 0x10de;
constexpr uint32_t kAmdGpu = 0x1002;

// The node of a device; if the kernel reports none (-1) and the host has only one node, that node.
int NumaNodeOf(const Sysfs& sysfs, const std::string& device, const std::vector<NumaNode>& nodes) {
  const auto node = static_cast<int>(sysfs.ReadInt(SysfsPath(device, "numa_node")).value_or(-1));
  return node < 0 && nodes.size() == 1 ? nodes[0].id : node;
}

// The package of the first CPU in a list such as "48-95,144-191".
int PackageOf(const Sysfs& sysfs, const std::string& cpus) {
  const std::string first = cpus.substr(0, cpus.find_first_of(",-"));
  if (first.empty()) return -1;
  const std::string file =
      absl::StrCat("/sys/devices/system/cpu/cpu", first, "/topology/physical_package_id");
  return static_cast<int>(sysfs.ReadInt(file).value_or(-1));
}

// Removes the nodes that report neither CPUs nor memory; some GPUs add dozens of them. The
// distances are given in the order of all nodes, so the removed nodes' entries go too.
void DropEmptyNodes(const std::vector<bool>& empty, std::vector<NumaNode>& nodes) {
  std::vector<NumaNode> kept;
  for (size_t i = 0; i < nodes.size(); ++i) {
    if (empty[i]) continue;
    std::vector<int> distances;
    for (size_t j = 0; j < nodes[i].distances.size(); ++j) {
      if (j >= empty.size() || !empty[j]) distances.push_back(nodes[i].distances[j]);
    }
    nodes[i].distances = std::move(distances);
    kept.push_back(std::move(nodes[i]));
  }
  nodes = std::move(kept);
}

std::vector<NumaNode> ReadNodes(const Sysfs& sysfs) {
  std::vector<NumaNode> nodes;
  std::vector<bool> empty;
  for (const std::string& name : sysfs.List(kNodes)) {
    NumaNode node;
    if (!name.starts_with("node") || !absl::SimpleAtoi(name.substr(4), &node.id)) continue;
    const std::string folder = SysfsPath(kNodes, name);
    const std::optional<std::string> cpus = sysfs.Read(SysfsPath(folder, "cpulist"));
    node.cpus = cpus.value_or("");
    node.package = PackageOf(sysfs, node.cpus);
    bool has_nothing = false;
    for (const absl::string_view part : absl::StrSplit(
             sysfs.Read(SysfsPath(folder, "distance")).value_or(""), ' ', absl::SkipEmpty())) {
      int distance = 0;
      if (absl::SimpleAtoi(part, &distance)) node.distances.push_back(distance);
    }
    // "Node 0 MemTotal:  1056507832 kB"
    const std::string memory = sysfs.Read(SysfsPath(folder, "meminfo")).value_or("");
    if (const size_t at = memory.find("MemTotal:"); at != std::string::npos) {
      const std::vector<std::string> words =
          absl::StrSplit(memory.substr(at), absl::ByAnyChar(" \n"), absl::SkipEmpty());
      uint64_t kib = 0;
      if (words.size() > 1 && absl::SimpleAtoi(words[1], &kib)) {
        node.memory_bytes = kib * 1024;
        has_nothing = kib == 0 && cpus && cpus->empty();
      }
    }
    nodes.push_back(std::move(node));
    empty.push_back(has_nothing);
  }
  DropEmptyNodes(empty, nodes);
  // A host without NUMA files is one node.
  if (nodes.empty()) nodes.emplace_back();
  return nodes;
}

// 3D controllers, NVIDIA's display controllers, AMD's processing accelerators, and the class "other
// display controller" that AMD's Instinct cards report.
bool IsGpu(uint32_t vendor, uint32_t device_class) {
  const uint32_t kind = device_class >> 8;
  return kind == 0x0302 || (vendor == kNvidiaGpu && kind == 0x0300) ||
         (vendor == kAmdGpu && (kind == 0x1200 || kind == 0x0380));
}

std::vector<Gpu> ReadGpus(const Sysfs& sysfs, const std::vector<NumaNode>& nodes) {
  std::vector<Gpu> gpus;
  for (const std::string& name : sysfs.List(kPciDevices)) {
    const std::string folder = SysfsPath(kPciDevices, name);
    const std::optional<PciAddress> pci = PciAddress::Parse(name);
    const uint32_t vendor = ReadSysfsUint(sysfs, SysfsPath(folder, "vendor"));
    if (!pci || !IsGpu(vendor, ReadSysfsUint(sysfs, SysfsPath(folder, "class")))) continue;
    // A virtual GPU (vGPU) belongs to a guest.
    if (!sysfs.LinkName(SysfsPath(folder, "physfn")).empty()) continue;
    gpus.push_back({.pci = *pci,
                    .path = PciPathOf(sysfs.Resolve(folder)),
                    .numa_node = NumaNodeOf(sysfs, folder, nodes),
                    .vendor = vendor,
                    .device = ReadSysfsUint(sysfs, SysfsPath(folder, "device"))});
  }
  std::sort(gpus.begin(), gpus.end(), [](const Gpu& a, const Gpu& b) { return a.pci < b.pci; });
  return gpus;
}

// The device file of each RDMA device.
std::map<std::string, std::string> ReadUverbs(const Sysfs& sysfs) {
  std::map<std::string, std::string> uverbs;
  for (const std::string& name : sysfs.List(kUverbs)) {
    const auto device = sysfs.Read(SysfsPath(SysfsPath(kUverbs, name), "ibdev"));
    if (device) uverbs[*device] = name;
  }
  return uverbs;
}

// Copied trees and made-up hosts without that folder say nothing about device files.
bool IsGiven(const Sysfs& sysfs, const std::string& uverbs) {
  if (uverbs.empty() || (!sysfs.root().empty() && !sysfs.Exists(kDeviceFiles))) return true;
  return sysfs.Exists(SysfsPath(kDeviceFiles, uverbs));
}

RdmaDevice ReadDevice(const Sysfs& sysfs, const std::string& name,
                      const std::vector<NumaNode>& nodes, const NetdevReader& netdevs) {
  const std::string folder = SysfsPath(kRdma, name);
  const std::string link = SysfsPath(folder, "device");
  const std::string pci = DeviceFolder(sysfs, link);
  RdmaDevice device{.name = name};
  const std::string resolved = sysfs.Resolve(link);
  device.path = PciPathOf(resolved);
  if (!device.path.empty()) {
    device.pci = PciAddress::Parse(device.path.back());
    // The link of a sub-function leads to its auxiliary device, below the PCI device.
    const std::string own = resolved.substr(resolved.rfind('/') + 1);
    if (own.find(".sf.") != std::string::npos) device.subfunction = own;
  }
  device.numa_node = NumaNodeOf(sysfs, pci, nodes);
  // A software device (rxe, siw) is on the node of its netdev.
  if (const auto parent = sysfs.Read(SysfsPath(folder, "parent")); parent && device.numa_node < 0) {
    device.numa_node = netdevs.NodeOf(*parent);
  }
  device.vendor = ReadSysfsUint(sysfs, SysfsPath(pci, "vendor"));
  device.device = ReadSysfsUint(sysfs, SysfsPath(pci, "device"));
  device.driver = sysfs.LinkName(SysfsPath(pci, "driver"));
  device.iwarp = sysfs.Read(SysfsPath(folder, "node_type")).value_or("").ends_with("RNIC");
  device.firmware = sysfs.Read(SysfsPath(folder, "fw_ver")).value_or("");
  device.board = sysfs.Read(SysfsPath(folder, "board_id")).value_or("");
  device.node_guid = sysfs.Read(SysfsPath(folder, "node_guid")).value_or("");
  device.physical_function = PciAddress::Parse(sysfs.LinkName(SysfsPath(pci, "physfn")));
  device.virtual_functions = ReadSysfsUint(sysfs, SysfsPath(pci, "sriov_numvfs"));
  return device;
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
  if (device.vendor == kPciVendorAmazon || device.driver == "efa") return LinkLayer::kEfa;
  if (text == "InfiniBand") return LinkLayer::kInfiniBand;
  return text == "Ethernet" ? LinkLayer::kEthernet : LinkLayer::kUnknown;
}

GidType GidTypeOf(std::string_view text) {
  if (text == "RoCE v2") return GidType::kRoceV2;
  // The kernel writes the same word for InfiniBand and RoCE v1; the port's link layer decides.
  return text == "IB/RoCE v1" ? GidType::kInfiniBand : GidType::kUnknown;
}

std::vector<Gid> ReadGids(const Sysfs& sysfs, const std::string& folder, LinkLayer link) {
  std::vector<Gid> gids;
  for (const std::string& name : sysfs.List(SysfsPath(folder, "gids"))) {
    Gid gid;
    const std::string text = sysfs.Read(SysfsPath(SysfsPath(folder, "gids"), name)).value_or("");
    if (!absl::SimpleAtoi(name, &gid.index) ||
        inet_pton(AF_INET6, text.c_str(), gid.bytes.data()) != 1) {
      continue;
    }
    // An InfiniBand port without a GUID has a GID that consists of the prefix. It is kept, because
    // it shows a fault.
    if (gid.Guid() == 0 && (link != LinkLayer::kInfiniBand || gid.index != 0)) continue;
    const std::string attributes = SysfsPath(folder, "gid_attrs");
    gid.type = GidTypeOf(sysfs.Read(SysfsPath(SysfsPath(attributes, "types"), name)).value_or(""));
    if (gid.type == GidType::kInfiniBand && link == LinkLayer::kEthernet) {
      gid.type = GidType::kRoceV1;
    }
    gid.netdev = sysfs.Read(SysfsPath(SysfsPath(attributes, "ndevs"), name)).value_or("");
    gids.push_back(std::move(gid));
  }
  return gids;
}

// The netdevs of a port: those below the PCI device that report this port; those that the GIDs
// name; or else, for a software device, its parent. A GID may name a netdev of another network
// namespace (the host's, if a pod sees the host's RDMA devices), and a different netdev here may
// have that name. So a netdev is accepted only if it is above the device or has the GID's address.
std::vector<std::string> NetdevNames(const Sysfs& sysfs, const std::string& device,
                                     const RdmaPort& port, const NetdevReader& netdevs) {
  const std::string parent = sysfs.Read(SysfsPath(device, "parent")).value_or("");
  const std::string hardware = sysfs.Resolve(SysfsPath(device, "device"));
  const std::string& ground = hardware.empty() ? parent : hardware;
  std::vector<std::string> names;
  const std::string below = SysfsPath(device, "device/net");
  for (const std::string& name : sysfs.List(below)) {
    // The driver decides which of the two files names the port.
    const auto dev_port = sysfs.ReadInt(SysfsPath(SysfsPath(below, name), "dev_port")).value_or(0);
    const auto dev_id = sysfs.ReadInt(SysfsPath(SysfsPath(below, name), "dev_id")).value_or(0);
    if (std::max(dev_port, dev_id) + 1 == port.number) names.push_back(name);
  }
  for (const Gid& gid : port.gids) {
    if (gid.netdev.empty()) continue;
    if (!netdevs.StandsOn(gid.netdev, ground) && !netdevs.HasAddress(gid.netdev, gid.bytes)) {
      continue;
    }
    if (std::find(names.begin(), names.end(), gid.netdev) == names.end()) {
      names.push_back(gid.netdev);
    }
  }
  if (names.empty() && !parent.empty()) names.push_back(parent);
  return names;
}

RdmaPort ReadPort(const Sysfs& sysfs, const Topology& topology, size_t device,
                  const std::string& number, const NetdevReader& netdevs) {
  const RdmaDevice& owner = topology.devices[device];
  const std::string rdma = SysfsPath(kRdma, owner.name);
  const std::string folder = SysfsPath(SysfsPath(rdma, "ports"), number);
  RdmaPort port{.device = device};
  if (!absl::SimpleAtoi(number, &port.number)) port.number = 0;
  port.state = StateOf(sysfs.Read(SysfsPath(folder, "state")).value_or(""));
  const std::string physical =
      sysfs.Read(SysfsPath(folder, "phys_state")).value_or("");  // "5: LinkUp"
  const size_t colon = physical.find(": ");
  port.physical_state = colon == std::string::npos ? physical : physical.substr(colon + 2);
  port.link = LinkOf(sysfs.Read(SysfsPath(folder, "link_layer")).value_or(""), owner);
  port.rate = sysfs.Read(SysfsPath(folder, "rate")).value_or("");
  if (!absl::SimpleAtod(port.rate.substr(0, port.rate.find(' ')), &port.gbps)) port.gbps = 0;
  port.lid = ReadSysfsUint(sysfs, SysfsPath(folder, "lid"));
  port.sm_lid = ReadSysfsUint(sysfs, SysfsPath(folder, "sm_lid"));
  port.gids = ReadGids(sysfs, folder, port.link);
  for (const std::string& name : NetdevNames(sysfs, rdma, port, netdevs)) {
    port.netdevs.push_back(netdevs.Read(name));
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
  const NetdevReader netdevs(sysfs);
  std::map<std::string, std::string> uverbs = ReadUverbs(sysfs);
  for (const std::string& name : sysfs.List(kRdma)) {
    topology.devices.push_back(ReadDevice(sysfs, name, topology.nodes, netdevs));
    const size_t device = topology.devices.size() - 1;
    topology.devices[device].uverbs = uverbs[name];
    topology.devices[device].given = IsGiven(sysfs, uverbs[name]);
    for (const std::string& number : sysfs.List(SysfsPath(SysfsPath(kRdma, name), "ports"))) {
      topology.ports.push_back(ReadPort(sysfs, topology, device, number, netdevs));
    }
  }
  return topology;
}

}  // namespace kvxfer
