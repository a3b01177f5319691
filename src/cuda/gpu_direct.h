// GPU memory for NICs (GPUDirect RDMA): which memory can be given to them, and in which of two
// ways.
//
//   dmabuf       the CUDA driver exports a range as a file descriptor; the NIC's driver attaches it
//   peer memory  a plain registration by the NIC takes GPU addresses, helped by a kernel module
//
// Thread-safety: functions without state; any thread.

#ifndef KVXFER_CUDA_GPU_DIRECT_H_
#define KVXFER_CUDA_GPU_DIRECT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/core/base/own_fd.h"
#include "src/core/base/sysfs.h"
#include "src/cuda/driver.h"
#include "src/cuda/memory.h"

namespace kvxfer::cuda {

// A span that can be given to NICs.
struct DirectSpan {
  const Driver* driver = nullptr;
  const Device* device = nullptr;
  DeviceSpan span{};

  // "64 bytes at 0x7f2a00000000 of GPU 0 (NVIDIA H100 80GB HBM3)".
  std::string ToString() const;
};

// Examines `span`, which must be of kind kCuda, and sets its SYNC_MEMOPS. Errors as Examine;
// FailedPrecondition, with what to do: the GPU does not support GPUDirect RDMA, or memory of this
// kind cannot be given to NICs.
absl::StatusOr<DirectSpan> ExamineDirect(const MemorySpan& span);

// Whether the CUDA driver can export memory of this GPU as a dmabuf.
bool ExportsDmabuf(const DirectSpan& span);

// A part of GPU memory, exported as a dmabuf of whole pages.
struct Dmabuf {
  OwnFd fd;
  uint64_t offset = 0;  // of the part's first byte
};

// Exports [base, base + bytes), which lies within `span`. Unimplemented: not ExportsDmabuf. Any
// other error: the CUDA driver refuses this range; if the range covers several allocations, it may
// accept each of them separately.
absl::StatusOr<Dmabuf> ExportDmabuf(const DirectSpan& span, uint64_t base, uint64_t bytes);

// Whose module provides peer memory.
enum class PeerMemory : uint8_t {
  kInfiniband,  // nvidia-peermem, or its predecessor
  kEfa,         // efa-nv-peermem
};
// The kernel module's name as modprobe knows it.
std::string_view NameOf(PeerMemory kind);
// Whether such a module is loaded.
bool IsLoaded(PeerMemory kind, const Sysfs& host);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_GPU_DIRECT_H_
