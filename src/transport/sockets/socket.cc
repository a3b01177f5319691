#include "src/transport/sockets/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "src/core/base/reason.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"

namespace kvxfer::net {
namespace {

constexpr int kBacklog = 511;

struct HostPort {
  std::string host;
  uint16_t port = 0;
};

absl::Status BadAddress(std::string_view text, std::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat("tcp address '", Printable(text, kMaxPeerTextBytes), "': ", ToAbsl(why),
                   "; expected host:port or [v6]:port"));
}

absl::StatusOr<HostPort> Split(std::string_view text, uint16_t default_port) {
  std::string_view host = text;
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return BadAddress(text, "']' is missing");
    host = text.substr(1, end - 1);
    port = text.substr(end + 1);
    if (!port.empty() && port.front() != ':') return BadAddress(text, "text after ']'");
    // Exactly one colon separates host and port; more of them make a bare IPv6 address.
  } else if (text.find(':') == text.rfind(':') && text.find(':') != std::string_view::npos) {
    host = text.substr(0, text.find(':'));
    port = text.substr(text.find(':'));
  }
  if (host.empty()) return BadAddress(text, "no host");
  HostPort out{.host = std::string(host), .port = default_port};
  if (port.empty()) return out;
  port.remove_prefix(1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
  if (error != std::errc() || end != port.data() + port.size()) {
    return BadAddress(text, "the port is not a number from 0 to 65535");
  }
  return out;
}

// The address from which datagrams to `to` would leave; its length is 0 if there is no route.
// Connecting a datagram socket sends nothing.
SocketAddress SourceTo(const SocketAddress& to) {
  Fd fd(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid() || ::connect(fd.get(), to.get(), to.length) != 0) return {};
  return LocalAddress(fd.get());
}

// The simplest congestion control, which every kernel has and allows.
void ChoosePlainControl(int fd) {
  constexpr std::string_view kPlain = "reno";
  ::setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kPlain.data(), kPlain.size());
}

const sockaddr_in& V4(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in&>(a.storage);
}
const sockaddr_in6& V6(const SocketAddress& a) {
  return reinterpret_cast<const sockaddr_in6&>(a.storage);
}

}  // namespace

uint16_t SocketAddress::port() const {
  return ntohs(family() == AF_INET6 ? V6(*this).sin6_port : V4(*this).sin_port);
}

void SocketAddress::set_port(uint16_t port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(storage).sin6_port = htons(port);
  } else {
    reinterpret_cast<sockaddr_in&>(storage).sin_port = htons(port);
  }
}

bool SocketAddress::IsLoopback() const {
  if (family() == AF_INET) return (ntohl(V4(*this).sin_addr.s_addr) >> 24) == 127;
  const in6_addr& address = V6(*this).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) return address.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&address);
}

bool SocketAddress::IsWildcard() const {
  if (family() == AF_INET) return V4(*this).sin_addr.s_addr == htonl(INADDR_ANY);
  const in6_addr& address = V6(*this).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&address)) {
    return std::all_of(address.s6_addr + 12, address.s6_addr + 16,
                       [](uint8_t b) { return b == 0; });
  }
  return IN6_IS_ADDR_UNSPECIFIED(&address);
}

std::string SocketAddress::Host() const {
  char host[INET6_ADDRSTRLEN] = "?";
  if (family() == AF_INET6) {
    inet_ntop(AF_INET6, &V6(*this).sin6_addr, host, sizeof(host));
  } else {
    inet_ntop(AF_INET, &V4(*this).sin_addr, host, sizeof(host));
  }
  return host;
}

std::string SocketAddress::ToString() const {
  if (family() == AF_INET6) return absl::StrCat("[", Host(), "]:", port());
  return absl::StrCat(Host(), ":", port());
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(std::string_view text, uint16_t default_port,
                                                   Names names) {
  absl::StatusOr<HostPort> parts = Split(text, default_port);
  if (!parts.ok()) return parts.status();
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = names == Names::kNumericOnly ? AI_NUMERICHOST : 0;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(parts->host.c_str(), nullptr, &hints, &list);
  // Not a bad address: the process has no descriptor for the look-up.
  if (error == EAI_SYSTEM && OutOfResources(errno)) {
    return ErrnoStatus(errno, absl::StrCat("looking up ", Printable(text, kMaxPeerTextBytes)));
  }
  if (error != 0) return BadAddress(text, gai_strerror(error));
  std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, &freeaddrinfo);
  std::vector<SocketAddress> out;
  for (const addrinfo* a = list; a != nullptr; a = a->ai_next) {
    if (a->ai_family != AF_INET && a->ai_family != AF_INET6) continue;
    SocketAddress& address = out.emplace_back();
    std::memcpy(&address.storage, a->ai_addr, a->ai_addrlen);
    address.length = a->ai_addrlen;
    address.set_port(parts->port);
  }
  if (out.empty()) return BadAddress(text, "no IPv4 or IPv6 address");
  return out;
}

