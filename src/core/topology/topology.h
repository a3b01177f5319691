// The parts of a host that matter for transfers: NUMA nodes, GPUs, RDMA devices and their ports,
// and the distances between them. This is a plain model. topology_sysfs.h fills it from a sysfs
// tree, rails.h decides which ports serve which memory, and port_selector.h which ports the user
// wants.
//
// Thread-safety: plain values.
//
// Example:
//   auto topology = kvxfer::ReadTopology(kvxfer::Sysfs("/"));
//   for (const kvxfer::RdmaPort& port : topology->ports) {
//     std::puts(topology->PortName(port).c_str());   // "mlx5_0:1"
//   }

#ifndef KVXFER_CORE_TOPOLOGY_TOPOLOGY_H_
#define KVXFER_CORE_TOPOLOGY_TOPOLOGY_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvxfer {

struct PciAddress {
  uint32_t domain = 0;
  uint8_t bus = 0;
  uint8_t device = 0;
  uint8_t function = 0;

  // "0000:3c:00.0"; domain and function may be omitted ("3c:00"). nullopt: not an address.
  static std::optional<PciAddress> Parse(std::string_view text);
  std::string ToString() const;  // "0000:3c:00.0"
  auto operator<=>(const PciAddress&) const = default;
};

// The position of a device in the PCI tree: its host bridge ("pci0000:37"), then every bridge down
// to the device itself ("0000:3c:00.0"). Empty: not a PCI device.
using PciPath = std::vector<std::string>;

// What lies between two devices, or between a device and a NUMA node's memory, from near to far.
enum class DeviceDistance : uint8_t {
  kSwitch,     // a PCIe switch: traffic between them does not pass the CPU
  kRoot,       // one PCIe root complex (host bridge)
  kNode,       // one NUMA node
  kSocket,     // one CPU package with several NUMA nodes
  kOtherNode,  // the link between CPU packages
  kUnknown,    // the kernel does not report the location of one of them; treated like kOtherNode
};

// The word that `kvxfer topo` prints: "switch", "root", "node", "socket", "far", "?".
const char* ToString(DeviceDistance distance);

struct NumaNode {
  int id = 0;
  std::string cpus{};         // as the kernel writes it, "0-47,96-143"
  uint64_t memory_bytes = 0;  // 0: not reported
  // SLIT distance to each node, in the order of `Topology::nodes`; 10 is the node itself
  std::vector<int> distances{};
  int package = -1;  // of its CPUs; -1: not reported, or no CPUs
};

struct Gpu {
  PciAddress pci{};
  PciPath path{};
  int numa_node = -1;  // -1: not reported
  uint32_t vendor = 0;
  uint32_t device = 0;
};

enum class GidType : uint8_t { kUnknown, kInfiniBand, kRoceV1, kRoceV2 };

struct Gid {
  uint32_t index = 0;  // in the port's GID table, which has gaps
  std::array<uint8_t, 16> bytes{};
  GidType type = GidType::kUnknown;
  std::string netdev{};  // the netdev that has this address (RoCE)

  // The upper 64 bits, in host byte order. On InfiniBand: identifies the subnet.
  uint64_t SubnetPrefix() const;
  // The lower 64 bits, in host byte order. On InfiniBand: the port's GUID.
  uint64_t Guid() const;
  std::string ToString() const;  // as an IPv6 address
};

const char* ToString(GidType type);

// The prefix of subnets where nobody configured one; it does not distinguish fabrics.
inline constexpr uint64_t kDefaultSubnetPrefix = 0xfe80'0000'0000'0000;

enum class PortState : uint8_t { kUnknown, kDown, kInit, kArmed, kActive };
enum class LinkLayer : uint8_t { kUnknown, kInfiniBand, kEthernet, kEfa };

const char* ToString(PortState state);
const char* ToString(LinkLayer layer);  // "InfiniBand", "Ethernet", "EFA", "unknown"

using IpAddress = std::array<uint8_t, 16>;

std::string ToString(const IpAddress& address);  // "10.77.0.5", "fd00::5"

// An IP network that a netdev belongs to.
struct IpSubnet {
  IpAddress address{};         // IPv4 as ::ffff:a.b.c.d
  uint32_t prefix_bits = 128;  // counted over all 128 bits

  // "10.77.0.0/24", "fd00::/64", or a single address. nullopt: neither.
  static std::optional<IpSubnet> Parse(std::string_view text);
  bool Contains(const IpAddress& other) const;
  std::string ToString() const;
};

