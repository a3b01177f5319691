// Memory of GPU 0 by the CUDA driver's own call, for who only counts what its transfers cost. The
// GPU's context stays current in the calling thread, as after a call of the runtime API.
//
// Thread-safety: none.
#ifndef KVXFER_TESTS_SUPPORT_GPU_SPACE_H_
#define KVXFER_TESTS_SUPPORT_GPU_SPACE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/memory.h"
#include "src/cuda/driver.h"

namespace kvxfer::testing {

class GpuSpace {
 public:
  static absl::StatusOr<std::unique_ptr<GpuSpace>> Allocate(size_t bytes) {
    const absl::StatusOr<const cuda::Driver*> driver = cuda::Driver::Get();
    if (!driver.ok()) return driver.status();
    const auto context = (*driver)->Context(0);
    if (!context.ok()) return context.status();
    const cuda::api::Calls& calls = (*driver)->calls();
    cuda::api::CUdeviceptr given = 0;
    auto result = calls.cuCtxSetCurrent(*context);
    if (result == cuda::api::CUDA_SUCCESS) result = calls.cuMemAlloc_v2(&given, bytes);
    if (auto status = (*driver)->Error(result, "cuMemAlloc"); !status.ok()) return status;
    return std::unique_ptr<GpuSpace>(new GpuSpace(**driver, given, bytes));
  }
  ~GpuSpace() {
    const cuda::ContextScope scope(driver_, 0);
    driver_.calls().cuMemFree_v2(at_);
  }
  GpuSpace(const GpuSpace&) = delete;
  GpuSpace& operator=(const GpuSpace&) = delete;

  MemorySpan span() const {
    return {.data = reinterpret_cast<void*>(at_), .bytes = bytes_, .kind = MemoryKind::kCuda};
  }

 private:
  GpuSpace(const cuda::Driver& driver, uint64_t at, size_t bytes)
      : driver_(driver), at_(at), bytes_(bytes) {}

  const cuda::Driver& driver_;
  const uint64_t at_;
  const size_t bytes_;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_GPU_SPACE_H_
