// A file descriptor that closes itself, and that no forked child keeps.
//
// A child that never calls exec would hold copies of its parent's sockets: when the parent dies,
// its peers see no end of the connection and its port stays taken. So fork() closes them in the
// child, before anything else runs there; it only closes and never shuts down, which would end the
// parent's connections. In the child an OwnFd made before the fork does nothing any more, also
// where its number has been used again. Children made without fork handlers (vfork, posix_spawn,
// clone) are left to CLOEXEC.
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
  // Takes `fd`; negative is none. A fork since `fd` was opened has left a copy in the child.
  explicit OwnFd(int fd);
  // Takes what `open` returns, with no fork in between; errno stays as `open` left it. `open` must
  // neither block nor make an OwnFd.
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
  uint32_t generation_ = 0;  // forks between the first process and the one that opened it
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_BASE_OWN_FD_H_
