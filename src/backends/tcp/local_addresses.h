// The local addresses to which data streams are bound, from TcpOptions::addresses.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_TCP_LOCAL_ADDRESSES_H_
#define KVXFER_BACKENDS_TCP_LOCAL_ADDRESSES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "src/core/base/sysfs.h"
#include "src/core/topology/topology.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::tcp {

struct LocalAddress {
  net::SocketAddress at;  // port 0
  IpSubnet subnet{};      // of its interface; a guess if unknown
  uint32_t mbps = 0;      // of its interface; 0: unknown
};

// InvalidArgument names the entry of `wanted` that is neither an address on an interface of this
// host nor an interface with an address, that occurs twice, or that is one too many.
absl::StatusOr<std::vector<LocalAddress>> ResolveLocal(const std::vector<std::string>& wanted,
                                                       const Sysfs& sysfs);

IpAddress IpOf(const net::SocketAddress& address);

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_LOCAL_ADDRESSES_H_
