// What peers are told of where this agent listens, and what is made of it at the other side.
//
// The text is "1;<incarnation>;host:port[;host:port...]": the incarnation that listens there, and
// the addresses to try, best first, numeric. Names in `advertise` are resolved where they are set.
// Where data streams have addresses of their own it is "2;<incarnation>;host:port[;...];data" and
// then, for each of those, ";host:port/speed" with the speed in Mbit/s, 0 where it is not known.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_TRANSPORT_SOCKETS_ADDRESS_H_
#define KVXFER_TRANSPORT_SOCKETS_ADDRESS_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::net {

// Where data streams come in.
struct DataAddress {
  SocketAddress at{};
  uint32_t mbps = 0;  // of the link; 0: not known
};

struct PeerAddress {
  Incarnation incarnation{};
  std::vector<SocketAddress> candidates;  // 1 to kMaxCandidates
  std::vector<DataAddress> data{};        // at most kMaxDataAddresses; none: the candidate's
};

inline constexpr size_t kMaxCandidates = 8;
inline constexpr size_t kMaxDataAddresses = 8;

std::string EncodeAddress(const PeerAddress& address);
// The addresses peers are told, for a listener bound to `bound`. May block on DNS.
absl::StatusOr<std::vector<SocketAddress>> Advertised(const AgentOptions& options,
                                                      const SocketAddress& bound);

// InvalidArgument says what is wrong with the text.
absl::StatusOr<PeerAddress> DecodeAddress(std::string_view text);

// The same of the address of `peer` as seen from `self`: without loopback addresses where they run
// on other hosts or in other network namespaces, and with those of data streams as the last
// candidates. InvalidArgument, naming both hosts and the remedy,
// when nothing is left.
absl::StatusOr<PeerAddress> DecodeReachable(std::string_view text, const HostIdentity& self,
                                            const HostIdentity& peer);

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_ADDRESS_H_
