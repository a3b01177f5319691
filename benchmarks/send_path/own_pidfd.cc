// pidfd_open for this process under valgrind, which knows it from version 3.21 on. A process does
// not see its own end, so any descriptor serves that never becomes readable.
#include <dlfcn.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>

// NOLINTNEXTLINE(google-runtime-int,readability-inconsistent-declaration-parameter-name): libc's
extern "C" long syscall(long number, ...) noexcept {
  using Call = long (*)(long, ...);  // NOLINT(google-runtime-int): as libc's
  static const auto real = reinterpret_cast<Call>(dlsym(RTLD_NEXT, "syscall"));
  long given[6];  // NOLINT(google-runtime-int): as libc's
  va_list list;
  va_start(list, number);
  for (auto& each : given) each = va_arg(list, long);  // NOLINT(google-runtime-int): as libc's
  va_end(list);
  const auto result = real(number, given[0], given[1], given[2], given[3], given[4], given[5]);
  if (number == SYS_pidfd_open && result < 0 && errno == ENOSYS && given[0] == getpid()) {
    return eventfd(0, EFD_CLOEXEC);
  }
  return result;
}
