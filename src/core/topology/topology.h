// What a host is made of, as far as transfers care: NUMA nodes, GPUs, RDMA devices and their ports,
// and how far each is from the others. A plain model; topology_sysfs.h fills it from a sysfs tree,
// rails.h says which ports serve which memory, port_selector.h which ports the user wants.
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

  // "0000:3c:00.0"; domain and function may be left out ("3c:00"). Empty: not an address.
  static std::optional<PciAddress> Parse(std::string_view text);
  std::string ToString() const;  // "0000:3c:00.0"
  auto operator<=>(const PciAddress&) const = default;
};

// Where a device hangs: its host bridge ("pci0000:37"), then every bridge down to the device itself
// ("0000:3c:00.0"). Empty: not a PCI device.
using PciPath = std::vector<std::string>;

// From near to far. What lies between two devices, or between a device and memory of a NUMA node.
enum class DeviceDistance : uint8_t {
  kSwitch,     // a PCIe switch: traffic between them does not reach the CPU
  kRoot,       // one PCIe root complex (host bridge)
  kNode,       // one NUMA node
  kSocket,     // one CPU package, of several NUMA nodes
  kOtherNode,  // the link between CPUs
  kUnknown,    // the kernel does not say where one of them is; no better a choice than the last
};

// The one-word name that `kvxfer topo` prints: "switch", "root", "node", "socket", "far", "?".
const char* ToString(DeviceDistance distance);

struct NumaNode {
  int id = 0;
  std::string cpus{};            // as the kernel writes it, "0-47,96-143"
  uint64_t memory_bytes = 0;     // 0: not told
  std::vector<int> distances{};  // to each node, in the order of `Topology::nodes`; 10: itself
  int package = -1;              // of its CPUs; -1: not told, or it has none
};

struct Gpu {
  PciAddress pci{};
  PciPath path{};
  int numa_node = -1;  // -1: not told
  uint32_t vendor = 0;
  uint32_t device = 0;
};

enum class GidType : uint8_t { kUnknown, kInfiniBand, kRoceV1, kRoceV2 };

struct Gid {
  uint32_t index = 0;  // in the port's table, which has gaps
  std::array<uint8_t, 16> bytes{};
  GidType type = GidType::kUnknown;
  std::string netdev{};  // whose address it is (RoCE)

  // The upper 64 bits, in host order. Of InfiniBand: names the subnet.
  uint64_t SubnetPrefix() const;
  // The lower 64 bits, in host order. Of InfiniBand: the port's GUID.
  uint64_t Guid() const;
  std::string ToString() const;  // as an IPv6 address
};

const char* ToString(GidType type);

// The prefix that subnet managers give where nobody configured one: it does not tell fabrics apart.
inline constexpr uint64_t kDefaultSubnetPrefix = 0xfe80'0000'0000'0000;

enum class PortState : uint8_t { kUnknown, kDown, kInit, kArmed, kActive };
enum class LinkLayer : uint8_t { kUnknown, kInfiniBand, kEthernet, kEfa };

const char* ToString(PortState state);
const char* ToString(LinkLayer layer);  // "InfiniBand", "Ethernet", "EFA", "unknown"

using IpAddress = std::array<uint8_t, 16>;

std::string ToString(const IpAddress& address);  // "10.77.0.5", "fd00::5"

// An IP network that a network device is in.
struct IpSubnet {
  IpAddress address{};         // IPv4 as ::ffff:a.b.c.d
  uint32_t prefix_bits = 128;  // of the 128

  // "10.77.0.0/24", "fd00::/64", or an address alone. Empty: neither.
  static std::optional<IpSubnet> Parse(std::string_view text);
  bool Contains(const IpAddress& other) const;
  std::string ToString() const;
};

struct Netdev {
  std::string name{};
  uint32_t mtu = 0;         // 0: not told
  std::string operstate{};  // "up", "down", ...
  std::string address{};    // hardware address, as the kernel writes it
  std::vector<IpSubnet> subnets{};
  std::vector<IpAddress> addresses{};  // its own, IPv4 as ::ffff:a.b.c.d
};

