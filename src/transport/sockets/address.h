// The address text that peers get from this agent's metadata, and how they use it.
//
// The text is "1;<incarnation>;host:port[;host:port...]": the incarnation that listens there, and
// the numeric addresses to try, best first. Names in `advertise` are resolved at the agent that
// sets it. If data streams have addresses of their own, the text is
// "2;<incarnation>;host:port[;...];data" followed by ";host:port/speed" for each of them, with the
// speed in Mbit/s (0: unknown).
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

// Where data streams can connect.
struct DataAddress {
  SocketAddress at{};
  uint32_t mbps = 0;  // speed of the link; 0: unknown
};

struct PeerAddress {
  Incarnation incarnation{};
  std::vector<SocketAddress> candidates;  // 1 to kMaxCandidates
  std::vector<DataAddress> data{};        // at most kMaxDataAddresses; empty: use the candidate's
};

inline constexpr size_t kMaxCandidates = 8;
inline constexpr size_t kMaxDataAddresses = 8;

std::string EncodeAddress(const PeerAddress& address);
// The addresses that peers get for a listener bound to `bound`. May block on DNS.
absl::StatusOr<std::vector<SocketAddress>> Advertised(const AgentOptions& options,
                                                      const SocketAddress& bound);

// InvalidArgument: the message says what is wrong with the text.
absl::StatusOr<PeerAddress> DecodeAddress(std::string_view text);

// DecodeAddress for the address of `peer` as `self` can use it: without loopback addresses if the
// two are on different hosts or in different network namespaces, and with the data streams'
// addresses as the last candidates. InvalidArgument: no address is left; the message names both
// hosts and how to fix it.
absl::StatusOr<PeerAddress> DecodeReachable(std::string_view text, const HostIdentity& self,
                                            const HostIdentity& peer);

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_ADDRESS_H_
