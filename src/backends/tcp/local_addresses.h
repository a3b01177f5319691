// The local addresses that data streams are bound to, as `tcp_addresses` names them.
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
  IpSubnet subnet{};      // that its interface has; a guess where that is not known
  uint32_t mbps = 0;      // of its interface; 0: not known
};

// InvalidArgument names the entry of `wanted` that is neither an address of an interface here nor
// an interface with one, that is there twice, or that is one too many.
absl::StatusOr<std::vector<LocalAddress>> ResolveLocal(const std::vector<std::string>& wanted,
                                                       const Sysfs& sysfs);

IpAddress IpOf(const net::SocketAddress& address);

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_LOCAL_ADDRESSES_H_