struct RdmaDevice {
  std::string name{};               // "mlx5_0"; in a pod the number means nothing
  std::optional<PciAddress> pci{};  // empty: a software device (rxe, siw)
  PciPath path{};
  int numa_node = -1;  // -1: not told
  uint32_t vendor = 0;
  uint32_t device = 0;
  std::string driver{};                           // of the PCI device, "mlx5_core"
  std::string firmware{};                         // empty: not told
  std::string board{};                            // the vendor's board id
  std::string node_guid{};                        // as the kernel writes it
  std::optional<PciAddress> physical_function{};  // set: this is a virtual function of that
  // "mlx5_core.sf.2": a sub-function, whose PCI device is another's too. Empty: none.
  std::string subfunction{};
  uint32_t virtual_functions = 0;  // how many of them are switched on
  bool iwarp = false;
  std::string uverbs{};  // its device file below /dev/infiniband, "uverbs3"; empty: not told
  // False: that file is not here. A pod that shares the host's RDMA devices sees all of them in
  // sysfs, and has the files of those that it was given.
  bool given = true;
};

struct RdmaPort {
  size_t device = 0;    // index into Topology::devices
  uint32_t number = 1;  // counted from 1
  PortState state = PortState::kUnknown;
  std::string physical_state{};  // "LinkUp", "Polling", "Disabled", ...
  LinkLayer link = LinkLayer::kUnknown;
  double gbps = 0;     // active rate, 0: not told
  std::string rate{};  // as the kernel writes it, "400 Gb/sec (4X NDR)"
  uint32_t lid = 0;
  uint32_t sm_lid = 0;      // of the subnet manager; 0: there is none
  std::vector<Gid> gids{};  // empty and zero slots are left out
  std::vector<Netdev> netdevs{};
  // Ports in one fabric can reach each other. The user's name for it (NameFabrics), or one made of
  // what the port tells: "ib/fe80::", "eth", "efa".
  std::string fabric{};
  bool fabric_named = false;

  // Of the first GID; 0: there is none.
  uint64_t SubnetPrefix() const { return gids.empty() ? 0 : gids.front().SubnetPrefix(); }
};

struct Topology {
  std::vector<NumaNode> nodes{};      // by id, those with CPUs or memory; at least one
  std::vector<Gpu> gpus{};            // by PCI address, as nvidia-smi counts them
  std::vector<RdmaDevice> devices{};  // by name, numbers in names by value
  std::vector<RdmaPort> ports{};      // by device, then number

  const RdmaDevice& DeviceOf(const RdmaPort& port) const { return devices[port.device]; }
  std::string PortName(const RdmaPort& port) const;  // "mlx5_0:1"
  // The device that `device` is a virtual function or sub-function of, if it is one and its parent
  // is seen here.
  const RdmaDevice* ParentOf(const RdmaDevice& device) const;
};

// What the bytes of a port go over: a port of a card, however many functions of the card use it.
struct Wire {
  PciAddress card{};  // the physical function
  uint32_t port = 1;
  auto operator<=>(const Wire&) const = default;
};

// Empty: a software device, of which no wire is known.
std::optional<Wire> WireOf(const Topology& topology, const RdmaPort& port);

// Where memory of a transfer lives.
struct MemoryPlace {
  enum class Kind : uint8_t { kNode, kGpu } kind = Kind::kNode;
  size_t index = 0;  // into Topology::nodes, ::gpus
};

// A place that does not exist is at an unknown distance.
DeviceDistance DistanceOf(const Topology& topology, const RdmaDevice& nic,
                          const MemoryPlace& place);

// Between two PCI devices: kSwitch, kRoot or, where their paths have nothing in common, kUnknown.
DeviceDistance PciDistance(const PciPath& a, const PciPath& b);

}  // namespace kvxfer

#endif  // KVXFER_CORE_TOPOLOGY_TOPOLOGY_H_
