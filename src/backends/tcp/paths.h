// The pairs of addresses that the data streams of an endpoint use, as seen from the connecting
// side.
//
// If neither side has addresses for data streams, there is one path: from the address that routing
// chooses to the address that the control stream has reached. If only this side has such addresses,
// they go there too; an address of the other family goes to an address of its own family at which
// the peer can be reached.
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
  // Plans at least `streams` rails. Unavailable: no address here can talk to one of the peer's.
  static absl::StatusOr<Paths> Plan(std::span<const LocalAddress> local,
                                    const net::PeerAddress& peer, uint32_t streams);

  size_t rails() const { return planned_.size(); }
  // The pair of each rail. If there are more rails than pairs, rails share a pair.
  const RailPair& planned(size_t rail) const { return planned_[rail]; }
  std::optional<RailPair> Other(std::span<const RailPair> used,
                                std::span<const RailPair> bad) const {
    return ChooseOtherPair(table_, used, bad);
  }

  // The address to bind to. Length 0: routing chooses.
  net::SocketAddress From(const RailPair& pair) const;
  // `control`: the address that the control stream has reached.
  net::SocketAddress To(const RailPair& pair, const net::SocketAddress& control) const;
  // Whether either side has configured addresses for data streams.
  bool named() const { return !local_.empty() || !remote_.empty(); }
  // "10.0.0.1 → 10.0.0.2:7471".
  std::string Name(const RailPair& pair, const net::SocketAddress& control) const;
  // The speed of the slower end, as far as known; 0: unknown.
  uint32_t Mbps(const RailPair& pair) const;

 private:
  Paths(std::span<const LocalAddress> local, const net::PeerAddress& peer);

  // The best address at which `from` reaches the peer; null: there is none.
  const net::SocketAddress* Reached(const LocalAddress& from) const;

  std::vector<LocalAddress> local_;
  std::vector<net::DataAddress> remote_;
  std::vector<net::SocketAddress> candidates_;  // the peer's
  PairTable table_;
  std::vector<RailPair> planned_;
};

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_PATHS_H_
