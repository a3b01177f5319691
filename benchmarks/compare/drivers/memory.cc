#include "benchmarks/compare/drivers/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "benchmarks/compare/drivers/driver.h"

namespace compare {

std::span<std::byte> MapShared(int fd, uint64_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) FailErrno("mapping " + std::to_string(bytes) + " bytes");
  // Before Linux 5.14 the first round does it, which is not counted.
  madvise(data, bytes, MADV_POPULATE_WRITE);
  return {static_cast<std::byte*>(data), bytes};
}

int MakeShared(uint64_t bytes) {
  const int fd = memfd_create("compare", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) FailErrno("making shared memory");
  return fd;
}

int OpenOf(int64_t pid, int fd) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int ours = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (ours < 0) FailErrno("opening " + path);
  return ours;
}

}  // namespace compare
