#include "src/transport/sockets/address.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "src/core/base/strings.h"

namespace kvxfer::net {
namespace {

constexpr std::string_view kForm = "1";
constexpr std::string_view kFormWithData = "2";
constexpr std::string_view kData = "data";
constexpr size_t kMaxAddressText = 2048;

absl::Status BadAddress(std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tcp address in the peer's metadata: ", ToAbsl(why)));
}

bool IsHex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool ParseIncarnation(absl::string_view hex, Incarnation& out) {
  if (hex.size() != 2 * out.bytes.size() || !std::all_of(hex.begin(), hex.end(), IsHex)) {
    return false;
  }
  const std::string raw = absl::HexStringToBytes(hex);
  std::copy(raw.begin(), raw.end(), out.bytes.begin());
  return true;
}

// For a wildcard listener: the source addresses of the default routes for the families that it
// accepts; else the interfaces' addresses; else loopback.
std::vector<SocketAddress> AddressesOfThisHost(const SocketAddress& bound) {
  std::vector<SocketAddress> out;
  SocketAddress source;
  if (DefaultRouteSource(AF_INET, source)) out.push_back(source);
  if (bound.family() == AF_INET6 && DefaultRouteSource(AF_INET6, source)) out.push_back(source);
  if (out.empty()) {
    for (const SocketAddress& address : InterfaceAddresses()) {
      const bool heard = address.family() == AF_INET || bound.family() == AF_INET6;
      if (heard && out.size() < kMaxCandidates) out.push_back(address);
    }
  }
  if (out.empty()) {
    const char* loopback = bound.family() == AF_INET6 ? "[::1]" : "127.0.0.1";
    absl::StatusOr<std::vector<SocketAddress>> list = Resolve(loopback, 0, Names::kNumericOnly);
    if (list.ok()) out = *std::move(list);
  }
  for (SocketAddress& address : out) address.set_port(bound.port());
  return out;
}

absl::Status KeepReachable(const HostIdentity& self, const HostIdentity& peer,
                           PeerAddress& address) {
  std::vector<SocketAddress>& candidates = address.candidates;
  // On one host and in one network namespace loopback works.
  if (self.SameHost(peer) && self.net_namespace == peer.net_namespace) return absl::OkStatus();
  const std::string first = candidates.front().ToString();
  std::erase_if(candidates, [](const SocketAddress& a) { return a.IsLoopback(); });
  std::erase_if(address.data, [](const DataAddress& a) { return a.at.IsLoopback(); });
  if (!candidates.empty()) return absl::OkStatus();
  const char* where = self.SameHost(peer) ? " in another network namespace" : "";
  return absl::InvalidArgumentError(absl::StrCat(
      "the peer on host ", peer.hostname, where, " advertises the loopback address ", first,
      ", which host ", self.hostname,
      " cannot reach; on the peer set `listen` (KVXFER_LISTEN) to an address of the network, or "
      "`advertise` (KVXFER_ADVERTISE)"));
}

absl::StatusOr<SocketAddress> ParseOne(std::string_view text) {
  absl::StatusOr<std::vector<SocketAddress>> one = Resolve(text, 0, Names::kNumericOnly);
  if (!one.ok()) return one.status();
  if (one->front().port() == 0 || one->front().IsWildcard()) {
    return BadAddress(one->front().ToString() + " cannot be connected to");
  }
  return one->front();
}

absl::StatusOr<DataAddress> ParseData(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, '/');
  DataAddress out;
  if (parts.size() != 2 || !absl::SimpleAtoi(parts[1], &out.mbps)) {
    return BadAddress("an address of data streams needs its speed");
  }
  absl::StatusOr<SocketAddress> at = ParseOne(ToStd(parts[0]));
  if (!at.ok()) return at.status();
  out.at = *at;
  return out;
}

}  // namespace

