// The entry points of the GPU; the work is in check_kernels.cuh.

#include "tests/gpu/check_kernels.cuh"

namespace kvxfer::testing::gpu {

namespace {

// As atomics take it: of the same size, and another type.
__device__ unsigned long long* Wide(uint64_t* number) {
  return reinterpret_cast<unsigned long long*>(number);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads) kvxfer_test_fill(const FillParams params) {
  FillBytes(params, static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x,
            static_cast<uint64_t>(gridDim.x) * kThreads, cuda::DirectMemory());
}

extern "C" __global__ void __launch_bounds__(kThreads) kvxfer_test_check(const CheckParams params) {
  const CheckResult found =
      CheckBytes(params, static_cast<uint64_t>(blockIdx.x) * kThreads + threadIdx.x,
                 static_cast<uint64_t>(gridDim.x) * kThreads, cuda::DirectMemory());
  CheckResult* const result = reinterpret_cast<CheckResult*>(params.result);
  atomicAdd(Wide(&result->looked), found.looked);
  if (found.wrong == 0) return;
  atomicAdd(Wide(&result->wrong), found.wrong);
  atomicMin(Wide(&result->first), found.first);
}

}  // namespace kvxfer::testing::gpu
