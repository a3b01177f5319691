// The compiled copy kernel (kernels.cuh), in one GPU context.
//
// Lifetime: its module stays loaded until Unload, or as long as the context.
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

// The code for every kind of GPU, as a fatbin; empty: built without.
std::span<const std::byte> CopyKernelImage();

class CopyKernel {
 public:
  // Into the current context. Unimplemented: built without, or the GPU is too old for it.
  static absl::StatusOr<std::unique_ptr<CopyKernel>> Load(const Driver* driver);
  CopyKernel(const CopyKernel&) = delete;
  CopyKernel& operator=(const CopyKernel&) = delete;

  // Enqueues a launch. An error of the parameters leaves nothing behind in the context; what an
  // earlier kernel did to it shows here too.
  absl::Status Launch(api::CUstream stream, CopyParams params, uint32_t blocks) const;
  // Nothing of it runs any more; in a scope of the same context.
  void Unload() { driver_.calls().cuModuleUnload(module_); }

 private:
  CopyKernel(const Driver* driver, api::CUmodule module) : driver_(*driver), module_(module) {}

  const Driver& driver_;
  const api::CUmodule module_;
  api::CUfunction function_ = nullptr;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_COPY_KERNEL_H_
