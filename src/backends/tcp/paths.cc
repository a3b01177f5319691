#include "src/backends/tcp/paths.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "src/transport/hello.h"

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
      candidates_(peer.candidates),
      table_(std::max<size_t>(local.size(), 1), std::max<size_t>(peer.data.size(), 1)) {
  for (size_t l = 0; l < table_.local(); ++l) {
    for (size_t r = 0; r < table_.remote(); ++r) {
      if (local_.empty()) {
        table_.Set(l, r, kNear);
        continue;
      }
      const net::SocketAddress* to = remote_.empty() ? Reached(local_[l]) : &remote_[r].at;
      const std::optional<uint8_t> rank = to ? Rank(local_[l], *to) : std::nullopt;
      if (rank) table_.Set(l, r, *rank);
    }
  }
}

const net::SocketAddress* Paths::Reached(const LocalAddress& from) const {
  const net::SocketAddress* best = nullptr;
  for (const net::SocketAddress& to : candidates_) {
    const std::optional<uint8_t> rank = Rank(from, to);
    if (rank == kNear) return &to;
    if (rank && best == nullptr) best = &to;
  }
  return best;
}

absl::StatusOr<Paths> Paths::Plan(std::span<const LocalAddress> local, const net::PeerAddress& peer,
                                  uint32_t streams) {
  Paths paths(local, peer);
  const std::vector<RailPair> pairs = ChooseRailPairs(paths.table_, net::kMaxRails);
  if (pairs.empty()) {
    std::string why = "tcp: no address of `tcp.addresses` here can talk to the peer's:";
    for (const LocalAddress& from : local) absl::StrAppend(&why, " ", from.at.Host());
    absl::StrAppend(&why, " here,");
    for (const net::DataAddress& to : peer.data) absl::StrAppend(&why, " ", to.at.ToString());
    if (peer.data.empty()) {
      for (const net::SocketAddress& to : peer.candidates)
        absl::StrAppend(&why, " ", to.ToString());
    }
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
  if (!remote_.empty()) return remote_[pair.remote].at;
  if (local_.empty() || local_[pair.local].at.family() == control.family()) return control;
  const net::SocketAddress* to = Reached(local_[pair.local]);
  return to ? *to : control;
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
