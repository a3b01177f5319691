#include "src/cuda/copy_kernel.h"

namespace kvxfer::cuda {

absl::StatusOr<std::unique_ptr<CopyKernel>> CopyKernel::Load(const Driver* driver) {
  const std::span<const std::byte> image = CopyKernelImage();
  if (image.empty()) return absl::UnimplementedError("built without nvcc");
  api::CUmodule module = nullptr;
  if (auto status = driver->Error(driver->calls().cuModuleLoadData(&module, image.data()),
                                  "cuModuleLoadData");
      !status.ok()) {
    return status;
  }
  std::unique_ptr<CopyKernel> kernel(new CopyKernel(driver, module));
  if (auto status = driver->Error(
          driver->calls().cuModuleGetFunction(&kernel->function_, module, kCopyKernel),
          "cuModuleGetFunction");
      !status.ok()) {
    kernel->Unload();
    return status;
  }
  return kernel;
}

absl::Status CopyKernel::Launch(api::CUstream stream, CopyParams& params, uint32_t blocks) const {
  void* parameters[] = {&params};
  return driver_.Error(driver_.calls().cuLaunchKernel(function_, blocks, 1, 1, kCopyThreads, 1, 1,
                                                      0, stream, parameters, nullptr),
                       "cuLaunchKernel");
}

}  // namespace kvxfer::cuda
