// Copies that bypass the cache with non-temporal stores. Memory that another process reads next is
// then neither fetched into this CPU's cache before it is overwritten, nor does it displace other
// data there.
//
// Thread-safety: pure. The ranges must not overlap.

#ifndef KVXFER_TRANSPORT_HOST_STREAM_COPY_H_
#define KVXFER_TRANSPORT_HOST_STREAM_COPY_H_

#include <cstddef>
#include <span>

namespace kvxfer {

// Below this many bytes StreamCopy is memcpy, which measured no slower there.
inline constexpr size_t kStreamCopyMin = 256;

// Uses the stores that measured fastest on this kind of CPU. Call StoreBarrier before anything that
// publishes the data. `next` is the source of the following copy, if it is known: its first lines
// are prefetched. It is only a hint; it need not be readable and may be empty.
void StreamCopy(void* to, const void* from, size_t bytes, std::span<const std::byte> next = {});

// Orders every earlier StreamCopy of this thread before its later stores, sends and system calls.
void StoreBarrier();

// The instruction set in use, for a person: "avx512", "avx2", "sse2" or "memcpy".
const char* StreamCopyName();

namespace internal {

using StreamCopyFn = void (*)(void* to, const void* from, size_t bytes);
struct StreamCopyVariant {
  const char* name;
  StreamCopyFn copy;
};
// All variants that this CPU can run, best first, ending with a null name. For tests and
// benchmarks.
const StreamCopyVariant* StreamCopyVariants();

}  // namespace internal
}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_STREAM_COPY_H_
