#include "src/backends/tcp/local_addresses.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/core/base/strings.h"
#include "src/transport/host/sysfs_device.h"
#include "src/transport/host/topology_netdevs.h"
#include "src/transport/sockets/address.h"

namespace kvxfer::tcp {
namespace {

// The subnet that is assumed if no interface tells: 24 bits for IPv4, 64 for IPv6.
constexpr uint32_t kGuessedV4Bits = 96 + 24;
constexpr uint32_t kGuessedV6Bits = 64;

bool IsV4(const IpAddress& ip) {
  return std::all_of(ip.begin(), ip.begin() + 10, [](uint8_t b) { return b == 0; }) &&
         ip[10] == 0xff && ip[11] == 0xff;
}
bool IsLinkLocal(const IpAddress& ip) { return ip[0] == 0xfe && (ip[1] & 0xc0) == 0x80; }

absl::Status Bad(std::string_view entry, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("`tcp.addresses` (KVXFER_TCP_ADDRESSES), '", ToAbsl(entry), "': ", ToAbsl(why)));
}

absl::StatusOr<IpAddress> AddressOf(const Netdev& netdev) {
  const auto v4 = std::ranges::find_if(netdev.addresses, IsV4);
  if (v4 != netdev.addresses.end()) return *v4;
  const auto v6 = std::ranges::find_if_not(netdev.addresses, IsLinkLocal);
  if (v6 != netdev.addresses.end()) return *v6;
  return Bad(netdev.name, "the interface has no address; give it one, or bring it up");
}

absl::StatusOr<IpAddress> ParseAddress(const std::string& entry, const Sysfs& sysfs) {
  absl::StatusOr<std::vector<net::SocketAddress>> parsed =
      net::Resolve(entry, 0, net::Names::kNumericOnly);
  if (!parsed.ok()) {
    return Bad(entry, absl::StrCat("neither an IP address nor a network interface; there are ",
                                   absl::StrJoin(sysfs.List(kNetDevices), ", ")));
  }
  if (parsed->front().port() != 0)
    return Bad(entry, "a port is not asked for: any free one is taken");
  if (parsed->front().IsWildcard()) return Bad(entry, "name the addresses, not all of them");
  return IpOf(parsed->front());
}

net::SocketAddress SocketAddressOf(const IpAddress& ip) {
  return net::Resolve(ToString(ip), 0, net::Names::kNumericOnly)->front();
}

// Fills in what the interface that has `ip` says about it.
void Describe(const NetdevReader& reader, const Sysfs& sysfs, const IpAddress& ip,
              LocalAddress& out) {
  out.subnet = {.address = ip, .prefix_bits = IsV4(ip) ? kGuessedV4Bits : kGuessedV6Bits};
  for (const std::string& name : sysfs.List(kNetDevices)) {
    if (!reader.HasAddress(name, ip)) continue;
    const std::vector<IpSubnet> subnets = reader.Read(name).subnets;
    const auto in = std::ranges::find_if(
        subnets, [&](const IpSubnet& s) { return s.prefix_bits < 128 && s.Contains(ip); });
    if (in != subnets.end()) out.subnet = *in;
    const int64_t mbps =
        sysfs.ReadInt(SysfsPath(SysfsPath(kNetDevices, name), "speed")).value_or(0);
    out.mbps = static_cast<uint32_t>(std::clamp<int64_t>(mbps, 0, 10'000'000));
    return;
  }
}

}  // namespace

IpAddress IpOf(const net::SocketAddress& address) {
  IpAddress out{};
  if (address.family() == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
    std::memcpy(out.data(), &v6.sin6_addr, out.size());
    return out;
  }
  const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
  out[10] = out[11] = 0xff;
  std::memcpy(&out[12], &v4.sin_addr, 4);
  return out;
}

absl::StatusOr<std::vector<LocalAddress>> ResolveLocal(const std::vector<std::string>& wanted,
                                                       const Sysfs& sysfs) {
  std::vector<LocalAddress> out;
  if (wanted.empty()) return out;
  const NetdevReader reader(sysfs);
  const std::vector<std::string> names = sysfs.List(kNetDevices);
  for (const std::string& entry : wanted) {
    const bool named = std::ranges::find(names, entry) != names.end();
    const absl::StatusOr<IpAddress> ip =
        named ? AddressOf(reader.Read(entry)) : ParseAddress(entry, sysfs);
    if (!ip.ok()) return ip.status();
    LocalAddress local{.at = SocketAddressOf(*ip)};
    Describe(reader, sysfs, *ip, local);
    const auto same = [&](const LocalAddress& other) { return IpOf(other.at) == *ip; };
    if (std::ranges::any_of(out, same)) return Bad(entry, "is there twice; name it once");
    if (out.size() == net::kMaxDataAddresses) return Bad(entry, "is one too many; 8 are taken");
    out.push_back(local);
  }
  return out;
}

}  // namespace kvxfer::tcp