absl::StatusOr<Fd> Listen(const SocketAddress& address) {
  const std::string where = absl::StrCat("tcp: listening on ", address.ToString());
  Fd fd = Fd::Open(
      [&] { return ::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!fd.valid()) return ErrnoStatus(errno, where);
  const int on = 1;
  const int off = 0;
  // A restarted agent must get its port back although old connections are in TIME_WAIT.
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (address.IsLoopback()) ChoosePlainControl(fd.get());  // accepted connections inherit it
  // One socket for both families, where the system's default may be IPv6 only.
  if (address.family() == AF_INET6) {
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
  }
  if (::bind(fd.get(), address.get(), address.length) != 0 || ::listen(fd.get(), kBacklog) != 0) {
    const int error = errno;
    if (error == EADDRINUSE) {
      return WithReason(
          absl::FailedPreconditionError(absl::StrCat(
              ErrnoText(where, error),
              "; another process listens there: set `listen` (KVXFER_LISTEN) to another port, or "
              "to port 0 for any free one")),
          Reason::kAddressInUse);
    }
    return absl::InvalidArgumentError(absl::StrCat(
        ErrnoText(where, error), "; set `listen` (KVXFER_LISTEN) to an address of this host"));
  }
  return fd;
}

SocketAddress LocalAddress(int fd) {
  SocketAddress out;
  out.length = sizeof(out.storage);
  if (::getsockname(fd, out.get(), &out.length) != 0) out.length = 0;
  return out;
}

absl::StatusOr<Fd> StartConnect(const SocketAddress& to, const SocketAddress& from) {
  Fd fd = Fd::Open(
      [&] { return ::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!fd.valid()) {
    return ErrnoStatus(errno, "socket", absl::StatusCode::kResourceExhausted);
  }
  // Control messages are small and latency counts.
  SetNoDelay(fd.get());
  if (IsOfThisHost(to)) ChoosePlainControl(fd.get());
  if (from.length != 0) {
    // The port is chosen at connect, so that only the pair of both addresses must be unused.
    const int on = 1;
    ::setsockopt(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on));
    if (::bind(fd.get(), from.get(), from.length) != 0) {
      return absl::UnavailableError(ErrnoText(absl::StrCat("bind to ", from.Host()), errno));
    }
  }
  if (::connect(fd.get(), to.get(), to.length) != 0 && errno != EINPROGRESS) {
    return absl::UnavailableError(ErrnoText("connect", errno));
  }
  return fd;
}

bool IsOfThisHost(const SocketAddress& address) {
  if (address.IsLoopback()) return true;
  SocketAddress own = SourceTo(address);
  own.set_port(address.port());
  return own.length != 0 && own.ToString() == address.ToString();
}

bool ConnectionWaits(int listener) {
  pollfd look{.fd = listener, .events = POLLIN, .revents = 0};
  return ::poll(&look, 1, 0) == 1;
}

int SocketError(int fd) {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

void SetNoDelay(int fd) {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void SetUserTimeout(int fd, unsigned milliseconds) {
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &milliseconds, sizeof(milliseconds));
}

void TuneIfLocal(int fd) {
  SocketAddress peer;
  peer.length = sizeof(peer.storage);
  if (::getpeername(fd, peer.get(), &peer.length) != 0) return;
  SocketAddress own = LocalAddress(fd);
  // Only the host parts are compared.
  own.set_port(peer.port());
  if (!peer.IsLoopback() && own.ToString() != peer.ToString()) return;
  ChoosePlainControl(fd);
}

void SetKeepAlive(int fd) {
  constexpr int kIdleSeconds = 30;
  constexpr int kIntervalSeconds = 10;
  constexpr int kProbes = 3;
  const int on = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof(kIdleSeconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kIntervalSeconds, sizeof(kIntervalSeconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(kProbes));
}

bool DefaultRouteSource(int family, SocketAddress& source) {
  // Documentation addresses (RFC 5737, RFC 3849), which are routed like any other.
  const char* somewhere = family == AF_INET6 ? "[2001:db8::1]:9" : "192.0.2.1:9";
  absl::StatusOr<std::vector<SocketAddress>> to = Resolve(somewhere, 9, Names::kNumericOnly);
  if (!to.ok()) return false;
  source = SourceTo(to->front());
  if (source.length == 0 || source.IsWildcard() || source.IsLoopback()) return false;
  source.set_port(0);
  return true;
}

std::vector<SocketAddress> InterfaceAddresses() {
  std::vector<SocketAddress> out;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return out;
  std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    const int family = i->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    SocketAddress address;
    address.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&address.storage, i->ifa_addr, address.length);
    const bool link_local = family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&V6(address).sin6_addr);
    // A link-local address needs a scope id, which means nothing on another host.
    if (address.IsLoopback() || link_local) continue;
    address.set_port(0);
    out.push_back(address);
  }
  return out;
}

}  // namespace kvxfer::net
