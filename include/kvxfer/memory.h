// Memory for transfers: spans to register, buffers that kvxfer allocates, and two ways to name
// blocks inside registered memory (paged regions and raw descriptors).
//
// Thread-safety: plain values. A HostBuffer may be moved by one thread at a time.
// Lifetime: the application owns registered memory. It must stay mapped from RegisterMemory until
// DeregisterMemory has returned OK or the agent has been destroyed (~Agent describes an exception).
//
// Example:
//   auto buffer = kvxfer::HostBuffer::Allocate(1 << 20);
//   if (!buffer.ok()) return buffer.status();
//   auto region = agent->RegisterMemory(buffer->span(), kvxfer::Access::kReadWrite);

#ifndef KVXFER_MEMORY_H_
#define KVXFER_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/statusor.h"
#include "kvxfer/types.h"

namespace kvxfer {

// A range of memory to register. If `shared_fd` >= 0, the range is a MAP_SHARED mapping of that
// descriptor at `shared_offset` (bytes), so that a peer on the same host may map it too; HostBuffer
// sets it. The application owns the descriptor and keeps it open for the lifetime of the
// registration.
struct MemorySpan {
  void* data = nullptr;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::kHost;
  int device_id = 0;  // CUDA device; 0 for host memory
  int shared_fd = -1;
  uint64_t shared_offset = 0;
};

// The page size of a HostBuffer. Huge pages make scattered copies faster and the first touch
// cheaper.
enum class HostPages : uint8_t {
  kHuge,      // transparent huge pages as far as the kernel provides them in time, else small ones
  kReserved,  // pages that vm.nr_hugepages reserved; the size is rounded up to whole pages
  kSmall,     // the smallest pages, unless the kernel is configured to use huge ones anyway
};

// Page-aligned, zeroed host memory in a sealed memfd. Peers on the same host reach it fastest; for
// everything else it is ordinary memory. The destructor unmaps it.
class HostBuffer {
 public:
  // Blocks while the kernel provides and zeroes the pages: some 0.1 ms per MiB with huge pages, 0.6
  // with small ones. kHuge asks for huge pages for at most 0.1 s and 1 ms per MiB; what has none by
  // then gets small pages.
  // ResourceExhausted (with errno): memory, descriptors, address space or reserved pages ran out.
  // InvalidArgument: zero bytes.
  static absl::StatusOr<HostBuffer> Allocate(size_t bytes, HostPages pages = HostPages::kHuge);

  HostBuffer() = default;
  HostBuffer(HostBuffer&& other) noexcept;
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  HostBuffer(const HostBuffer&) = delete;
  HostBuffer& operator=(const HostBuffer&) = delete;
  ~HostBuffer();

  std::byte* data() const { return data_; }
  size_t size() const { return bytes_; }
  MemorySpan span() const {
    return {.data = data_, .bytes = bytes_, .shared_fd = fd_, .shared_offset = 0};
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  size_t mapped_bytes_ = 0;  // rounded up to whole pages
  int fd_ = -1;
};

// Equal blocks at equal distances: block i covers the bytes [base + i * stride, base + i * stride +
// block_bytes), for i < count. A paged KV cache is described by one PagedRegion for each layer and
// each of K and V. All of it must lie inside one registered region. Requires stride >= block_bytes.
struct PagedRegion {
  uint64_t base = 0;         // address of block 0, in its owner's address space
  uint64_t block_bytes = 0;  // bytes of one block
  uint64_t stride = 0;       // bytes from one block to the next
  uint64_t count = 0;        // number of blocks

  bool operator==(const PagedRegion&) const = default;
};

// One contiguous range inside a registered region of its owner; the address is the owner's.
struct Descriptor {
  uint64_t address = 0;
  uint64_t bytes = 0;

  bool operator==(const Descriptor&) const = default;
};

// Ids that are in GPU memory, a block table for example: `count` 32-bit integers without gaps, at
// `address`, a multiple of 4. They lie in a region of this agent (MemoryKind::kCuda) on the GPU
// whose memory is moved.
//
// The GPU reads them while it copies, after TransferOptions::after if that is set: they stay
// unchanged until the transfer has ended and is quiet (Transfer::quarantined). It copies no block
// whose id is beyond the paged regions, and the transfer fails (InvalidArgument). Ids that occur
// twice cannot be refused: if they are the destination's, one of the two blocks arrives, or a part
// of each. Only the backend cuda_ipc takes them.
struct DeviceIds {
  uint64_t address = 0;  // 0: none
  uint64_t count = 0;
};

// Blocks by index: for every pair (local[p], remote[p]) and every i, block local_ids[i] of local[p]
// pairs with block remote_ids[i] of remote[p]. `local` and `remote` have equal length, and their
// block_bytes are equal pair by pair. `local_ids` and `remote_ids` have equal length. The spans are
// read during the call only. On either side device ids may take the place of the span.
struct PagedBlocks {
  std::span<const PagedRegion> local{};
  std::span<const PagedRegion> remote{};
  std::span<const uint32_t> local_ids{};
  std::span<const uint32_t> remote_ids{};
  DeviceIds local_device_ids{};
  DeviceIds remote_device_ids{};
};

// Blocks by address: local[i] pairs with remote[i]. Both spans have equal length, and the bytes are
// equal pair by pair. The spans are read during the call only.
struct DescriptorBlocks {
  std::span<const Descriptor> local{};
  std::span<const Descriptor> remote{};
};

}  // namespace kvxfer

#endif  // KVXFER_MEMORY_H_
