#include "src/core/topology/topology.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <algorithm>
#include <charconv>
#include <cstring>

#include "absl/strings/str_format.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

uint64_t LoadBig(const uint8_t* bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < 8; ++i) value = (value << 8) | bytes[i];
  return value;
}

// One field of a PCI address: hexadecimal, the whole of `text`, at most `max`.
std::optional<uint32_t> HexField(std::string_view text, uint32_t max) {
  uint32_t value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value, 16);
  if (text.empty() || error != std::errc() || rest != end || value > max) return std::nullopt;
  return value;
}

constexpr std::array<uint8_t, 12> kMappedV4 = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool IsMappedV4(const std::array<uint8_t, 16>& address) {
  return std::equal(kMappedV4.begin(), kMappedV4.end(), address.begin());
}

std::string AddressText(const std::array<uint8_t, 16>& address, bool v4) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? 12 : 0), text.data(), text.size());
  return text.data();
}

}  // namespace

std::optional<PciAddress> PciAddress::Parse(std::string_view text) {
  std::string_view function = "0";
  if (const size_t dot = text.find('.'); dot != std::string_view::npos) {
    function = text.substr(dot + 1);
    text = text.substr(0, dot);
  }
  std::string_view domain = "0";
  const size_t last = text.rfind(':');
  if (last == std::string_view::npos) return std::nullopt;
  std::string_view bus = text.substr(0, last);
  if (const size_t first = bus.find(':'); first != std::string_view::npos) {
    domain = bus.substr(0, first);
    bus = bus.substr(first + 1);
  }
  const auto d = HexField(domain, 0xffffffff);
  const auto b = HexField(bus, 0xff);
  const auto s = HexField(text.substr(last + 1), 0x1f);
  const auto f = HexField(function, 7);
  if (!d || !b || !s || !f) return std::nullopt;
  return PciAddress{.domain = *d,
                    .bus = static_cast<uint8_t>(*b),
                    .device = static_cast<uint8_t>(*s),
                    .function = static_cast<uint8_t>(*f)};
}

std::string PciAddress::ToString() const {
  return absl::StrFormat("%04x:%02x:%02x.%x", domain, bus, device, function);
}

const char* ToString(DeviceDistance distance) {
  switch (distance) {
    case DeviceDistance::kSwitch:
      return "switch";
    case DeviceDistance::kRoot:
      return "root";
    case DeviceDistance::kNode:
      return "node";
    case DeviceDistance::kSocket:
      return "socket";
    case DeviceDistance::kUnknown:
      return "?";
    case DeviceDistance::kOtherNode:
      return "far";
  }
  return "?";
}

uint64_t Gid::SubnetPrefix() const { return LoadBig(bytes.data()); }
uint64_t Gid::Guid() const { return LoadBig(bytes.data() + 8); }
std::string Gid::ToString() const { return AddressText(bytes, false); }

const char* ToString(GidType type) {
  switch (type) {
    case GidType::kInfiniBand:
      return "IB";
    case GidType::kRoceV1:
      return "RoCE v1";
    case GidType::kRoceV2:
      return "RoCE v2";
    case GidType::kUnknown:
      break;
  }
  return "unknown";
}

const char* ToString(PortState state) {
  switch (state) {
    case PortState::kDown:
      return "down";
    case PortState::kInit:
      return "init";
    case PortState::kArmed:
      return "armed";
    case PortState::kActive:
      return "active";
    case PortState::kUnknown:
      break;
  }
  return "unknown";
}

const char* ToString(LinkLayer layer) {
  switch (layer) {
    case LinkLayer::kInfiniBand:
      return "InfiniBand";
    case LinkLayer::kEthernet:
      return "Ethernet";
    case LinkLayer::kEfa:
      return "EFA";
    case LinkLayer::kUnknown:
      break;
  }
  return "unknown";
}

std::optional<IpSubnet> IpSubnet::Parse(std::string_view text) {
  const size_t slash = text.find('/');
  const std::string host(text.substr(0, slash));
  IpSubnet subnet;
  uint32_t most = 128;
  if (inet_pton(AF_INET, host.c_str(), subnet.address.data() + 12) == 1) {
    std::copy(kMappedV4.begin(), kMappedV4.end(), subnet.address.begin());
    most = 32;
  } else if (inet_pton(AF_INET6, host.c_str(), subnet.address.data()) != 1) {
    return std::nullopt;
  }
  if (slash == std::string_view::npos) return subnet;
  const std::string_view length = text.substr(slash + 1);
  uint32_t bits = 0;
  const char* end = length.data() + length.size();
  const auto [rest, error] = std::from_chars(length.data(), end, bits);
  if (length.empty() || error != std::errc() || rest != end || bits > most) return std::nullopt;
  subnet.prefix_bits = bits + (128 - most);
  return subnet;
}

