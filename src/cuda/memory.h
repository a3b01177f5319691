// What lies behind a pointer: which kind of memory, of which device, in which allocations. And the
// refusal of spans that are not what they are called.
//
// Thread-safety: pure questions to the driver; from any thread.

#ifndef KVXFER_CUDA_MEMORY_H_
#define KVXFER_CUDA_MEMORY_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

enum class AllocationKind : uint8_t {
  kDevice,   // cuMemAlloc, cudaMalloc
  kVirtual,  // cuMemCreate and cuMemMap: PyTorch's expandable segments
  kPool,     // cuMemAllocAsync, cudaMallocAsync
  kManaged,  // cuMemAllocManaged: moves between host and device
};
std::string_view ToString(AllocationKind kind);

// A piece of memory that the driver handed out in one, as far as a span covers it.
struct Allocation {
  uint64_t base = 0;  // of what lies within the span
  uint64_t bytes = 0;
  uint64_t allocation_base = 0;  // of the whole
  uint64_t allocation_bytes = 0;
  AllocationKind kind = AllocationKind::kDevice;
  uint64_t buffer_id = 0;   // no two allocations of a process have the same, ever
  bool gpu_direct = false;  // NICs may be given it
  bool fd_handle = false;   // it can be exported as a file descriptor
  bool fabric_handle = false;
};

// A registered span of CUDA memory: allocations that follow each other without a gap.
struct DeviceSpan {
  uint64_t base = 0;
  uint64_t bytes = 0;
  int device = 0;
  std::vector<Allocation> parts{};  // in order
};

// What `span`, of kind kCuda, is. InvalidArgument: host memory, memory of another device than
// span.device_id, freed or unknown memory, or a span that runs over the end of one allocation into
// an unrelated one (only pieces of cuMemCreate that are mapped side by side are one region); with
// the remedy. As Driver::Get where there is no driver.
absl::StatusOr<DeviceSpan> Examine(const MemorySpan& span);

// Whether `span`, of kind kHost, is memory that a CPU can reach; InvalidArgument: it is GPU memory.
// Costs nothing in a process that does not use CUDA.
absl::Status CheckHostSpan(const MemorySpan& span);

// Whether the allocations are still those that Examine saw: FailedPrecondition where memory was
// freed while it was registered. A kernel that touches such memory would ruin the whole context;
// this is asked before each.
absl::Status CheckAlive(const Driver& driver, const DeviceSpan& span);

// Has synchronous copies of the application into or out of the span end only when they are over at
// the device (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), where the memory is of a kind that knows this.
absl::Status SetSyncMemops(const Driver& driver, const DeviceSpan& span);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_MEMORY_H_
