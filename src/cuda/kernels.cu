// The GPU's entry points. The work is in kernels.cuh.

#include "src/cuda/kernels.cuh"

namespace kvxfer::cuda {
namespace {

// The unit that lane `lane` of the warp holds, for all of its lanes.
__device__ __forceinline__ CopyUnit FromLane(const CopyUnit& held, uint32_t lane) {
  const auto word = [lane](uint32_t value) { return KVXFER_SHUFFLE(value, lane); };
  const auto pair = [&](uint64_t value) {
    const uint32_t low = word(static_cast<uint32_t>(value));
    const uint32_t high = word(static_cast<uint32_t>(value >> 32));
    return static_cast<uint64_t>(high) << 32 | low;
  };
  CopyUnit unit;
  unit.to = pair(held.to);
  unit.from = pair(held.from);
  unit.bytes = word(held.bytes);
  unit.rows = word(held.rows);
  unit.to_stride = static_cast<int32_t>(word(static_cast<uint32_t>(held.to_stride)));
  unit.from_stride = static_cast<int32_t>(word(static_cast<uint32_t>(held.from_stride)));
  return unit;
}

}  // namespace

// The lanes of a warp look up a unit each, so that the warp reads ids and lists in few requests:
// over PCIe one of 128 bytes costs hardly more than one of 32. Then they copy unit after unit
// together.
extern "C" __global__ void __launch_bounds__(kCopyThreads, 3)
    KVXFER_COPY_KERNEL(const KVXFER_KERNEL_CONSTANT CopyParams params) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t warp = (blockIdx.x * kCopyThreads + threadIdx.x) / kWarp;
  const uint32_t warps = gridDim.x * (kCopyThreads / kWarp);
  // Groups are dealt out round-robin to all warps of the launch.
  for (uint64_t first = static_cast<uint64_t>(warp) * params.per_group; first < params.count;
       first += static_cast<uint64_t>(warps) * params.per_group) {
    const uint64_t left = params.count - first;
    const uint32_t here = left < params.per_group ? static_cast<uint32_t>(left) : params.per_group;
    CopyUnit held;
    if (lane < here) held = UnitAt(params, static_cast<uint32_t>(first) + lane, DirectMemory());
    KVXFER_NO_UNROLL
    for (uint32_t i = 0; i < here; ++i) RunUnit(FromLane(held, i), lane, DirectMemory());
  }
}

}  // namespace kvxfer::cuda
