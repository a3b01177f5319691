#include "tests/support/tcp_streams.h"

#include <linux/filter.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdlib>
#include <filesystem>

#include "src/net/socket.h"

namespace kvxfer::testing {
namespace {

// What the backend gives data streams, and nothing else here has.
constexpr int kDataTimeoutMs = 30'000;

bool IsDataStream(int fd) {
  int timeout_ms = 0;
  socklen_t length = sizeof(timeout_ms);
  return ::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &length) == 0 &&
         timeout_ms == kDataTimeoutMs;
}

}  // namespace

std::vector<StreamEnd> DataStreams() {
  std::vector<StreamEnd> out;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
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

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

}  // namespace kvxfer::testing
