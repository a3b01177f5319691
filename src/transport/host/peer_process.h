// The process at the other end of a connection, held by a pidfd. A pidfd refers to one process for
// ever, so a process that reuses the number is never mistaken for it.

#ifndef KVXFER_TRANSPORT_HOST_PEER_PROCESS_H_
#define KVXFER_TRANSPORT_HOST_PEER_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kvxfer/backend.h"
#include "src/core/base/own_fd.h"

namespace kvxfer {

// Field 22 of /proc/<pid>/stat, clock ticks since boot. NotFound: no such process, or it is hidden
// (mount option hidepid).
absl::StatusOr<uint64_t> StartTime(uint32_t pid);

// The rest of the line of /proc/<pid>/status that begins with `label`, for example "Uid:". Empty:
// no such line.
std::string StatusLine(uint32_t pid, std::string_view label);

class PeerProcess {
 public:
  PeerProcess() = default;

  // Opens the process `pid` that started at `start_time`. The start time is read after the pidfd is
  // open, which ties the three together: while the pidfd shows no exit, the number `pid` belongs to
  // this process and to no later one. It is not checked if it is 0, if that of `self` is 0, or if
  // /proc hides the process or shows another pid namespace. NotFound: the process has exited.
  // Unavailable: no pidfd here, and why. ResourceExhausted.
  static absl::StatusOr<PeerProcess> Open(const HostIdentity& self, uint32_t pid,
                                          uint64_t start_time);

  uint32_t pid() const { return pid_; }
  // Epoll reports it readable once the process has exited.
  int pidfd() const { return pidfd_.get(); }
  bool Exited() const;

 private:
  uint32_t pid_ = 0;
  OwnFd pidfd_;
};

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_PEER_PROCESS_H_
