// The GPU's entry points. The work is in kernels.cuh.

#include "src/cuda/kernels.cuh"

namespace kvxfer::cuda {
namespace {

// The warp reads the list in one coalesced access, half a unit per lane, and passes the halves
// round by shuffles. Over PCIe a request of 128 bytes or more costs hardly more than one of 32.
__device__ __forceinline__ CopyUnit FromLanes(const uint4& half, uint32_t index) {
  const auto word = [&](uint32_t value, uint32_t which) {
    return __shfl_sync(0xffffffffu, value, 2 * index + which);
  };
  const auto pair = [](uint32_t low, uint32_t high) {
    return static_cast<uint64_t>(high) << 32 | low;
  };
  CopyUnit unit;
  unit.to = pair(word(half.x, 0), word(half.y, 0));
  unit.from = pair(word(half.z, 0), word(half.w, 0));
  unit.bytes = word(half.x, 1);
  unit.rows = word(half.y, 1);
  unit.to_stride = static_cast<int32_t>(word(half.z, 1));
  unit.from_stride = static_cast<int32_t>(word(half.w, 1));
  return unit;
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kCopyThreads, 3)
    kvxfer_copy_1(const CopyParams params) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t warp = (blockIdx.x * kCopyThreads + threadIdx.x) / kWarp;
  const uint32_t warps = gridDim.x * (kCopyThreads / kWarp);
  const uint4* const halves = reinterpret_cast<const uint4*>(params.units);
  // Groups are dealt out round-robin to all warps of the launch.
  for (uint64_t first = static_cast<uint64_t>(warp) * params.per_group; first < params.count;
       first += static_cast<uint64_t>(warps) * params.per_group) {
    const uint64_t left = params.count - first;
    const uint32_t here = left < params.per_group ? static_cast<uint32_t>(left) : params.per_group;
    uint4 half = make_uint4(0, 0, 0, 0);
    if (lane < 2 * here) half = __ldcs(halves + 2 * first + lane);
    KVXFER_NO_UNROLL
    for (uint32_t i = 0; i < here; ++i) RunUnit(FromLanes(half, i), lane, DirectMemory());
  }
}

}  // namespace kvxfer::cuda
