// Memory of a GPU for kvxfer's own use.
//
// Thread-safety: none; may be made and destroyed on any thread.

#ifndef KVXFER_CUDA_DEVICE_MEMORY_H_
#define KVXFER_CUDA_DEVICE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

// `bytes` of memory of GPU `device`, not zeroed. The destructor frees them soon (closer.h), so
// nothing may copy to or from them any more.
class DeviceMemory {
 public:
  // ResourceExhausted: the GPU has no such memory left.
  static absl::StatusOr<DeviceMemory> Allocate(const Driver* driver, int device, size_t bytes);
  DeviceMemory() = default;
  DeviceMemory(DeviceMemory&& other) noexcept
      : driver_(std::exchange(other.driver_, nullptr)), device_(other.device_), at_(other.at_) {}
  DeviceMemory& operator=(DeviceMemory&& other) noexcept;
  ~DeviceMemory() { Free(); }

  // For kernels and copies of the device; 0: there is none.
  uint64_t at() const { return driver_ == nullptr ? 0 : at_; }

 private:
  void Free();
  const Driver* driver_ = nullptr;
  int device_ = 0;
  uint64_t at_ = 0;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_DEVICE_MEMORY_H_
