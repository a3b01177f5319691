// Sockets that reach a shm backend beside its own dialler.

#ifndef KVXFER_TESTS_UNIT_BACKENDS_SHM_SOCKET_UTIL_H_
#define KVXFER_TESTS_UNIT_BACKENDS_SHM_SOCKET_UTIL_H_

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <string_view>

#include "src/backends/shm/channel.h"

namespace kvxfer::shm_test {

inline constexpr uid_t kNobody = 65534;

// An abstract name, as an address has it.
struct SocketName {
  sockaddr_un name{};
  socklen_t length = 0;

  explicit SocketName(std::string_view text) {
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }
};

inline shm::UniqueFd NewSocket() {
  return shm::UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

}  // namespace kvxfer::shm_test

#endif  // KVXFER_TESTS_UNIT_BACKENDS_SHM_SOCKET_UTIL_H_
