#include "src/backends/cuda_ipc/process.h"

#include <sys/epoll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "src/core/base/host_identity.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda_ipc {
namespace {

// pidfd_open needs no rights, so EPERM comes from a filter and not from the kernel itself.
absl::Status OpenError(int error, uint32_t pid) {
  if (error == ESRCH) return absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
  const std::string what = ErrnoText(absl::StrCat("pidfd_open of process ", pid), error);
  if (error != EPERM && error != ENOSYS) return absl::ResourceExhaustedError(what);
  return absl::UnavailableError(
      absl::StrCat(what, "; a seccomp filter forbids it",
                   error == ENOSYS ? ", or the kernel is older than Linux 5.3" : "",
                   "; allow pidfd_open in the container's seccomp profile"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<PeerProcess>> PeerProcess::Open(net::Reactor* reactor,
                                                               const HostIdentity& self,
                                                               uint32_t pid, uint64_t start_time) {
  net::Fd pidfd =
      net::Fd::Open([pid] { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); });
  if (!pidfd.valid()) return OpenError(errno, pid);
  // Checked while the pidfd is open, which ties the number to this process.
  HostIdentity them = self;
  them.pid = pid;
  them.start_time = start_time;
  if (ProcessGone(them, self)) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " has ended"));
  }
  std::unique_ptr<PeerProcess> process(new PeerProcess(reactor, pid, std::move(pidfd)));
  absl::Status added = reactor->Add(process->pidfd_.get(), process.get());
  if (!added.ok()) return added;
  process->watched_ = true;
  return process;
}

PeerProcess::~PeerProcess() {
  if (watched_) reactor_->Remove(pidfd_.get());
}

void PeerProcess::OnReady(uint32_t events) {
  if ((events & EPOLLIN) != 0) exited_ = true;
}

}  // namespace kvxfer::cuda_ipc
