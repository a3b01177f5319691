// The process at the other end of a connection, held by a pidfd: a pidfd names one process for
// ever, so that a number used again is never taken for it.

#ifndef KVXFER_BACKENDS_SHM_PROCESS_H_
#define KVXFER_BACKENDS_SHM_PROCESS_H_

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "src/backends/shm/handles.h"

namespace kvxfer::shm {

// Field 22 of /proc/<pid>/stat, clock ticks since boot. NotFound: no such process.
absl::StatusOr<uint64_t> StartTime(uint32_t pid);

// The rest of the line of /proc/<pid>/status that begins with `label`, e.g. "Uid:"; empty if there
// is none.
std::string StatusLine(uint32_t pid, std::string_view label);

class PeerProcess {
 public:
  PeerProcess() = default;

  // The process `pid` that started at `start_time` (0: unknown; not checked, nor where /proc is of
  // another namespace). The start time is read after the pidfd is held, which binds the three
  // together: as long as the pidfd shows no exit, the number `pid` belongs to this process and to
  // no later one. NotFound: it has exited; Unavailable: no pidfd here, and why; ResourceExhausted.
  static absl::StatusOr<PeerProcess> Open(uint32_t pid, uint64_t start_time);

  uint32_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }  // readable (epoll) once it has exited
  bool Exited() const;

 private:
  uint32_t pid_ = 0;
  UniqueFd pidfd_;
};

}  // namespace kvxfer::shm

#endif  // KVXFER_BACKENDS_SHM_PROCESS_H_
