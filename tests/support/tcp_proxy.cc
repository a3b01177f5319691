#include "tests/support/tcp_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

namespace kvxfer::testing {
namespace {

constexpr size_t kPending = 256 * 1024;
// Where a preamble says what the stream is (docs/wire-format-tcp.md).
constexpr size_t kRoleAt = 6;
constexpr size_t kRailAt = 7;
constexpr char kControl = 1;
constexpr char kData = 2;

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

}  // namespace

TcpProxy::TcpProxy() {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const sockaddr_in address = Loopback(0);
  if (bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_, 64) != 0) {
    std::abort();
  }
  wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  thread_ = std::thread([this] { Run(); });
}

TcpProxy::~TcpProxy() {
  stop_ = true;
  eventfd_write(wake_, 1);
  thread_.join();
  Reset([](const Direction&) { return true; });
  close(listener_);
  close(wake_);
}

std::string TcpProxy::address() const {
  sockaddr_in address{};
  socklen_t size = sizeof address;
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

void TcpProxy::SetTarget(const std::string& address) {
  const std::lock_guard lock(mutex_);
  target_port_ = static_cast<uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str()));
}

size_t TcpProxy::Cut() {
  const size_t count = Reset([](const Direction&) { return true; });
  eventfd_write(wake_, 1);
  return count;
}

size_t TcpProxy::CutRail(uint32_t rail) {
  const size_t count = Reset([rail](const Direction& d) {
    return d.first.size() > kRailAt && d.first[kRoleAt] == kData &&
           d.first[kRailAt] == static_cast<char>(rail);
  });
  eventfd_write(wake_, 1);
  return count;
}

void TcpProxy::Hold(bool held) {
  {
    const std::lock_guard lock(mutex_);
    held_ = held;
  }
  eventfd_write(wake_, 1);
}

size_t TcpProxy::Reset(const std::function<bool(const Direction&)>& chosen) {
  const std::lock_guard lock(mutex_);
  std::vector<int> asked;
  for (const auto& [fd, direction] : directions_) {
    if (direction.asked && chosen(direction)) asked.push_back(fd);
  }
  for (const int fd : asked) {
    for (const int end : {fd, directions_.at(fd).to}) {
      const linger reset{.l_onoff = 1, .l_linger = 0};
      setsockopt(end, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    }
    Close(fd);
  }
  return asked.size();
}

void TcpProxy::Close(int fd) {
  const int other = directions_.at(fd).to;
  close(fd);
  close(other);
  directions_.erase(fd);
  directions_.erase(other);
}

void TcpProxy::Accept() {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (client < 0) return;
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const sockaddr_in address = Loopback(target_port_);
    if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
      close(client);
      close(server);
      continue;
    }
    const int on = 1;
    setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(server, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    directions_[client] = {.to = server, .pending = {}, .asked = true};
    directions_[server] = {.to = client, .pending = {}};
  }
}

bool TcpProxy::Forward(int from) {
  Direction& d = directions_.at(from);
  if (!d.ended && d.pending.size() < kPending) {
    char buffer[64 * 1024];
    const ssize_t n = recv(from, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) d.pending.append(buffer, static_cast<size_t>(n));
    if (n > 0 && d.asked && d.first.size() <= kRailAt) {
      d.first.append(buffer, std::min(static_cast<size_t>(n), kRailAt + 1 - d.first.size()));
      if (d.first.size() > kRailAt && d.first[kRoleAt] == kControl) ++links_;
    }
    if (n == 0) d.ended = true;
    if (n < 0 && errno != EAGAIN) return false;
  }
  if (!d.pending.empty()) {
    const ssize_t n = send(d.to, d.pending.data(), d.pending.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return false;
    if (n > 0) d.pending.erase(0, static_cast<size_t>(n));
  }
  return !(d.ended && d.pending.empty());
}

void TcpProxy::Run() {
  while (!stop_) {
    std::vector<pollfd> fds = {{.fd = listener_, .events = POLLIN, .revents = 0},
                               {.fd = wake_, .events = POLLIN, .revents = 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [fd, d] : directions_) {
        if (held_) break;
        const bool space = !d.ended && d.pending.size() < kPending;
        const bool to_write = !directions_.at(d.to).pending.empty();
        fds.push_back(
            {.fd = fd,
             .events = static_cast<int16_t>((space ? POLLIN : 0) | (to_write ? POLLOUT : 0)),
             .revents = 0});
      }
    }
    poll(fds.data(), fds.size(), -1);
    eventfd_t ignored;
    eventfd_read(wake_, &ignored);
    const std::lock_guard lock(mutex_);
    for (size_t i = 2; i < fds.size(); ++i) {
      // Cut may have closed it meanwhile, and Accept, which comes last, has not reused it yet.
      if (fds[i].revents == 0 || !directions_.contains(fds[i].fd)) continue;
      const int other = directions_.at(fds[i].fd).to;
      if (!Forward(fds[i].fd) || !Forward(other)) Close(fds[i].fd);
    }
    Accept();
  }
}

}  // namespace kvxfer::testing
