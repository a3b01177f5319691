// Memory of each kind of the stand-in CUDA driver, and children in which another driver is found.
#ifndef KVXFER_TESTS_UNIT_CUDA_TEST_UTIL_H_
#define KVXFER_TESTS_UNIT_CUDA_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <utility>

#include "kvxfer/memory.h"
#include "src/cuda/driver.h"
#include "tests/support/cuda_driver/hooks.h"

namespace kvxfer::cuda {

namespace cuda_driver = ::kvxfer::testing::cuda_driver;

// The stand-in; ends the program where it is not what is found.
inline const cuda_driver::Hooks& StandIn() {
  const auto driver = Driver::Get();
  const cuda_driver::Hooks* const hooks = driver.ok() ? cuda_driver::FindHooks() : nullptr;
  if (hooks == nullptr) {
    std::fprintf(stderr, "no stand-in CUDA driver in LD_LIBRARY_PATH: %s\n",
                 driver.status().ToString().c_str());
    std::abort();
  }
  return *hooks;
}
inline const Driver& TheDriver() { return *Driver::Get().value(); }

inline MemorySpan CudaSpan(uint64_t at, size_t bytes, int device = 0) {
  return {.data = reinterpret_cast<void*>(at),
          .bytes = bytes,
          .kind = MemoryKind::kCuda,
          .device_id = device};
}

// Where a test has made the driver fail a context may have been left current.
inline void LeaveContexts() {
  const api::Calls& calls = TheDriver().calls();
  for (api::CUcontext left = nullptr;
       calls.cuCtxGetCurrent(&left) == api::CUDA_SUCCESS && left != nullptr;) {
    calls.cuCtxPopCurrent_v2(&left);
  }
}

// Memory of a device, by cuMemAlloc; or managed, or of a pool.
class GpuMemory {
 public:
  enum Kind { kPlain, kManaged, kPool };
  explicit GpuMemory(size_t bytes, int device = 0, Kind kind = kPlain)
      : bytes_(bytes), device_(device), kind_(kind) {
    StandIn();
    const ContextScope scope(TheDriver(), device);
    const api::Calls& calls = TheDriver().calls();
    api::CUresult result = api::CUDA_ERROR_UNKNOWN;
    if (kind == kManaged) {
      result = calls.cuMemAllocManaged(&at_, bytes, api::CU_MEM_ATTACH_GLOBAL);
    } else if (kind == kPool) {
      result = calls.cuStreamCreateWithPriority(&stream_, api::CU_STREAM_NON_BLOCKING, 0);
      if (result == api::CUDA_SUCCESS) result = calls.cuMemAllocAsync(&at_, bytes, stream_);
      if (result == api::CUDA_SUCCESS) result = calls.cuStreamSynchronize(stream_);
    } else {
      result = calls.cuMemAlloc_v2(&at_, bytes);
    }
    EXPECT_EQ(result, api::CUDA_SUCCESS);
  }
  ~GpuMemory() { Free(); }
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;

  void Free() {
    const ContextScope scope(TheDriver(), device_);
    const api::Calls& calls = TheDriver().calls();
    if (at_ != 0 && kind_ != kPool) calls.cuMemFree_v2(at_);
    if (at_ != 0 && kind_ == kPool) {
      calls.cuMemFreeAsync(at_, stream_);
      calls.cuStreamSynchronize(stream_);
      calls.cuStreamDestroy_v2(stream_);
    }
    at_ = 0;
  }
  uint64_t at() const { return at_; }
  size_t bytes() const { return bytes_; }
  MemorySpan span() const { return CudaSpan(at_, bytes_, device_); }
  // Where the CPU of a test sees it.
  std::byte* alias() const { return StandIn().kvxfer_standin_alias(at_, bytes_); }

 private:
  const size_t bytes_;
  const int device_;
  const Kind kind_;
  api::CUstream stream_ = nullptr;
  api::CUdeviceptr at_ = 0;
};

// A variable of the environment, as it was again afterwards. For children: this process has read
// what concerns it.
class ScopedEnvironment {
 public:
  // Null: unset.
  ScopedEnvironment(const char* name, const char* value) : name_(name) {
    if (const char* const before = std::getenv(name); before != nullptr) before_ = before;
    had_ = std::getenv(name) != nullptr;
    Set(value);
  }
  ~ScopedEnvironment() { Set(had_ ? before_.c_str() : nullptr); }
  ScopedEnvironment(const ScopedEnvironment&) = delete;
  ScopedEnvironment& operator=(const ScopedEnvironment&) = delete;

 private:
  void Set(const char* value) {
    if (value == nullptr) {
      unsetenv(name_);
    } else {
      setenv(name_, value, 1);
    }
  }
  const char* const name_;
  std::string before_;
  bool had_ = false;
};

}  // namespace kvxfer::cuda

#endif  // KVXFER_TESTS_UNIT_CUDA_TEST_UTIL_H_
