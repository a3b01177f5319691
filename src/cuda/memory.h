// Examines what a pointer points to: the kind of memory, its device, and its allocations. Refuses
// spans that are not what their registration says.
//
// Thread-safety: any thread; the functions only query the CUDA driver.

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
  kManaged,  // cuMemAllocManaged: migrates between host and device
};
std::string_view ToString(AllocationKind kind);

// An allocation, as far as a span covers it.
struct Allocation {
  uint64_t base = 0;  // start of the part that lies within the span
  uint64_t bytes = 0;
  uint64_t allocation_base = 0;  // start of the whole allocation
  uint64_t allocation_bytes = 0;
  AllocationKind kind = AllocationKind::kDevice;
  uint64_t buffer_id = 0;   // unique in the process; never reused
  bool gpu_direct = false;  // NICs can be given it (GPUDirect RDMA)
  bool fd_handle = false;   // it can be exported as a file descriptor
  bool fabric_handle = false;
};

// A registered span of CUDA memory: allocations that follow each other without gaps.
struct DeviceSpan {
  uint64_t base = 0;
  uint64_t bytes = 0;
  int device = 0;
  std::vector<Allocation> parts{};  // in order
};

// Examines `span`, which must be of kind kCuda. InvalidArgument, with what to do: it is host
// memory, memory of another device than span.device_id, or freed or unknown memory; or it runs over
// the end of one allocation into an unrelated one. (Only pieces of cuMemCreate that are mapped side
// by side form one region.) Errors as Driver::Get if there is no CUDA driver.
absl::StatusOr<DeviceSpan> Examine(const MemorySpan& span);

// OK: a CPU can access `span`, which must be of kind kHost. InvalidArgument: it is GPU memory.
// Costs nothing in a process that does not use CUDA.
absl::Status CheckHostSpan(const MemorySpan& span);

// OK: the allocations are those that Examine saw. FailedPrecondition: memory was freed while it was
// registered. A kernel that touches such memory would break the whole context, so this is checked
// before each kernel.
absl::Status CheckAlive(const Driver& driver, const DeviceSpan& span);

// Makes the application's synchronous copies to or from the span return only once they are over at
// the device (CU_POINTER_ATTRIBUTE_SYNC_MEMOPS), if memory of this kind has that attribute.
absl::Status SetSyncMemops(const Driver& driver, const DeviceSpan& span);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_MEMORY_H_
