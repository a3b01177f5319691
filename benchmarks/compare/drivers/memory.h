// Memory for the drivers' caches, of the page size that the comparison asks for.
//
// Thread-safety: Mapping is a value of one owner; the functions may be called from any thread.
#ifndef KVXFER_BENCHMARKS_COMPARE_DRIVERS_MEMORY_H_
#define KVXFER_BENCHMARKS_COMPARE_DRIVERS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace compare {

// Mapped for the life of the process: a driver has one cache and needs it to the end.
struct Mapping {
  std::span<std::byte> bytes{};
  int fd = -1;  // of shared memory
};

// Every page is present on return. With `huge_pages` the kernel is asked for 2 MiB pages (it gives
// them where transparent_hugepage/enabled, or shmem_enabled for shared memory, lets it), else for
// none. Ends the process where there is no memory.
Mapping PrivateMemory(uint64_t bytes, bool huge_pages);  // as malloc gives
Mapping SharedMemory(uint64_t bytes, bool huge_pages);   // a memfd
// Asks the same for memory that somebody else has allocated.
void AskForPages(std::span<std::byte> memory, bool huge_pages);

// The descriptor `fd` of another process of this user, mapped here.
std::span<std::byte> MapOf(int64_t pid, int fd, uint64_t bytes);

// How much of the mapping that holds `memory` lies in huge pages.
uint64_t HugePageBytes(std::span<const std::byte> memory);

}  // namespace compare

#endif  // KVXFER_BENCHMARKS_COMPARE_DRIVERS_MEMORY_H_
