#include "tests/support/fake_fabric/wire.h"

#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>
#include <vector>

#include "tests/support/fake_fabric/gpu.h"

namespace fake_fabric {
namespace {

struct SocketName {
  sockaddr_un address{};
  socklen_t length = 0;
};

SocketName NameOf(uint64_t node) {
  SocketName name;
  name.address.sun_family = AF_UNIX;
  // In the abstract name space: it goes with the process.
  const int written = std::snprintf(name.address.sun_path + 1, sizeof(name.address.sun_path) - 1,
                                    "fake_fabric.%016llx", static_cast<unsigned long long>(node));
  name.length =
      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1) + static_cast<socklen_t>(written);
  return name;
}

struct Words {
  static constexpr size_t kCount = size_t{1} << 18;
  std::mutex mutex;
  std::vector<uint32_t> free;
  uint32_t used = 0;
  std::atomic<uint64_t> value[kCount];
};
// Not on the heap: no leak to a sanitizer, and pages that nobody used cost nothing.
Words words;

}  // namespace

uint64_t TrulyRandom() {
  uint64_t value = 0;
  while (value == 0) {
    if (getrandom(&value, sizeof(value), 0) != sizeof(value)) value = 0;
  }
  return value;
}

Wire::Wire()
    : node_(TrulyRandom()), fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
  const SocketName name = NameOf(node_);
  if (fd_ >= 0 && bind(fd_, reinterpret_cast<const sockaddr*>(&name.address), name.length) != 0) {
    close(fd_);
    fd_ = -1;
  }
}

Wire::~Wire() {
  if (fd_ >= 0) close(fd_);
}

SendResult Wire::Send(uint64_t node, const void* datagram, size_t bytes) const {
  const SocketName name = NameOf(node);
  const ssize_t sent = sendto(fd_, datagram, bytes, MSG_DONTWAIT | MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&name.address), name.length);
  if (sent >= 0) return SendResult::kSent;
  return errno == ECONNREFUSED || errno == ENOENT ? SendResult::kGone : SendResult::kFull;
}

size_t Wire::Receive(void* datagram, size_t space) const {
  const ssize_t got = recv(fd_, datagram, space, MSG_DONTWAIT);
  return got < 0 ? 0 : static_cast<size_t>(got);
}

Ticket::Ticket() {
  const std::lock_guard lock(words.mutex);
  uint32_t index = words.used;
  if (!words.free.empty()) {
    index = words.free.back();
    words.free.pop_back();
  } else if (words.used < Words::kCount) {
    ++words.used;
  } else {
    return;
  }
  name_ = {.at = reinterpret_cast<uint64_t>(&words.value[index]), .value = TrulyRandom()};
  words.value[index].store(name_.value);
}

Ticket::~Ticket() {
  if (!valid()) return;
  auto* const word = reinterpret_cast<std::atomic<uint64_t>*>(name_.at);
  word->store(0);
  const std::lock_guard lock(words.mutex);
  words.free.push_back(static_cast<uint32_t>(word - words.value));
}

int Fetch(pid_t pid, void* to, uint64_t from, size_t bytes, const TicketName& ticket) {
  if (IsGpuMemory(reinterpret_cast<uint64_t>(to))) {
    std::vector<std::byte> staging(bytes);
    const int error = Fetch(pid, staging.data(), from, bytes, ticket);
    return error != 0 ? error : Land(reinterpret_cast<uint64_t>(to), staging.data(), bytes);
  }
  // Of another process it cannot be read.
  if (pid == getpid() && IsGpuMemory(from)) {
    if (!ReadGpu(to, from, bytes)) return EFAULT;
    bytes = 0;
  }
  uint64_t seen = 0;
  const iovec local[] = {{to, bytes}, {&seen, sizeof(seen)}};
  const iovec remote[] = {{reinterpret_cast<void*>(from), bytes},
                          {reinterpret_cast<void*>(ticket.at), sizeof(seen)}};
  // The kernel goes through the pieces in this order.
  const ssize_t got = process_vm_readv(pid, local, 2, remote, 2, 0);
  if (got < 0) return errno;
  if (static_cast<size_t>(got) != bytes + sizeof(seen)) return EFAULT;
  return seen == ticket.value ? 0 : ECANCELED;
}

int Land(uint64_t to, const void* from, size_t bytes) {
  if (IsGpuMemory(to)) return WriteGpu(to, from, bytes) ? 0 : EFAULT;
  const iovec local = {const_cast<void*>(from), bytes};
  const iovec remote = {reinterpret_cast<void*>(to), bytes};
  const ssize_t put = process_vm_writev(getpid(), &local, 1, &remote, 1, 0);
  if (put < 0) return errno;
  return static_cast<size_t>(put) == bytes ? 0 : EFAULT;
}

}  // namespace fake_fabric
