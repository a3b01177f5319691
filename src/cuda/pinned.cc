#include "src/cuda/pinned.h"

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

absl::StatusOr<Pinned> Pinned::Pin(const Driver* driver, int device, void* data, size_t bytes) {
  const auto what = [&] {
    return absl::StrCat("pinning ", bytes, " bytes of host memory for GPU ", device);
  };
  if (data == nullptr || bytes == 0) {
    return absl::InvalidArgumentError(absl::StrCat(what(), ": there is no memory"));
  }
  const ContextScope scope(*driver, device);
  if (!scope.status().ok()) return scope.status();
  const Calls& calls = driver->calls();
  // PORTABLE: for every context of the process. DEVICEMAP: kernels can access it.
  const CUresult result = calls.cuMemHostRegister_v2(
      data, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  if (result != CUDA_SUCCESS) {
    return Annotate(driver->Error(result, "cuMemHostRegister"), what());
  }
  Pinned pinned;
  pinned.driver_ = driver;
  pinned.device_ = device;
  pinned.data_ = data;
  CUdeviceptr seen = 0;
  const CUresult asked = calls.cuMemHostGetDevicePointer_v2(&seen, data, 0);
  if (asked != CUDA_SUCCESS) {
    return Annotate(driver->Error(asked, "cuMemHostGetDevicePointer"), what());
  }
  // Copy lists hold CPU addresses, so the GPU must see the same ones.
  if (seen != reinterpret_cast<uint64_t>(data)) {
    return absl::UnimplementedError(
        absl::StrCat(what(), ": this GPU sees pinned memory at other addresses than the CPU does"));
  }
  return pinned;
}

Pinned& Pinned::operator=(Pinned&& other) noexcept {
  if (this == &other) return *this;
  Unpin();
  driver_ = std::exchange(other.driver_, nullptr);
  device_ = other.device_;
  data_ = other.data_;
  return *this;
}

// If the CUDA driver is gone, the pin has gone with it.
void Pinned::Unpin() {
  if (driver_ == nullptr) return;
  const ContextScope scope(*driver_, device_);
  if (scope.status().ok()) driver_->calls().cuMemHostUnregister(data_);
  driver_ = nullptr;
}

}  // namespace kvxfer::cuda
