// Mappings of shared memory that can have huge pages.
//
// Thread-safety: pure calls of the kernel.

#ifndef KVXFER_TRANSPORT_HOST_SHARED_MAPPING_H_
#define KVXFER_TRANSPORT_HOST_SHARED_MAPPING_H_

#include <cstddef>
#include <cstdint>

namespace kvxfer {

// Of transparent huge pages; 0 where the kernel has none.
size_t HugePageBytes();

// mmap(MAP_SHARED) of `fd`, with addresses placed so that where the file has huge pages the mapping
// uses them: the kernel does this by itself only where huge pages of shared memory are enabled
// system-wide. `offset` is a multiple of the file's page size. MAP_FAILED and errno on failure.
void* MapShared(int fd, uint64_t offset, size_t bytes, int protection);

// Puts huge pages under the whole huge pages of [data, data + bytes), a MAP_SHARED mapping from
// MapShared of a file that still is empty there. Best effort: where the kernel is too old or out of
// huge pages the file gets, or keeps, small ones. Zeroes stay zeroes.
void GatherHugePages(std::byte* data, size_t bytes);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_SHARED_MAPPING_H_
