#include "src/transport/host/topology_netdevs.h"

#include <ifaddrs.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "src/core/base/strings.h"
#include "src/transport/host/sysfs_device.h"

namespace kvxfer {
namespace {

// `bytes` are in network order.
IpAddress MappedV4(uint32_t bytes) {
  IpAddress address{};
  address[10] = address[11] = 0xff;
  std::memcpy(address.data() + 12, &bytes, 4);
  return address;
}

uint32_t V4Of(const sockaddr* address) {
  sockaddr_in in{};
  std::memcpy(&in, address, sizeof in);
  return in.sin_addr.s_addr;
}

bool Same(const IpSubnet& a, const IpSubnet& b) {
  return a.prefix_bits == b.prefix_bits && a.Contains(b.address);
}

}  // namespace

NetdevReader::NetdevReader(const Sysfs& sysfs) : sysfs_(sysfs), names_(sysfs.List(kNetDevices)) {
  // In this order: the IPv4 addresses are assigned to netdevs by the networks that were read
  // before.
  ReadV4Routes();
  ReadV6();
  ReadV4Locals();
  if (sysfs.root().empty()) AskKernel();
}

void NetdevReader::AddAddress(const std::string& name, const IpAddress& address) {
  if (!HasAddress(name, address)) addresses_[name].push_back(address);
}

void NetdevReader::AddSubnet(const std::string& name, const IpSubnet& subnet) {
  std::vector<IpSubnet>& known = subnets_[name];
  const bool there = std::any_of(known.begin(), known.end(),
                                 [&](const IpSubnet& other) { return Same(other, subnet); });
  if (!there) known.push_back(subnet);
}

// /proc/net/route: name, destination, gateway, ..., mask; addresses in host byte order. A directly
// connected route is a network of the device.
void NetdevReader::ReadV4Routes() {
  const std::string table = sysfs_.Read("/proc/net/route").value_or("");
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<std::string> fields =
        absl::StrSplit(line, absl::ByAnyChar("\t "), absl::SkipEmpty());
    uint32_t destination = 0;
    uint32_t gateway = 0;
    uint32_t mask = 0;
    if (fields.size() < 8 || !absl::SimpleHexAtoi(fields[1], &destination) ||
        !absl::SimpleHexAtoi(fields[2], &gateway) || !absl::SimpleHexAtoi(fields[7], &mask) ||
        // Routes through a gateway and the default route are no networks of the netdev.
        gateway != 0 || mask == 0) {
      continue;
    }
    AddSubnet(fields[0], {.address = MappedV4(destination),
                          .prefix_bits = 96 + static_cast<uint32_t>(__builtin_popcount(mask))});
  }
}

// /proc/net/fib_trie lists every IPv4 address of this host ("|-- 10.77.0.5", followed by "/32 host
// LOCAL") but not its netdev. The address belongs to the netdev with the longest matching network,
// if exactly one netdev has that network.
void NetdevReader::ReadV4Locals() {
  const std::string table = sysfs_.Read("/proc/net/fib_trie").value_or("");
  std::string leaf;
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (words.size() == 2 && words[0] == "|--") leaf = words[1];
    if (words.size() != 3 || words[0] != "/32" || words[2] != "LOCAL") continue;
    const std::optional<IpSubnet> own = IpSubnet::Parse(leaf);
    if (!own) continue;
    uint32_t best = 0;
    std::vector<std::string> names;
    for (const auto& [name, subnets] : subnets_) {
      for (const IpSubnet& subnet : subnets) {
        if (!subnet.Contains(own->address) || subnet.prefix_bits < best) continue;
        if (subnet.prefix_bits > best) names.clear();
        best = subnet.prefix_bits;
        names.push_back(name);
      }
    }
    if (names.size() == 1) AddAddress(names.front(), own->address);
  }
}

