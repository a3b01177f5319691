// Mappings of shared memory that can use huge pages.
//
// Thread-safety: any thread; only kernel calls.

#ifndef KVXFER_TRANSPORT_HOST_SHARED_MAPPING_H_
#define KVXFER_TRANSPORT_HOST_SHARED_MAPPING_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "src/core/base/clock.h"

namespace kvxfer {

// The size of a transparent huge page; 0 if the kernel has none.
size_t HugePageBytes();

// mmap(MAP_SHARED) of `fd`, at an address that lets the mapping use the file's huge pages. The
// kernel chooses such an address by itself only if huge pages for shared memory are enabled
// system-wide. `offset` must be a multiple of the file's page size. On failure: MAP_FAILED and
// errno.
void* MapShared(int fd, uint64_t offset, size_t bytes, int protection);

// Gives huge pages to the complete huge pages of [data, data + bytes), a mapping made by MapShared
// of a file that is still empty there. Best effort: if the kernel is too old, has no huge pages
// left, or takes longer than GatherWithin(bytes), the rest of the file gets small pages. Only a
// call of the kernel that has begun goes on beyond that time. The bytes stay zero.
void GatherHugePages(std::byte* data, size_t bytes);
Duration GatherWithin(size_t bytes);

// The same with a kernel and a clock of a test's own. `advise` is madvise, and returns 0 or an
// errno.
struct HugePageKernel {
  size_t huge_bytes = 0;
  absl::FunctionRef<int(std::byte* data, size_t bytes, int advice)> advise;
  absl::FunctionRef<Time()> now;
};
void GatherHugePages(std::byte* data, size_t bytes, const HugePageKernel& kernel);

}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_SHARED_MAPPING_H_
