// Whether this host has a CUDA driver, without loading or initialising it: a process that never
// uses GPU memory then pays neither the time nor the GPU memory of a context.
//
// Thread-safety: any thread.

#ifndef KVXFER_CUDA_PRESENT_H_
#define KVXFER_CUDA_PRESENT_H_

#include "absl/status/status.h"

namespace kvxfer::cuda {

// OK: a CUDA driver is loaded in this process, its device files exist, or libcuda.so.1 is where the
// loader looks first. It may still be unusable; Driver::Get finds out. Unimplemented: there is
// none.
absl::Status DriverPresent();

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_PRESENT_H_
