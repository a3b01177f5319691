// Registers GPU memory with devices: as one dmabuf, by peer memory, or in parts.
//
// Thread-safety: functions without state; any thread, while the device exists.

#ifndef KVXFER_BACKENDS_VERBS_GPU_MEMORY_H_
#define KVXFER_BACKENDS_VERBS_GPU_MEMORY_H_

#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "src/backends/verbs/device.h"
#include "src/core/base/sysfs.h"
#include "src/cuda/gpu_direct.h"

namespace kvxfer::verbs {

// A span of GPU memory that is to be registered, with what all devices share.
struct GpuMemory {
  cuda::DirectSpan span{};
  absl::StatusOr<cuda::Dmabuf> whole;  // the whole span as one dmabuf, or why not
  bool peer_memory = false;            // the kernel has a module for peer memory
  // It may be registered in several parts if it cannot be registered as one.
  bool in_parts = false;
};

// `sysfs` is that of this host. Errors as cuda::ExamineDirect.
absl::StatusOr<GpuMemory> ExamineGpuMemory(const MemorySpan& span, const Sysfs& sysfs,
                                           bool in_parts);

// Registers with `device`: one registration for the whole span, or one for each part of it. By
// dmabuf if possible, which needs no module; otherwise by peer memory. An error has every cause and
// what to do.
absl::StatusOr<std::vector<ibv_mr*>> RegisterGpuMemory(Device& device, const GpuMemory& memory,
                                                       int access);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_GPU_MEMORY_H_
