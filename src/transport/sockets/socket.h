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

// The addresses of "host:port", "[v6]:port", "host" or "v6" (with port `default_port`), in the
// resolver's order of preference. kResolve may block on DNS. InvalidArgument names the text.
absl::StatusOr<std::vector<SocketAddress>> Resolve(std::string_view text, uint16_t default_port,
                                                   Names names);

// A listening, non-blocking socket; [::] accepts IPv4 too. FailedPrecondition: the address is in
// use.
absl::StatusOr<Fd> Listen(const SocketAddress& address);
SocketAddress LocalAddress(int fd);

// Returns a non-blocking socket whose connection is in progress. ResourceExhausted: no descriptors.
//
// If both ends are on this host, no path can be congested, and the socket uses the simplest
// congestion control, as a listener at a loopback address does. A control that paces and probes
// (BBR) costs a third of loopback's throughput and stops it for 200 ms every few seconds. The
// choice is made before connecting, because a connection that BBR has begun to pace stays paced for
// life.
//
// `from`: the local address to bind to, with any port; without one, the route chooses.
absl::StatusOr<Fd> StartConnect(const SocketAddress& to, const SocketAddress& from = {});
// True for loopback, and for an address that this host routes to itself. Costs a few system calls,
// for any number of interfaces.
bool IsOfThisHost(const SocketAddress& address);
// The errno that the connection ended with, reported once; 0: none.
int SocketError(int fd);
// Whether a connection waits to be accepted. (Without descriptors accept fails whether one does or
// not.)
bool ConnectionWaits(int listener);

// How far a connection has come, and what the peer's kernel has not acknowledged yet.
struct SendProgress {
  bool waiting = false;       // bytes are in flight, or wait in the socket
  bool unanswered = false;    // retransmitted, though the window is open
  uint64_t acknowledged = 0;  // bytes in total
  uint64_t received = 0;      // bytes in total
  uint32_t segment = 0;       // payload bytes of a full-size packet
  uint32_t silent_ms = 0;     // since the last acknowledgement
};
SendProgress ProgressOf(int fd);

// Sends small messages at once (TCP_NODELAY).
void SetNoDelay(int fd);
// Resets the connection when sent bytes stay unacknowledged for this long.
void SetUserTimeout(int fd, unsigned milliseconds);
// For an accepted connection: as StartConnect if both ends are on this host.
void TuneIfLocal(int fd);
// Probes an idle connection, so that the silent end of a peer is noticed.
void SetKeepAlive(int fd);

// The source address of the default route for `family`, with port 0; sends nothing. False: no
// route.
bool DefaultRouteSource(int family, SocketAddress& source);
// Addresses of the interfaces that are up, except loopback and link-local ones.
std::vector<SocketAddress> InterfaceAddresses();

}  // namespace kvxfer::net

#endif  // KVXFER_TRANSPORT_SOCKETS_SOCKET_H_
