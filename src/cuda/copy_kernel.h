// The compiled copy kernel (kernels.cuh), loaded into one GPU context.
//
// Lifetime: its module stays loaded until Unload or until the context ends.
// Thread-safety: none.

#ifndef KVXFER_CUDA_COPY_KERNEL_H_
#define KVXFER_CUDA_COPY_KERNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "src/cuda/driver.h"
#include "src/cuda/kernels.cuh"

namespace kvxfer::cuda {

// The code for every supported kind of GPU, as a fatbin. Empty: built without nvcc.
std::span<const std::byte> CopyKernelImage();

class CopyKernel {
 public:
  // Loads into the current context. Unimplemented: built without nvcc, or the GPU is too old.
  static absl::StatusOr<std::unique_ptr<CopyKernel>> Load(const Driver* driver);
  CopyKernel(const CopyKernel&) = delete;
  CopyKernel& operator=(const CopyKernel&) = delete;

  // Enqueues a launch; the CUDA driver copies `params`. An error in the parameters leaves the
  // context intact. An error may also come from an earlier kernel in this context.
  absl::Status Launch(api::CUstream stream, CopyParams& params, uint32_t blocks) const;
  // Call it when no launch is running, with the same context current.
  void Unload() { driver_.calls().cuModuleUnload(module_); }

 private:
  CopyKernel(const Driver* driver, api::CUmodule module) : driver_(*driver), module_(module) {}

  const Driver& driver_;
  const api::CUmodule module_;
  api::CUfunction function_ = nullptr;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPY_KERNEL_H_
