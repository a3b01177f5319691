// Descriptors, socket addresses and the few socket calls that the rest of the tcp backend needs.
//
// Thread-safety: plain values and functions without state.

#ifndef KVXFER_BACKENDS_TCP_SOCKET_H_
#define KVXFER_BACKENDS_TCP_SOCKET_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace kvxfer::tcp {

// Owns a descriptor; -1 is none.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) {
      Close();
      fd_ = std::exchange(other.fd_, -1);
    }
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Close();

 private:
  int fd_ = -1;
};

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
absl::StatusOr<Fd> StartConnect(const SocketAddress& to);
// The errno that the connection ended with, told once; 0 when there is none.
int SocketError(int fd);

// Small messages leave at once.
void SetNoDelay(int fd);
// The connection is reset when sent bytes stay unacknowledged so long.
void SetUserTimeout(int fd, unsigned milliseconds);

// Source address of the default route for `family`, port 0; nothing is sent. False: no such route.
bool DefaultRouteSource(int family, SocketAddress& source);
// Addresses of the interfaces that are up, without loopback and link-local ones.
std::vector<SocketAddress> InterfaceAddresses();

}  // namespace kvxfer::tcp

#endif  // KVXFER_BACKENDS_TCP_SOCKET_H_
