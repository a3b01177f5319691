#include "src/backends/shm/attach.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <string>

#include "src/core/base/own_fd.h"
#include "src/core/base/strings.h"

namespace kvxfer::shm {
namespace {

iovec Piece(uint64_t address, size_t bytes) {
  return {reinterpret_cast<void*>(static_cast<uintptr_t>(address)), bytes};
}

bool EndsAt(const iovec& piece, uint64_t address) {
  return reinterpret_cast<uintptr_t>(piece.iov_base) + piece.iov_len == address;
}

ssize_t MoveWord(OpKind kind, uint32_t pid, uint64_t* local, uint64_t remote) {
  const iovec here{local, sizeof(*local)};
  const iovec there = Piece(remote, sizeof(*local));
  const auto id = static_cast<pid_t>(pid);
  return kind == OpKind::kWrite ? process_vm_writev(id, &here, 1, &there, 1, 0)
                                : process_vm_readv(id, &here, 1, &there, 1, 0);
}

bool ByteReadable(pid_t pid, const void* address) {
  char byte = 0;
  const iovec here{&byte, 1};
  const iovec there{const_cast<void*>(address), 1};
  return process_vm_readv(pid, &here, 1, &there, 1, 0) == 1;
}

int YamaScope() {
  OwnFd fd(open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC));
  char digit = '0';
  if (!fd.valid() || read(fd.get(), &digit, 1) != 1) return 0;
  return digit - '0';
}

// Whether `other` has capabilities that `own` lacks; both are hexadecimal masks.
bool HasMore(const std::string& other, const std::string& own) {
  auto parse = [](const std::string& text) {
    uint64_t bits = 0;
    const size_t at = text.find_first_not_of(" \t");
    if (at == std::string::npos) return bits;
    std::from_chars(text.data() + at, text.data() + text.size(), bits, 16);
    return bits;
  };
  return (parse(other) & ~parse(own)) != 0;
}

// The most specific cause that is found. `error` is the errno of the probe.
std::string Explain(int error, uint32_t pid, const OfferBody& offer) {
  // A process may always attach to itself, unless a filter forbids the system call as such.
  uint64_t word = 0;
  if (MoveWord(OpKind::kRead, static_cast<uint32_t>(getpid()), &word,
               reinterpret_cast<uint64_t>(&offer.probe_value)) < 0) {
    return ErrnoText(
        "a seccomp filter (or the kernel) forbids process_vm_readv in this process; allow it, "
        "e.g. with --cap-add=SYS_PTRACE",
        errno);
  }
  if (error == ENOSYS) return "the kernel lacks process_vm_writev, or a seccomp filter hides it";
  if (error != EPERM) return ErrnoText("the probe of its memory failed", error);
  if (offer.dumpable != 1) {
    return "it is not dumpable (PR_SET_DUMPABLE is 0, e.g. after a change of user); set it to 1 "
           "there";
  }
  if (StatusLine(pid, "Uid:") != StatusLine(static_cast<uint32_t>(getpid()), "Uid:") ||
      StatusLine(pid, "Gid:") != StatusLine(static_cast<uint32_t>(getpid()), "Gid:")) {
    return "its real, effective and saved user and group ids are not all equal to those here; "
           "start both as the same user";
  }
  if (const int scope = YamaScope(); scope > 0) {
    return absl::StrCat("Yama forbids it (kernel.yama.ptrace_scope is ", scope,
                        "); set it to 0, or call prctl(PR_SET_PTRACER) there");
  }
  if (HasMore(StatusLine(pid, "CapPrm:"), StatusLine(static_cast<uint32_t>(getpid()), "CapPrm:"))) {
    return "it has capabilities that this process lacks; start both with the same";
  }
  return "the kernel forbids it (another user namespace, SELinux or AppArmor)";
}

}  // namespace

bool AttachBatch::Add(uint64_t local, uint64_t remote, uint64_t bytes) {
  const bool joins_local = locals_ > 0 && EndsAt(local_[locals_ - 1], local);
  const bool joins_remote = remotes_ > 0 && EndsAt(remote_[remotes_ - 1], remote);
  if ((!joins_local && locals_ == kMaxPieces) || (!joins_remote && remotes_ == kMaxPieces)) {
    return false;
  }
  if (joins_local) {
    local_[locals_ - 1].iov_len += bytes;
  } else {
    local_[locals_++] = Piece(local, bytes);
  }
  if (joins_remote) {
    remote_[remotes_ - 1].iov_len += bytes;
  } else {
    remote_[remotes_++] = Piece(remote, bytes);
  }
  bytes_ += bytes;
  return true;
}

absl::StatusOr<size_t> AttachBatch::Move(OpKind kind, uint32_t pid) const {
  const auto id = static_cast<pid_t>(pid);
  const bool write = kind == OpKind::kWrite;
  const ssize_t moved =
      write ? process_vm_writev(id, local_.data(), locals_, remote_.data(), remotes_, 0)
            : process_vm_readv(id, local_.data(), locals_, remote_.data(), remotes_, 0);
  if (moved > 0) return static_cast<size_t>(moved);
  const int error = moved == 0 ? EFAULT : errno;
  const std::string what =
      absl::StrCat(write ? "process_vm_writev to process " : "process_vm_readv from process ", pid);
  if (error == ESRCH) return absl::UnavailableError(absl::StrCat("process ", pid, " exited"));
  if (error != EFAULT) return ErrnoStatus(error, what);
  // Which side faulted? A write reads here and writes there, a read the reverse. Only reading can
  // be tried without harm, so the other side is inferred.
  const void* here = local_[0].iov_base;
  const void* there = remote_[0].iov_base;
  const bool local_fault = write ? !ByteReadable(getpid(), here) : ByteReadable(id, there);
  return absl::FailedPreconditionError(absl::StrCat(
      ToAbsl(ErrnoText(what, error)), " at ", local_fault ? "local" : "remote", " address 0x",
      absl::Hex(reinterpret_cast<uintptr_t>(local_fault ? here : there)),
      "; the registered region is unmapped or protected there"));
}

absl::Status CheckProbe(uint32_t pid, uint64_t address, uint64_t value) {
  uint64_t word = 0;
  const bool readable = MoveWord(OpKind::kRead, pid, &word, address) == sizeof(word);
  if (readable && word == value) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "process ", pid,
      !readable && errno == ESRCH
          ? " exited"
          : " does not hold the memory of this connection any more: it runs another program (exec)"
            " or has dropped the connection"));
}

absl::Status ProbeAttach(const PeerProcess& peer, const OfferBody& offer) {
  uint64_t word = 0;
  int error = 0;
  if (MoveWord(OpKind::kRead, peer.pid(), &word, offer.probe_address) != sizeof(word)) {
    error = errno;
  } else if (word != offer.probe_value) {
    return absl::PermissionDeniedError(absl::StrCat(
        "cross-memory attach to process ", peer.pid(),
        " reads other memory than the peer's: its process id belongs to another pid namespace"));
  } else {
    // The second word is there to be overwritten; a write has to be tried too.
    word = ~word;
    if (MoveWord(OpKind::kWrite, peer.pid(), &word, offer.probe_address + sizeof(word)) !=
        sizeof(word)) {
      error = errno;
    }
  }
  if (error == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat("cross-memory attach to process ", peer.pid(),
                   " is refused: ", Explain(error, peer.pid(), offer)));
}

}  // namespace kvxfer::shm
