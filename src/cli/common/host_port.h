// Addresses on the command line: host:port.
#ifndef KVXFER_CLI_COMMON_HOST_PORT_H_
#define KVXFER_CLI_COMMON_HOST_PORT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/options.h"

namespace kvxfer::cli {

struct HostPort {
  std::string host;  // name or address, without brackets
  uint16_t port = kDefaultPort;

  std::string ToString() const;  // brackets around IPv6 addresses
};

// Takes "node7", "node7:7471", "[::1]:7471", "[::1]" and "::1". Without a port in the text, the
// port is `default_port`.
absl::StatusOr<HostPort> ParseHostPort(std::string_view text, uint16_t default_port = kDefaultPort);

}  // namespace kvxfer::cli

#endif  // KVXFER_CLI_COMMON_HOST_PORT_H_