// /proc/net/if_inet6: address, interface index, prefix bits, scope, flags (hexadecimal), name.
// Every netdev is in the link-local network (scope 0x20), so that network is not recorded.
void NetdevReader::ReadV6() {
  const std::string table = sysfs_.Read("/proc/net/if_inet6").value_or("");
  for (const absl::string_view line : absl::StrSplit(table, '\n')) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    IpSubnet subnet;
    if (fields.size() < 6 || fields[0].size() != 32 ||
        !absl::SimpleHexAtoi(fields[2], &subnet.prefix_bits) || subnet.prefix_bits > 128) {
      continue;
    }
    for (size_t i = 0; i < 16; ++i) {
      uint32_t byte = 0;
      if (!absl::SimpleHexAtoi(fields[0].substr(2 * i, 2), &byte)) byte = 0;
      subnet.address[i] = static_cast<uint8_t>(byte);
    }
    AddAddress(fields[5], subnet.address);
    if (fields[3] != "20") AddSubnet(fields[5], subnet);
  }
}

// No file says which netdev has an IPv4 address. On the live host the kernel does, also for
// addresses without a route (/32, noprefixroute).
void NetdevReader::AskKernel() {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(all, &freeifaddrs);
  for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != AF_INET) continue;
    const IpAddress own = MappedV4(V4Of(entry->ifa_addr));
    // An alias such as "eth0:1" belongs to eth0.
    const std::string name =
        std::string(entry->ifa_name).substr(0, std::strcspn(entry->ifa_name, ":"));
    AddAddress(name, own);
    if (entry->ifa_netmask == nullptr) continue;
    const auto bits = static_cast<uint32_t>(__builtin_popcount(V4Of(entry->ifa_netmask)));
    AddSubnet(name, {.address = own, .prefix_bits = 96 + bits});
  }
}

Netdev NetdevReader::Read(const std::string& name) const {
  const std::string folder = SysfsPath(kNetDevices, name);
  const auto subnets = subnets_.find(name);
  const auto addresses = addresses_.find(name);
  return {
      .name = name,
      .mtu = ReadSysfsUint(sysfs_, SysfsPath(folder, "mtu")),
      .operstate = sysfs_.Read(SysfsPath(folder, "operstate")).value_or(""),
      .address = sysfs_.Read(SysfsPath(folder, "address")).value_or(""),
      .subnets = subnets == subnets_.end() ? std::vector<IpSubnet>() : subnets->second,
      .addresses = addresses == addresses_.end() ? std::vector<IpAddress>() : addresses->second};
}

bool NetdevReader::HasAddress(const std::string& name, const IpAddress& address) const {
  const auto it = addresses_.find(name);
  return it != addresses_.end() &&
         std::find(it->second.begin(), it->second.end(), address) != it->second.end();
}

std::vector<std::string> NetdevReader::Below(const std::string& name) const {
  std::vector<std::string> below;
  for (const std::string& other : names_) {
    if (other == name) continue;
    if (sysfs_.Exists(SysfsPath(SysfsPath(kNetDevices, name), "lower_" + other))) {
      below.push_back(other);
    }
  }
  return below;
}

int NetdevReader::NodeOf(const std::string& name, int levels) const {
  const std::string device = SysfsPath(SysfsPath(kNetDevices, name), "device");
  if (sysfs_.Exists(device)) {
    const std::string file = SysfsPath(DeviceFolder(sysfs_, device), "numa_node");
    return static_cast<int>(sysfs_.ReadInt(file).value_or(-1));
  }
  // A stacked netdev (bond, VLAN) is on a node only if all netdevs below it are on that node.
  if (levels == 0) return -1;
  int node = -1;
  for (const std::string& below : Below(name)) {
    const int its = NodeOf(below, levels - 1);
    if (node >= 0 && its != node) return -1;
    node = its;
  }
  return node;
}

bool NetdevReader::StandsOn(const std::string& name, const std::string& device, int levels) const {
  if (name == device) return true;
  const std::string own = sysfs_.Resolve(SysfsPath(SysfsPath(kNetDevices, name), "device"));
  if (!own.empty() && own == device) return true;
  if (levels == 0) return false;
  const std::vector<std::string> below = Below(name);
  return std::any_of(below.begin(), below.end(),
                     [&](const std::string& other) { return StandsOn(other, device, levels - 1); });
}

}  // namespace kvxfer
