// GPU memory as devices take it: as one dmabuf, by peer memory, or piece by piece.
//
// Thread-safety: functions without state; any thread, while the device is there.

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

// A span of GPU memory that is to be given to devices, and what all of them share in that.
struct GpuMemory {
  cuda::DirectSpan span{};
  absl::StatusOr<cuda::Dmabuf> whole;  // as one; or why not
  bool peer_memory = false;            // the kernel has a module for it
  bool in_pieces = false;              // it may be registered in several, if not as one
};

// `sysfs`: of this host. As cuda::ExamineDirect.
absl::StatusOr<GpuMemory> ExamineGpuMemory(const MemorySpan& span, const Sysfs& sysfs,
                                           bool in_pieces);

// With `device`: one registration for the whole, or one for each part of the span. Best by dmabuf,
// which needs no module; else by peer memory. An error has every cause, and the remedy.
absl::StatusOr<std::vector<ibv_mr*>> RegisterGpuMemory(Device& device, const GpuMemory& memory,
                                                       int access);

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_GPU_MEMORY_H_
