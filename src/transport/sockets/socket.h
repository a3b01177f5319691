// Socket addresses and the few socket calls that backends over sockets need.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_TRANSPORT_SOCKETS_SOCKET_H_
#define KVXFER_TRANSPORT_SOCKETS_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/core/base/own_fd.h"

namespace kvxfer::net {

using Fd = OwnFd;

// An IPv4 or IPv6 address with its port.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  uint16_t port() const;
  void set_port(uint16_t port);
  bool IsLoopback() const;
  bool IsWildcard() const;
  // "10.0.0.2:7471" or "[fe80::1]:7471".
  std::string ToString() const;
  std::string Host() const;  // without the port: "10.0.0.2", "fe80::1"
};

enum class Names : uint8_t { kResolve, kNumericOnly };

// The addresses of "host:port", "[v6]:port", "host" or "v6" (port `default_port`), in the order
// the resolver prefers. kResolve may block on DNS. InvalidArgument names the text.
absl::StatusOr<std::vector<SocketAddress>> Resolve(std::string_view text, uint16_t default_port,
                                                   Names names);

// A listening, non-blocking socket; [::] takes IPv4 too. FailedPrecondition when the address is
// in use.
absl::StatusOr<Fd> Listen(const SocketAddress& address);
SocketAddress LocalAddress(int fd);

// A non-blocking socket whose connection is under way; ResourceExhausted without descriptors.
//
// Where both ends are on this host there is no path to be congested: it takes the plainest
// congestion control, as a listener at a loopback address does. One that paces and probes (BBR)
// costs a third of the throughput of loopback, and stops it for 200 ms every few seconds. It is
// chosen before the connection is made, for what BBR has begun to pace it paces for life.
//
// `from`: the local address it is bound to, any port; without one the route chooses.
absl::StatusOr<Fd> StartConnect(const SocketAddress& to, const SocketAddress& from = {});
// Loopback, or an address that this host routes to itself. A few system calls, however many
// interfaces there are.
bool IsOfThisHost(const SocketAddress& address);
// The errno that the connection ended with, told once; 0 when there is none.
int SocketError(int fd);

// How far a connection has come, and what the peer's kernel has yet to acknowledge.
struct SendProgress {
  bool waiting = false;       // bytes are on the way, or wait in the socket
  bool unanswered = false;    // bytes are on the way that the peer's window has room for
  uint64_t acknowledged = 0;  // bytes, in all
  uint64_t received = 0;      // bytes, in all
  uint32_t segment = 0;       // bytes of payload in a packet of full size
  uint32_t silent_ms = 0;     // since the last acknowledgement
};
SendProgress ProgressOf(int fd);

// Small messages leave at once.
void SetNoDelay(int fd);
// The connection is reset when sent bytes stay unacknowledged so long.
void SetUserTimeout(int fd, unsigned milliseconds);
// For an accepted connection whose two ends are on this host; see StartConnect.
void TuneIfLocal(int fd);
// An idle connection is probed, so that the end of a peer that said nothing is noticed.
void SetKeepAlive(int fd);

// Source address of the default route for `family`, port 0; nothing is sent. False: no such route.
bool DefaultRouteSource(int family, SocketAddress& source);
// Addresses of the interfaces that are up, without loopback and link-local ones.
std::vector<SocketAddress> InterfaceAddresses();

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_SOCKET_H_
