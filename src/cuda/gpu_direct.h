// GPU memory for NICs (GPUDirect RDMA): which may be given to them, and by which of the two ways.
//
//   dmabuf      the driver exports a range as a file descriptor, which the NIC's driver attaches
//   peer memory the NIC's plain registration takes GPU addresses, with the help of a kernel module
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

// A span that may be given to NICs.
struct DirectSpan {
  const Driver* driver = nullptr;
  const Device* device = nullptr;
  DeviceSpan span{};

  // "64 bytes at 0x7f2a00000000 of GPU 0 (NVIDIA H100 80GB HBM3)".
  std::string ToString() const;
};

// What `span`, of kind kCuda, is; its SYNC_MEMOPS are set. As Examine; FailedPrecondition, with the
// remedy: the GPU takes no part in GPUDirect RDMA, or memory of that kind can be given to no NIC.
absl::StatusOr<DirectSpan> ExamineDirect(const MemorySpan& span);

// Whether the driver exports memory of that GPU as a dmabuf.
bool ExportsDmabuf(const DirectSpan& span);

// A part of GPU memory as a dmabuf of whole pages.
struct Dmabuf {
  OwnFd fd;
  uint64_t offset = 0;  // of the part's first byte
};

// [base, base + bytes) within `span`. Unimplemented: not ExportsDmabuf. Another error: the driver
// refuses this range; of several allocations it may still take each by itself.
absl::StatusOr<Dmabuf> ExportDmabuf(const DirectSpan& span, uint64_t base, uint64_t bytes);

// Whose peer memory it is.
enum class PeerMemory : uint8_t {
  kInfiniband,  // nvidia-peermem, or what it was before
  kEfa,         // efa-nv-peermem
};
// The name of the kernel module, as modprobe has it.
std::string_view NameOf(PeerMemory kind);
// Whether such a module is loaded.
bool IsLoaded(PeerMemory kind, const Sysfs& host);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_GPU_DIRECT_H_
