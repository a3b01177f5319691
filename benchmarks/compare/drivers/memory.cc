#include "benchmarks/compare/drivers/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "benchmarks/compare/drivers/driver.h"

namespace compare {
namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;

std::span<std::byte> Map(uint64_t bytes, int flags, int fd) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data == MAP_FAILED) FailErrno("mapping " + std::to_string(bytes) + " bytes");
  return {static_cast<std::byte*>(data), bytes};
}

}  // namespace

void AskForPages(std::span<std::byte> memory, bool huge_pages) {
  // A kernel without huge pages refuses, and has given what it can.
  madvise(memory.data(), memory.size(), huge_pages ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
}

Mapping PrivateMemory(uint64_t bytes, bool huge_pages) {
  // More than needed, for a start on a boundary of huge pages.
  const std::span<std::byte> all =
      Map(bytes + kHugePage, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  const auto address = reinterpret_cast<uint64_t>(all.data());
  const std::span<std::byte> memory =
      all.subspan((address + kHugePage - 1) / kHugePage * kHugePage - address, bytes);
  AskForPages(memory, huge_pages);
  std::memset(memory.data(), 1, bytes);
  return {.bytes = memory};
}

Mapping SharedMemory(uint64_t bytes, bool huge_pages) {
  const int fd = memfd_create("compare", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) FailErrno("making shared memory");
  const std::span<std::byte> memory = Map(bytes, MAP_SHARED, fd);
  AskForPages(memory, huge_pages);
  std::memset(memory.data(), 1, bytes);
  return {.bytes = memory, .fd = fd};
}

std::span<std::byte> MapOf(int64_t pid, int fd, uint64_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  const int ours = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (ours < 0) FailErrno("opening " + path);
  const std::span<std::byte> memory = Map(bytes, MAP_SHARED, ours);
  close(ours);
  madvise(memory.data(), bytes, MADV_POPULATE_WRITE);  // else the first round does it, uncounted
  return memory;
}

uint64_t HugePageBytes(std::span<const std::byte> memory) {
  const auto wanted = reinterpret_cast<uint64_t>(memory.data());
  std::ifstream smaps("/proc/self/smaps");
  bool inside = false;
  uint64_t kib = 0;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    std::string first;
    words >> first;
    if (const size_t dash = first.find('-'); dash != std::string::npos) {
      inside = wanted >= std::stoull(first.substr(0, dash), nullptr, 16) &&
               wanted < std::stoull(first.substr(dash + 1), nullptr, 16);
    } else if (inside && (first == "AnonHugePages:" || first == "ShmemPmdMapped:" ||
                          first == "FilePmdMapped:")) {
      uint64_t amount = 0;
      words >> amount;
      kib += amount;
    }
  }
  return kib * 1024;
}

}  // namespace compare
