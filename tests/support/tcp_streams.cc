#include "tests/support/tcp_streams.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "src/transport/sockets/socket.h"

namespace kvxfer::testing {
namespace {

// What the backend gives data streams, and nothing else here has.
constexpr int kDataTimeoutMs = 30'000;

std::vector<int> Descriptors() {
  std::vector<int> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    out.push_back(std::atoi(entry.path().filename().c_str()));
  }
  return out;
}

bool IsDataStream(int fd) {
  int timeout_ms = 0;
  socklen_t length = sizeof(timeout_ms);
  return ::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &length) == 0 &&
         timeout_ms == kDataTimeoutMs;
}

}  // namespace

std::vector<StreamEnd> DataStreams() {
  std::vector<StreamEnd> out;
  for (const int fd : Descriptors()) {
    net::SocketAddress peer;
    peer.length = sizeof(peer.storage);
    if (::getpeername(fd, peer.get(), &peer.length) != 0) continue;
    if (peer.family() != AF_INET && peer.family() != AF_INET6) continue;
    if (!IsDataStream(fd)) continue;
    out.push_back({.fd = fd, .local = net::LocalAddress(fd).ToString(), .peer = peer.ToString()});
  }
  return out;
}

std::vector<StreamEnd> OneDataStream() {
  std::vector<StreamEnd> all = DataStreams();
  if (all.empty()) return all;
  const StreamEnd first = all.front();
  std::erase_if(all, [&](const StreamEnd& end) {
    const bool same = end.local == first.local && end.peer == first.peer;
    const bool other = end.local == first.peer && end.peer == first.local;
    return !same && !other;
  });
  return all;
}

void Blackhole(const std::vector<StreamEnd>& ends) {
  // A program that takes 0 bytes of each packet: the socket drops it.
  sock_filter drop{.code = BPF_RET | BPF_K, .jt = 0, .jf = 0, .k = 0};
  const sock_fprog program{.len = 1, .filter = &drop};
  for (const StreamEnd& end : ends) {
    if (::setsockopt(end.fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0) {
      std::abort();
    }
  }
}

void PassOnlySmall(uint16_t port, uint32_t most) {
  sock_filter steps[] = {BPF_STMT(BPF_LD | BPF_W | BPF_LEN, 0),
                         BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, most, 0, 1),
                         BPF_STMT(BPF_RET | BPF_K, 0), BPF_STMT(BPF_RET | BPF_K, UINT32_MAX)};
  const sock_fprog program{.len = std::size(steps), .filter = steps};
  bool found = false;
  for (const int fd : Descriptors()) {
    int listens = 0;
    socklen_t length = sizeof(listens);
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &length) != 0 || listens == 0)
      continue;
    if (net::LocalAddress(fd).port() != port) continue;
    found = true;
    // What is accepted has the filter of its listener.
    if (::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)) != 0)
      std::abort();
  }
  if (!found) std::abort();
}

}  // namespace kvxfer::testing
