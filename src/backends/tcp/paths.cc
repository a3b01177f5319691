#include "src/backends/tcp/paths.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "src/net/hello.h"

namespace kvxfer::tcp {
namespace {

constexpr uint8_t kNear = 0;
constexpr uint8_t kFar = 1;

std::optional<uint8_t> Rank(const LocalAddress& from, const net::SocketAddress& to) {
  if (from.at.family() != to.family()) return std::nullopt;
  return from.subnet.Contains(IpOf(to)) ? kNear : kFar;
}

}  // namespace

Paths::Paths(std::span<const LocalAddress> local, const net::PeerAddress& peer)
    : local_(local.begin(), local.end()),
      remote_(peer.data),
      table_(std::max<size_t>(local.size(), 1), std::max<size_t>(peer.data.size(), 1)) {
  for (size_t l = 0; l < table_.local(); ++l) {
    for (size_t r = 0; r < table_.remote(); ++r) {
      const net::SocketAddress& to = remote_.empty() ? peer.candidates.front() : remote_[r].at;
      const std::optional<uint8_t> rank = local_.empty() ? kNear : Rank(local_[l], to);
      if (rank) table_.Set(l, r, *rank);
    }
  }
}

absl::StatusOr<Paths> Paths::Plan(std::span<const LocalAddress> local, const net::PeerAddress& peer,
                                  uint32_t streams) {
  Paths paths(local, peer);
  const std::vector<RailPair> pairs = ChooseRailPairs(paths.table_, net::kMaxRails);
  if (pairs.empty()) {
    std::string why = "tcp: no address of `tcp_addresses` here can talk to the peer's:";
    for (const LocalAddress& from : local) absl::StrAppend(&why, " ", from.at.Host());
    absl::StrAppend(&why, " here,");
    for (const net::DataAddress& to : peer.data) absl::StrAppend(&why, " ", to.at.ToString());
    if (peer.data.empty()) absl::StrAppend(&why, " ", peer.candidates.front().ToString());
    return absl::UnavailableError(why + " there; take addresses of one family, IPv4 or IPv6");
  }
  const size_t rails = std::max<size_t>(streams, pairs.size());
  for (size_t i = 0; i < rails; ++i) paths.planned_.push_back(pairs[i % pairs.size()]);
  return paths;
}

net::SocketAddress Paths::From(const RailPair& pair) const {
  return local_.empty() ? net::SocketAddress{} : local_[pair.local].at;
}

net::SocketAddress Paths::To(const RailPair& pair, const net::SocketAddress& control) const {
  return remote_.empty() ? control : remote_[pair.remote].at;
}

std::string Paths::Name(const RailPair& pair, const net::SocketAddress& control) const {
  const std::string from = local_.empty() ? "any" : local_[pair.local].at.Host();
  return absl::StrCat(from, " → ", To(pair, control).ToString());
}

uint32_t Paths::Mbps(const RailPair& pair) const {
  const uint32_t local = local_.empty() ? 0 : local_[pair.local].mbps;
  const uint32_t remote = remote_.empty() ? 0 : remote_[pair.remote].mbps;
  return local == 0 || remote == 0 ? std::max(local, remote) : std::min(local, remote);
}

}  // namespace kvxfer::tcp