std::string EncodeAddress(const PeerAddress& address) {
  std::string out = absl::StrCat(ToAbsl(address.data.empty() ? kForm : kFormWithData), ";",
                                 address.incarnation.ToString());
  for (const SocketAddress& candidate : address.candidates) {
    absl::StrAppend(&out, ";", candidate.ToString());
  }
  if (!address.data.empty()) absl::StrAppend(&out, ";", ToAbsl(kData));
  for (const DataAddress& data : address.data) {
    absl::StrAppend(&out, ";", data.at.ToString(), "/", data.mbps);
  }
  return out;
}

absl::StatusOr<PeerAddress> DecodeAddress(std::string_view text) {
  // The text comes from a peer's metadata: bounded before it is split.
  if (text.size() > kMaxAddressText) return BadAddress("longer than 2048 bytes");
  const std::vector<absl::string_view> parts = absl::StrSplit(ToAbsl(text), ';');
  const bool with_data = parts.front() == ToAbsl(kFormWithData);
  if (!with_data && parts.front() != ToAbsl(kForm)) {
    return BadAddress("not of a form known here; use the same kvxfer version on both sides");
  }
  const auto data = with_data ? std::find(parts.begin(), parts.end(), ToAbsl(kData)) : parts.end();
  const std::ptrdiff_t candidates = data - parts.begin() - 2;
  const std::ptrdiff_t more = parts.end() - data - 1;
  if (candidates < 1 || candidates > static_cast<std::ptrdiff_t>(kMaxCandidates) ||
      (with_data && (more < 1 || more > static_cast<std::ptrdiff_t>(kMaxDataAddresses)))) {
    return BadAddress("it must hold an incarnation and 1 to 8 addresses");
  }
  PeerAddress out;
  if (!ParseIncarnation(parts[1], out.incarnation)) return BadAddress("the incarnation is damaged");
  for (auto part = parts.begin() + 2; part != data; ++part) {
    absl::StatusOr<SocketAddress> one = ParseOne(ToStd(*part));
    if (!one.ok()) return one.status();
    out.candidates.push_back(*one);
  }
  for (std::ptrdiff_t i = 1; i <= more; ++i) {
    absl::StatusOr<DataAddress> one = ParseData(data[i]);
    if (!one.ok()) return one.status();
    out.data.push_back(*std::move(one));
  }
  return out;
}

absl::StatusOr<std::vector<SocketAddress>> Advertised(const AgentOptions& options,
                                                      const SocketAddress& bound) {
  if (options.advertise.empty()) {
    if (bound.IsWildcard()) return AddressesOfThisHost(bound);
    return std::vector<SocketAddress>{bound};
  }
  absl::StatusOr<std::vector<SocketAddress>> out =
      Resolve(options.advertise, bound.port(), Names::kResolve);
  if (!out.ok()) return Annotate(out.status(), "`advertise` (KVXFER_ADVERTISE)");
  for (SocketAddress& address : *out) {
    if (address.IsWildcard()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "`advertise` (KVXFER_ADVERTISE) is ", options.advertise,
          ", which peers cannot connect to; name an address of this host, or leave it empty"));
    }
    if (address.port() == 0) address.set_port(bound.port());
  }
  if (out->size() > kMaxCandidates) out->resize(kMaxCandidates);
  return out;
}

absl::StatusOr<PeerAddress> DecodeReachable(std::string_view text, const HostIdentity& self,
                                            const HostIdentity& peer) {
  absl::StatusOr<PeerAddress> address = DecodeAddress(text);
  if (!address.ok()) return address.status();
  for (const DataAddress& data : address->data) {
    // Data listeners accept control streams too, so they serve as further candidates.
    if (address->candidates.size() < kMaxCandidates) address->candidates.push_back(data.at);
  }
  absl::Status reachable = KeepReachable(self, peer, *address);
  if (!reachable.ok()) return reachable;
  return address;
}

}  // namespace kvxfer::net
