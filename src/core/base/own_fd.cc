#include "src/core/base/own_fd.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <mutex>
#include <type_traits>

namespace kvxfer {
namespace {

// The open OwnFd descriptors of this process, one bit each. Nothing here allocates: the lock is
// held across fork(), and the child of a process with threads may not use the heap until exec.
class OpenFds {
 public:
  // Returns the one instance, with its fork handlers registered.
  static OpenFds& Get();

  // Opens a descriptor under the lock, so that no fork comes between opening and recording it.
  // Returns the generation that `fd` belongs to.
  uint32_t Open(absl::FunctionRef<int()> open, int& fd) {
    const std::lock_guard lock(mu_);
    fd = open();
    Mark(fd, true);
    return generation_;
  }

  void Close(int fd, uint32_t generation) {
    const std::lock_guard lock(mu_);
    // An OwnFd from before a fork: CloseInChild has closed its descriptor, and the number may
    // belong to another file by now.
    if (generation != generation_) return;
    Mark(fd, false);
    close(fd);
  }

 private:
  // The kernel's default of fs.nr_open. Descriptors beyond are not recorded; only their OwnFd
  // closes them.
  static constexpr size_t kMax = 1 << 20;

  void Mark(int fd, bool is_open) {
    const auto at = static_cast<size_t>(fd);
    if (fd < 0 || at >= kMax) return;
    const uint64_t bit = uint64_t{1} << (at % 64);
    if (is_open) {
      words_[at / 64] |= bit;
      used_ = std::max(used_, at / 64 + 1);
    } else {
      words_[at / 64] &= ~bit;
    }
  }

  // Async-signal-safe, as everything in the child of a process with threads must be. This thread
  // took the lock before the fork and releases it here.
  void CloseInChild() {
    for (size_t i = 0; i < used_; ++i) {
      for (; words_[i] != 0; words_[i] &= words_[i] - 1) {
        close(static_cast<int>(i * 64) + std::countr_zero(words_[i]));
      }
    }
    used_ = 0;
    ++generation_;
    mu_.unlock();
  }

  std::mutex mu_;
  uint32_t generation_ = 0;
  size_t used_ = 0;  // all words from here on are zero
  std::array<uint64_t, kMax / 64> words_{};
};

// Constant-initialised and without a destructor, because descriptors may be closed and fork() may
// be called at any time in the life of the process.
static_assert(std::is_trivially_destructible_v<OpenFds>);
constinit OpenFds open_fds;

OpenFds& OpenFds::Get() {
  [[maybe_unused]] static const int registered = pthread_atfork(
      [] { open_fds.mu_.lock(); }, [] { open_fds.mu_.unlock(); }, [] { open_fds.CloseInChild(); });
  return open_fds;
}

}  // namespace

OwnFd::OwnFd(int fd) {
  if (fd >= 0) generation_ = OpenFds::Get().Open([fd] { return fd; }, fd_);
}

OwnFd OwnFd::Open(absl::FunctionRef<int()> open) {
  OwnFd out;
  out.generation_ = OpenFds::Get().Open(open, out.fd_);
  if (out.fd_ < 0) out.fd_ = -1;
  return out;
}

void OwnFd::Reset() {
  if (fd_ >= 0) OpenFds::Get().Close(std::exchange(fd_, -1), generation_);
}

}  // namespace kvxfer