std::string ToString(const IpAddress& address) { return AddressText(address, IsMappedV4(address)); }

bool IpSubnet::Contains(const IpAddress& other) const {
  const size_t whole = prefix_bits / 8;
  if (!std::equal(address.begin(), address.begin() + static_cast<ptrdiff_t>(whole),
                  other.begin())) {
    return false;
  }
  const uint32_t rest = prefix_bits % 8;
  if (rest == 0) return true;
  const auto mask = static_cast<uint8_t>(0xff << (8 - rest));
  return (address[whole] & mask) == (other[whole] & mask);
}

std::string IpSubnet::ToString() const {
  const bool v4 = IsMappedV4(address) && prefix_bits >= 96;
  const uint32_t bits = v4 ? prefix_bits - 96 : prefix_bits;
  return absl::StrCat(AddressText(address, v4), "/", bits);
}

std::string Topology::PortName(const RdmaPort& port) const {
  return absl::StrCat(devices[port.device].name, ":", port.number);
}

const RdmaDevice* Topology::ParentOf(const RdmaDevice& device) const {
  const std::optional<PciAddress>& parent =
      device.subfunction.empty() ? device.physical_function : device.pci;
  if (!parent) return nullptr;
  for (const RdmaDevice& other : devices) {
    if (other.pci == parent && other.subfunction.empty()) return &other;
  }
  return nullptr;
}

std::optional<Wire> WireOf(const Topology& topology, const RdmaPort& port) {
  const RdmaDevice& device = topology.DeviceOf(port);
  if (!device.pci) return std::nullopt;
  return Wire{.card = device.physical_function.value_or(*device.pci), .port = port.number};
}

DeviceDistance PciDistance(const PciPath& a, const PciPath& b) {
  const auto [end_a, end_b] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  // The first element of a path is the host bridge. A common second element is a bridge below it,
  // so a PCIe switch connects the two devices.
  const auto common = end_a - a.begin();
  if (common >= 2) return DeviceDistance::kSwitch;
  return common == 1 ? DeviceDistance::kRoot : DeviceDistance::kUnknown;
}

namespace {

// Firmware that divides a socket into nodes reports SLIT distances of 11 or 12 between them, and 20
// or more to another socket.
bool SameSocket(const Topology& topology, int a, int b) {
  constexpr int kNextSocket = 20;
  const auto index = [&](int id) {
    return std::find_if(topology.nodes.begin(), topology.nodes.end(),
                        [id](const NumaNode& node) { return node.id == id; }) -
           topology.nodes.begin();
  };
  const auto i = static_cast<size_t>(index(a));
  const auto j = static_cast<size_t>(index(b));
  if (i >= topology.nodes.size() || j >= topology.nodes.size()) return false;
  const NumaNode& from = topology.nodes[i];
  // The CPU package is authoritative where the kernel reports it.
  if (from.package >= 0 && topology.nodes[j].package >= 0) {
    return from.package == topology.nodes[j].package;
  }
  return j < from.distances.size() && from.distances[j] < kNextSocket;
}

DeviceDistance NodesApart(const Topology& topology, int a, int b) {
  if (a < 0 || b < 0) return DeviceDistance::kUnknown;
  if (a == b) return DeviceDistance::kNode;
  return SameSocket(topology, a, b) ? DeviceDistance::kSocket : DeviceDistance::kOtherNode;
}

}  // namespace

DeviceDistance DistanceOf(const Topology& topology, const RdmaDevice& nic,
                          const MemoryPlace& place) {
  if (place.kind == MemoryPlace::Kind::kNode) {
    if (place.index >= topology.nodes.size()) return DeviceDistance::kUnknown;
    return NodesApart(topology, topology.nodes[place.index].id, nic.numa_node);
  }
  if (place.index >= topology.gpus.size()) return DeviceDistance::kUnknown;
  const Gpu& gpu = topology.gpus[place.index];
  const DeviceDistance over_pci = PciDistance(nic.path, gpu.path);
  return over_pci != DeviceDistance::kUnknown ? over_pci
                                              : NodesApart(topology, gpu.numa_node, nic.numa_node);
}

}  // namespace kvxfer