struct Netdev {
  std::string name{};
  uint32_t mtu = 0;         // 0: not reported
  std::string operstate{};  // "up", "down", ...
  std::string address{};    // hardware address, as the kernel prints it
  std::vector<IpSubnet> subnets{};
  std::vector<IpAddress> addresses{};  // its own addresses, IPv4 as ::ffff:a.b.c.d
};

struct RdmaDevice {
  std::string name{};               // "mlx5_0"; in a pod the number has no meaning
  std::optional<PciAddress> pci{};  // empty: a software device (rxe, siw)
  PciPath path{};
  int numa_node = -1;  // -1: not reported
  uint32_t vendor = 0;
  uint32_t device = 0;
  std::string driver{};     // of the PCI device, "mlx5_core"
  std::string firmware{};   // empty: not reported
  std::string board{};      // the vendor's board id
  std::string node_guid{};  // as the kernel prints it
  // set: the device is a virtual function of this one
  std::optional<PciAddress> physical_function{};
  // "mlx5_core.sf.2": the device is a sub-function and shares its PCI device. Empty: it is not.
  std::string subfunction{};
  uint32_t virtual_functions = 0;  // number of enabled virtual functions
  bool iwarp = false;
  std::string uverbs{};  // device file below /dev/infiniband, "uverbs3"; empty: not reported
  // False: the device file does not exist here. A pod that shares the host's RDMA devices sees all
  // of them in sysfs, but has only the device files that it was given.
  bool given = true;
};

struct RdmaPort {
  size_t device = 0;    // index into Topology::devices
  uint32_t number = 1;  // counted from 1
  PortState state = PortState::kUnknown;
  std::string physical_state{};  // "LinkUp", "Polling", "Disabled", ...
  LinkLayer link = LinkLayer::kUnknown;
  double gbps = 0;     // active rate; 0: not reported
  std::string rate{};  // as the kernel prints it, "400 Gb/sec (4X NDR)"
  uint32_t lid = 0;
  uint32_t sm_lid = 0;      // the subnet manager's LID; 0: there is none
  std::vector<Gid> gids{};  // without empty and all-zero entries
  std::vector<Netdev> netdevs{};
  // Ports in one fabric can reach each other. The user's name for the fabric (NameFabrics), or a
  // name derived from what the port reports: "ib/fe80::", "eth", "efa".
  std::string fabric{};
  bool fabric_named = false;

  // The subnet prefix of the first GID; 0: there is no GID.
  uint64_t SubnetPrefix() const { return gids.empty() ? 0 : gids.front().SubnetPrefix(); }
};

struct Topology {
  std::vector<NumaNode> nodes{};      // nodes with CPUs or memory, by id; at least one
  std::vector<Gpu> gpus{};            // by PCI address, in nvidia-smi's order
  std::vector<RdmaDevice> devices{};  // by name; numbers in names are compared as numbers
  std::vector<RdmaPort> ports{};      // by device, then by port number

  const RdmaDevice& DeviceOf(const RdmaPort& port) const { return devices[port.device]; }
  std::string PortName(const RdmaPort& port) const;  // "mlx5_0:1"
  // The device that `device` is a virtual function or sub-function of. Null: it is neither, or its
  // parent is not visible here.
  const RdmaDevice* ParentOf(const RdmaDevice& device) const;
};

// The physical port that carries a port's bytes. Several functions of a card may share it.
struct Wire {
  PciAddress card{};  // the physical function
  uint32_t port = 1;
  auto operator<=>(const Wire&) const = default;
};

// nullopt: a software device, whose wire is unknown.
std::optional<Wire> WireOf(const Topology& topology, const RdmaPort& port);

// The location of a transfer's memory.
struct MemoryPlace {
  enum class Kind : uint8_t { kNode, kGpu } kind = Kind::kNode;
  size_t index = 0;  // index into Topology::nodes or ::gpus
};

// kUnknown for a place that does not exist.
DeviceDistance DistanceOf(const Topology& topology, const RdmaDevice& nic,
                          const MemoryPlace& place);

// The distance of two PCI devices: kSwitch, kRoot, or kUnknown if their paths have nothing in
// common.
DeviceDistance PciDistance(const PciPath& a, const PciPath& b);

}  // namespace kvxfer

#endif  // KVXFER_CORE_TOPOLOGY_TOPOLOGY_H_
