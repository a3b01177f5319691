// Memory that both sides see.
//
// Thread-safety: the functions may be called from any thread. What they map stays mapped to the end
// of the process, and they end the process where there is no memory.
#ifndef KVXFER_BENCHMARKS_COMPARE_DRIVERS_MEMORY_H_
#define KVXFER_BENCHMARKS_COMPARE_DRIVERS_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace compare {

// The first `bytes` of shared memory `fd`, every page present in this process.
std::span<std::byte> MapShared(int fd, uint64_t bytes);

// New shared memory of zeros; its descriptor. Another process of this user finds it by OpenOf.
int MakeShared(uint64_t bytes);
int OpenOf(int64_t pid, int fd);

}  // namespace compare

#endif  // KVXFER_BENCHMARKS_COMPARE_DRIVERS_MEMORY_H_
