// The addresses between which the data streams of a link go, seen from the side that connects.
//
// Where neither side has addresses for data streams there is one path: from wherever the route
// leads, to the address that the control stream has reached. Where only this side has, its own go
// there too, or, those of the other family, to an address of theirs that the peer is reached at.
//
// Thread-safety: plain values.

#ifndef KVXFER_BACKENDS_TCP_PATHS_H_
#define KVXFER_BACKENDS_TCP_PATHS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/backends/tcp/local_addresses.h"
#include "src/transport/rail_pairs.h"
#include "src/transport/sockets/address.h"

namespace kvxfer::tcp {

class Paths {
 public:
  // For at least `streams` rails. Unavailable: no address here can talk to one there.
  static absl::StatusOr<Paths> Plan(std::span<const LocalAddress> local,
                                    const net::PeerAddress& peer, uint32_t streams);

  size_t rails() const { return planned_.size(); }
  // Of each rail; rails share a pair where there are more of them.
  const RailPair& planned(size_t rail) const { return planned_[rail]; }
  std::optional<RailPair> Other(std::span<const RailPair> used,
                                std::span<const RailPair> bad) const {
    return ChooseOtherPair(table_, used, bad);
  }

  // Length 0: the route chooses.
  net::SocketAddress From(const RailPair& pair) const;
  // `control`: where the control stream goes.
  net::SocketAddress To(const RailPair& pair, const net::SocketAddress& control) const;
  // Whether somebody chose addresses.
  bool named() const { return !local_.empty() || !remote_.empty(); }
  // "10.0.0.1 → 10.0.0.2:7471".
  std::string Name(const RailPair& pair, const net::SocketAddress& control) const;
  // The slower of both ends, as far as known; 0: not at all.
  uint32_t Mbps(const RailPair& pair) const;

 private:
  Paths(std::span<const LocalAddress> local, const net::PeerAddress& peer);

  // Where the peer is reached from there, best first; null: nowhere.
  const net::SocketAddress* Reached(const LocalAddress& from) const;

  std::vector<LocalAddress> local_;
  std::vector<net::DataAddress> remote_;
  std::vector<net::SocketAddress> candidates_;  // the peer's
  PairTable table_;
  std::vector<RailPair> planned_;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_PATHS_H_
