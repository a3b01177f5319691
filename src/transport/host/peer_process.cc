#include "src/transport/host/peer_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <charconv>

#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Empty: no such process, or /proc hides it. An error: it could not be read.
absl::StatusOr<std::string> ReadProc(uint32_t pid, std::string_view file) {
  const std::string path = absl::StrCat("/proc/", pid, "/", ToAbsl(file));
  OwnFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && OutOfResources(errno)) {
    return ErrnoStatus(errno, absl::StrCat("open of ", path));
  }
  if (!fd.valid()) return std::string();
  std::string text(4096, '\0');
  const ssize_t got = read(fd.get(), text.data(), text.size());
  text.resize(got > 0 ? static_cast<size_t>(got) : 0);
  return text;
}

// Whether /proc shows this process's pid namespace. It does not if a namespace was made without
// mounting /proc again.
bool ProcIsOwn() {
  char text[32];
  const ssize_t n = readlink("/proc/self", text, sizeof(text));
  return n > 0 && std::string_view(text, static_cast<size_t>(n)) == std::to_string(getpid());
}

// pidfd_open needs no rights, so EPERM comes from a filter and not from the kernel itself.
absl::Status OpenError(int error, uint32_t pid) {
  if (error == ESRCH) return absl::NotFoundError(absl::StrCat("process ", pid, " exited"));
  const std::string what = absl::StrCat("pidfd_open of process ", pid);
  if (error != EPERM && error != ENOSYS) return ErrnoStatus(error, what);
  return absl::UnavailableError(
      absl::StrCat(ToAbsl(ErrnoText(what, error)), "; a seccomp filter forbids it",
                   error == ENOSYS ? ", or the kernel is older than Linux 5.3" : "",
                   "; allow pidfd_open in the container's seccomp profile"));
}

}  // namespace

absl::StatusOr<uint64_t> StartTime(uint32_t pid) {
  const absl::StatusOr<std::string> read = ReadProc(pid, "stat");
  if (!read.ok()) return read.status();
  const std::string& text = *read;
  // The command name may contain spaces and parentheses, so fields are counted from the last ')'.
  size_t at = text.rfind(')');
  for (int field = 2; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at + 1);
  uint64_t ticks = 0;
  if (at == std::string::npos ||
      std::from_chars(text.data() + at + 1, text.data() + text.size(), ticks).ec != std::errc()) {
    return absl::NotFoundError(absl::StrCat("process ", pid, " exited, or /proc hides it"));
  }
  return ticks;
}

std::string StatusLine(uint32_t pid, std::string_view label) {
  const std::string text = "\n" + ReadProc(pid, "status").value_or("");
  const size_t at = text.find("\n" + std::string(label));
  if (at == std::string::npos) return {};
  const size_t begin = at + 1 + label.size();
  return text.substr(begin, text.find('\n', begin) - begin);
}

absl::StatusOr<PeerProcess> PeerProcess::Open(const HostIdentity& self, uint32_t pid,
                                              uint64_t start_time) {
  PeerProcess process;
  process.pid_ = pid;
  process.pidfd_ = OwnFd::Open([pid] { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); });
  if (!process.pidfd_.valid()) return OpenError(errno, pid);
  if (process.Exited()) return absl::NotFoundError(absl::StrCat("process ", pid, " exited"));
  if (start_time == 0 || self.start_time == 0 || !ProcIsOwn()) return process;
  absl::StatusOr<uint64_t> started = StartTime(pid);
  // A missing entry proves nothing: `hidepid` hides those of processes that this one may not trace.
  if (absl::IsNotFound(started.status()) && !process.Exited()) return process;
  if (!started.ok()) return started.status();
  if (*started != start_time) {
    return absl::NotFoundError(
        absl::StrCat("process ", pid, " exited; its number belongs to another process now"));
  }
  return process;
}

bool PeerProcess::Exited() const {
  pollfd fd{.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  return poll(&fd, 1, 0) == 1;
}

}  // namespace kvxfer
