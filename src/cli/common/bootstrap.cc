#include "src/cli/common/bootstrap.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <memory>

#include "src/core/base/strings.h"

namespace kvxfer::cli {
namespace {

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

absl::StatusOr<Addresses> Resolve(const HostPort& address, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve '", address.host, "': ", gai_strerror(error)));
  }
  return Addresses(found, &freeaddrinfo);
}

uint16_t BoundPort(int fd) {
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size);
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<sockaddr_in&>(bound).sin_port);
}

// 0, or the errno of the failure.
int ConnectWithin(int fd, const addrinfo& to, Duration timeout) {
  if (connect(fd, to.ai_addr, to.ai_addrlen) == 0) return 0;
  if (errno != EINPROGRESS) return errno;
  pollfd wait{.fd = fd, .events = POLLOUT, .revents = 0};
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  if (poll(&wait, 1, static_cast<int>(limit)) <= 0) return ETIMEDOUT;
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

}  // namespace

absl::StatusOr<BootstrapServer> BootstrapServer::Listen(const HostPort& address) {
  absl::StatusOr<Addresses> found = Resolve(address, AI_PASSIVE);
  if (!found.ok()) return absl::InvalidArgumentError(found.status().message());
  const addrinfo& a = **found;
  UniqueFd fd(socket(a.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (fd.get() < 0 || bind(fd.get(), a.ai_addr, a.ai_addrlen) != 0 || listen(fd.get(), 128) != 0) {
    const int error = errno;
    return absl::FailedPreconditionError(
        absl::StrCat(ErrnoText("listening on " + address.ToString(), error),
                     "; choose another address or port with --listen"));
  }
  const uint16_t port = BoundPort(fd.get());
  return BootstrapServer(std::move(fd), {.host = address.host, .port = port});
}

void BootstrapServer::Run(int stop_fd, const std::function<void(Channel&)>& serve) {
  for (;;) {
    pollfd waits[] = {{.fd = listener_.get(), .events = POLLIN, .revents = 0},
                      {.fd = stop_fd, .events = POLLIN, .revents = 0}};
    poll(waits, std::size(waits), -1);
    if (waits[1].revents != 0) break;
    JoinEnded(/*all=*/false);
    if (waits[0].revents != 0) Accept(serve);
  }
  {
    const std::lock_guard lock(clients_->mutex);
    for (Client& client : clients_->list) client.channel.Shutdown();
  }
  JoinEnded(/*all=*/true);
}

void BootstrapServer::Accept(const std::function<void(Channel&)>& serve) {
  UniqueFd fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (fd.get() < 0) {
    // Out of descriptors: the listener stays readable, so that the loop would spin without a pause.
    if (errno == EMFILE || errno == ENFILE) poll(nullptr, 0, 50);
    return;
  }
  const int on = 1;
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd.get(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  Channel channel(std::move(fd), "the client");
  const std::lock_guard lock(clients_->mutex);
  if (clients_->list.size() >= kMaxClients) {
    (void)channel.Send(ErrorAnswer(absl::UnavailableError("too many clients; try again later")),
                       std::chrono::milliseconds(10));
    return;
  }
  Client& client = clients_->list.emplace_back();
  client.channel = std::move(channel);
  client.thread = std::thread([this, &client, &serve] {
    serve(client.channel);
    // The other side sees the end now; joining the thread closes the descriptor.
    const std::lock_guard ending(clients_->mutex);
    client.channel.Shutdown();
    client.done = true;
  });
}

void BootstrapServer::JoinEnded(bool all) {
  std::list<Client> ended;
  {
    const std::lock_guard lock(clients_->mutex);
    for (auto it = clients_->list.begin(); it != clients_->list.end();) {
      const auto next = std::next(it);
      if (all || it->done) ended.splice(ended.end(), clients_->list, it);
      it = next;
    }
  }
  // Without the lock: an ending thread takes it.
  for (Client& client : ended) client.thread.join();
}

absl::StatusOr<Channel> ConnectTo(const HostPort& address, Duration timeout) {
  absl::StatusOr<Addresses> found = Resolve(address, 0);
  if (!found.ok()) return found.status();
  int error = EADDRNOTAVAIL;
  for (const addrinfo* a = found->get(); a != nullptr; a = a->ai_next) {
    UniqueFd fd(socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    error = fd.get() < 0 ? errno : ConnectWithin(fd.get(), *a, timeout);
    if (error != 0) continue;
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return Channel(std::move(fd), address.ToString());
  }
  return absl::UnavailableError(
      absl::StrCat(ErrnoText("connecting to " + address.ToString(), error),
                   "; is `kvxfer serve` running there?"));
}

std::string LocalHost(const Channel& channel) {
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  const auto* address = reinterpret_cast<const sockaddr*>(&local);
  if (getsockname(channel.fd(), reinterpret_cast<sockaddr*>(&local), &size) != 0 ||
      (local.ss_family != AF_INET && local.ss_family != AF_INET6)) {
    return {};
  }
  std::array<char, NI_MAXHOST> host{};
  if (getnameinfo(address, size, host.data(), host.size(), nullptr, 0, NI_NUMERICHOST) != 0) {
    return {};
  }
  // A link-local address includes the name of a device of this host, which a peer cannot use.
  const std::string_view text = host.data();
  return text.find('%') == std::string_view::npos ? std::string(text) : std::string();
}

}  // namespace kvxfer::cli
