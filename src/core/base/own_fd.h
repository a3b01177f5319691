// A file descriptor that closes itself and that forked children do not keep.
//
// Without this, a child that never calls exec would hold copies of its parent's sockets. When the
// parent died, its peers would see no end of the connection, and its port would stay taken. So
// fork() closes the descriptors in the child before anything else runs there. It closes them
// without shutdown(), which would end the parent's connections. In the child, an OwnFd from before
// the fork does nothing, even if its number is in use again. Children made without fork handlers
// (vfork, posix_spawn, clone) rely on CLOEXEC.
//
// Thread-safety: different objects from any thread, and fork() at any time.

#ifndef KVXFER_CORE_BASE_OWN_FD_H_
#define KVXFER_CORE_BASE_OWN_FD_H_

#include <cstdint>
#include <utility>

#include "absl/functional/function_ref.h"

namespace kvxfer {

class OwnFd {
 public:
  OwnFd() = default;
  // Takes `fd`; a negative value means none. If the process forked after `fd` was opened and before
  // this call, the child keeps its copy.
  explicit OwnFd(int fd);
  // Takes the descriptor that `open` returns; no fork can come in between. errno stays as `open`
  // left it. `open` must neither block nor create an OwnFd.
  static OwnFd Open(absl::FunctionRef<int()> open);

  OwnFd(OwnFd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  OwnFd& operator=(OwnFd&& other) noexcept {
    if (this != &other) {
      Reset();
      fd_ = std::exchange(other.fd_, -1);
      generation_ = other.generation_;
    }
    return *this;
  }
  OwnFd(const OwnFd&) = delete;
  OwnFd& operator=(const OwnFd&) = delete;
  ~OwnFd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void Reset();

 private:
  int fd_ = -1;
  uint32_t generation_ = 0;  // number of forks between the first process and the one that opened it
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_OWN_FD_H_
