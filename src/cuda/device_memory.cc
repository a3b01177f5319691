#include "src/cuda/device_memory.h"

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"
#include "src/cuda/closer.h"

namespace kvxfer::cuda {

absl::StatusOr<DeviceMemory> DeviceMemory::Allocate(const Driver* driver, int device,
                                                    size_t bytes) {
  const ContextScope scope(*driver, device);
  if (!scope.status().ok()) return scope.status();
  api::CUdeviceptr at = 0;
  const api::CUresult result = driver->calls().cuMemAlloc_v2(&at, bytes);
  if (result != api::CUDA_SUCCESS) {
    return Annotate(driver->Error(result, "cuMemAlloc"),
                    absl::StrCat(bytes, " bytes of GPU ", device));
  }
  DeviceMemory memory;
  memory.driver_ = driver;
  memory.device_ = device;
  memory.at_ = at;
  return memory;
}

DeviceMemory& DeviceMemory::operator=(DeviceMemory&& other) noexcept {
  if (this == &other) return *this;
  Free();
  driver_ = std::exchange(other.driver_, nullptr);
  device_ = other.device_;
  at_ = other.at_;
  return *this;
}

// cuMemFree may wait for all work of the context, as what closer.h describes.
void DeviceMemory::Free() {
  if (driver_ == nullptr) return;
  CloseLater([driver = driver_, device = device_, at = at_] {
    const ContextScope scope(*driver, device);
    if (scope.status().ok()) driver->calls().cuMemFree_v2(at);
  });
  driver_ = nullptr;
}

}  // namespace kvxfer::cuda
