// Copies that go past the cache: non-temporal stores, so that memory which another process reads
// next is neither fetched before it is overwritten nor left to push out the cache of this one.
//
// Thread-safety: pure. Ranges must not overlap.

#ifndef KVXFER_TRANSPORT_HOST_STREAM_COPY_H_
#define KVXFER_TRANSPORT_HOST_STREAM_COPY_H_

#include <cstddef>
#include <span>

namespace kvxfer {

// Below this many bytes StreamCopy is memcpy, which was measured to be no slower there.
inline constexpr size_t kStreamCopyMin = 256;

// Uses the stores that were measured to be the fastest on this kind of CPU. Call StreamFence before
// anything that publishes. `next` is the source of the copy that follows, where it is known: its
// first lines are fetched meanwhile. It is a hint, need not be readable, and may be empty.
void StreamCopy(void* to, const void* from, size_t bytes, std::span<const std::byte> next = {});

// Orders every StreamCopy of this thread before its later stores, sends and system calls.
void StreamFence();

// The instructions taken, for a person: "avx512", "avx2", "sse2" or "memcpy".
const char* StreamCopyName();

namespace internal {

using StreamCopyFn = void (*)(void* to, const void* from, size_t bytes);
struct StreamCopyVariant {
  const char* name;
  StreamCopyFn copy;
};
// Every variant that this CPU can run, best first; ends with a null name. For tests and benchmarks.
const StreamCopyVariant* StreamCopyVariants();

}  // namespace internal
}  // namespace kvxfer

#endif  // KVXFER_TRANSPORT_HOST_STREAM_COPY_H_
