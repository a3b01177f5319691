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

// The open descriptors of this process, a bit each. Nothing here allocates: its lock is held over
// fork(), when another thread may not get at the heap.
class OpenFds {
 public:
  // With the fork handlers in place.
  static OpenFds& Get();

  // The generation that `fd` belongs to.
  uint32_t Open(absl::FunctionRef<int()> open, int& fd) {
    const std::lock_guard lock(mu_);
    fd = open();
    Mark(fd, true);
    return generation_;
  }

  void Close(int fd, uint32_t generation) {
    const std::lock_guard lock(mu_);
    if (generation != generation_) return;
    Mark(fd, false);
    close(fd);
  }

 private:
  // The kernel's default of fs.nr_open; what lies beyond is merely closed by its owner.
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

  // Async-signal-safe, as all must be in the child of a process with threads. The lock was taken
  // before the fork by this very thread.
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
  size_t used_ = 0;  // words beyond are zero
  std::array<uint64_t, kMax / 64> words_{};
};

// There from the start and without a destructor: descriptors may be closed, and fork() called, at
// any time in the life of the process.
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
