// Whether this host has a CUDA driver, without loading or initialising it: a process that never
// uses GPU memory pays neither the time nor the GPU memory of a context.
//
// Thread-safety: from any thread.

#ifndef KVXFER_CUDA_PRESENT_H_
#define KVXFER_CUDA_PRESENT_H_

#include "absl/status/status.h"

namespace kvxfer::cuda {

// OK: a driver is loaded in this process, its device files are there, or libcuda.so.1 lies where
// the loader looks first. It may still turn out to be of no use; Driver::Get says so.
// Unimplemented: there is none.
absl::Status DriverPresent();

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_PRESENT_H_
