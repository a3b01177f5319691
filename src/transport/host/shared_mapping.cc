#include "src/transport/host/shared_mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <string_view>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

namespace kvxfer {
namespace {

// Each failed attempt may search all of memory for free pages, so only this many may fail.
constexpr int kMaxFailures = 8;

// A collapse waits for every CPU to empty its lists of pages: on a busy machine more than 100 ms
// instead of 0.2. The time per MiB is ten times what a quiet machine takes; small pages take 0.6
// ms.
constexpr Duration kGatherFloor = std::chrono::milliseconds(100);
constexpr Duration kGatherPerMiB = std::chrono::milliseconds(1);

size_t ReadHugePageBytes() {
  const int fd = open("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  std::array<char, 32> text{};
  const ssize_t got = read(fd, text.data(), text.size());
  close(fd);
  size_t bytes = 0;
  if (got > 0) std::from_chars(text.data(), text.data() + got, bytes);
  // A value that is not a power of two is not a page size.
  return (bytes & (bytes - 1)) == 0 ? bytes : 0;
}

}  // namespace

size_t HugePageBytes() {
  static const size_t bytes = ReadHugePageBytes();
  return bytes;
}

void* MapShared(int fd, uint64_t offset, size_t bytes, int protection) {
  const auto at = static_cast<off_t>(offset);
  const size_t huge = HugePageBytes();
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t whole = (bytes + page - 1) / page * page;
  if (huge == 0 || bytes < huge || whole > SIZE_MAX - huge) {
    return mmap(nullptr, bytes, protection, MAP_SHARED, fd, at);
  }
  // Finds an address with the same remainder modulo the huge page size as the offset: reserves a
  // range, releases it, and maps there. MAP_FIXED_NOREPLACE never replaces what another thread maps
  // meanwhile; the kernel then chooses the address.
  void* space =
      mmap(nullptr, whole + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) return mmap(nullptr, bytes, protection, MAP_SHARED, fd, at);
  auto* const begin = static_cast<std::byte*>(space);
  const size_t skip = (offset - reinterpret_cast<uintptr_t>(begin)) & (huge - 1);
  munmap(begin, whole + huge);
  void* const data =
      mmap(begin + skip, bytes, protection, MAP_SHARED | MAP_FIXED_NOREPLACE, fd, at);
  if (data == begin + skip) return data;
  // Before Linux 4.17 the flag is only a hint; a file with still larger pages is placed elsewhere
  // too.
  if (data != MAP_FAILED) return data;
  return mmap(nullptr, bytes, protection, MAP_SHARED, fd, at);
}

Duration GatherWithin(size_t bytes) {
  constexpr size_t kMiB = size_t{1} << 20;
  return kGatherFloor + kGatherPerMiB * static_cast<int64_t>(bytes / kMiB);
}

void GatherHugePages(std::byte* data, size_t bytes) {
  const auto advise = [](std::byte* at, size_t length, int advice) {
    return madvise(at, length, advice) == 0 ? 0 : errno;
  };
  GatherHugePages(data, bytes, {.huge_bytes = HugePageBytes(), .advise = advise, .now = Now});
}

void GatherHugePages(std::byte* data, size_t bytes, const HugePageKernel& kernel) {
  const size_t huge = kernel.huge_bytes;
  if (huge == 0) return;
  const Time until = kernel.now() + GatherWithin(bytes);
  // MADV_HUGEPAGE is enough if shmem_enabled is "advise". MADV_COLLAPSE (Linux 6.1) needs no
  // setting.
  kernel.advise(data, bytes, MADV_HUGEPAGE);
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  // Only whole, aligned huge pages can be collapsed.
  const size_t skip = (huge - reinterpret_cast<uintptr_t>(data) % huge) % huge;
  int failures = 0;
  for (size_t at = skip; at < bytes && bytes - at >= huge && failures < kMaxFailures; at += huge) {
    // Without this, filling the rest could gather huge pages too, and take as long.
    if (kernel.now() >= until) {
      kernel.advise(data + at, bytes - at, MADV_NOHUGEPAGE);
      return;
    }
    // MADV_COLLAPSE refuses an empty range, so the range gets one small page first, through a call
    // that cannot raise SIGBUS.
    if (kernel.advise(data + at, page, MADV_POPULATE_WRITE) != 0) return;
    const int error = kernel.advise(data + at, huge, MADV_COLLAPSE);
    if (error == EINVAL || error == ENOSYS) return;
    if (error != 0) ++failures;
  }
}

}  // namespace kvxfer
