// Allocations: cuMemAlloc and its relatives, pinned host memory.
#include <algorithm>
#include <utility>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

// What is smaller shares a block of the driver with others: it does not begin at a page.
constexpr size_t kSmall = size_t{1} << 20;
constexpr size_t kLargeAlignment = size_t{2} << 20;
constexpr size_t kSmallAlignment = size_t{64} << 10;

// A new range over new memory, not in the map yet; its bytes are zero.
CUresult Make(State* state, Device* device, RangeKind kind, size_t bytes, Range* range) {
  if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const bool small = bytes < kSmall && kind != RangeKind::kManaged;
  const size_t offset = small ? 512 * (1 + state->next_buffer % 7) : 0;
  if (bytes > static_cast<size_t>(state->config.memory) - device->used) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const std::shared_ptr<Physical> physical =
      CreatePhysical(offset + bytes, device->uuid, 0, kind != RangeKind::kManaged);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  physical->device = device->context.device;
  physical->used = &device->used;
  device->used += physical->bytes;
  const std::shared_ptr<View> view =
      kind == RangeKind::kManaged
          ? View::Managed(*physical)
          : View::Reserve(physical->bytes, small ? kSmallAlignment : kLargeAlignment);
  if (view == nullptr || (kind != RangeKind::kManaged && !view->Map(0, *physical, view->bytes()))) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *range = {.at = view->address() + offset,
            .bytes = bytes,
            .kind = kind,
            .device = device->context.device,
            .context = kind == RangeKind::kPool ? nullptr : &device->context,
            .buffer_id = state->next_buffer++,
            .alias = view->alias() + offset,
            .view = view,
            .physical = physical};
  return CUDA_SUCCESS;
}

CUresult Allocate(Call* call, RangeKind kind, size_t bytes, CUdeviceptr* at) {
  if (at == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Range range;
  const CUresult made = Make(&call->state(), &call->device(), kind, bytes, &range);
  if (made != CUDA_SUCCESS) return made;
  *at = range.at;
  call->state().memory.Add(std::move(range));
  return CUDA_SUCCESS;
}

bool IsAllocation(const Range* range, CUdeviceptr at) {
  return range != nullptr && range->at == at &&
         (range->kind == RangeKind::kDevice || range->kind == RangeKind::kManaged ||
          range->kind == RangeKind::kPool);
}

}  // namespace

extern "C" CUresult cuMemAlloc_v2(CUdeviceptr* at, size_t bytes) {
  KVXFER_STANDIN_ENTER(cuMemAlloc_v2, kContext);
  return Allocate(&call, RangeKind::kDevice, bytes, at);
}

extern "C" CUresult cuMemAllocManaged(CUdeviceptr* at, size_t bytes, unsigned flags) {
  KVXFER_STANDIN_ENTER(cuMemAllocManaged, kContext);
  if (flags != CU_MEM_ATTACH_GLOBAL) return CUDA_ERROR_INVALID_VALUE;
  return Allocate(&call, RangeKind::kManaged, bytes, at);
}

extern "C" CUresult cuMemAllocAsync(CUdeviceptr* at, size_t bytes, CUstream stream) {
  KVXFER_STANDIN_ENTER(cuMemAllocAsync, kContext);
  if (FindStream(&call.state(), &call.context(), stream, "cuMemAllocAsync") == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return Allocate(&call, RangeKind::kPool, bytes, at);
}

extern "C" CUresult cuMemFree_v2(CUdeviceptr at) {
  KVXFER_STANDIN_ENTER(cuMemFree_v2, kContext);
  State& state = call.state();
  const Range* range = state.memory.Find(at);
  if (!IsAllocation(range, at)) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t id = range->buffer_id;
  if (range->context != nullptr) WaitIdle(&state, &call.lock(), *range->context);
  range = state.memory.Find(at);  // the lock was free
  if (!IsAllocation(range, at) || range->buffer_id != id) return CUDA_ERROR_INVALID_VALUE;
  state.memory.Erase(at);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemFreeAsync(CUdeviceptr at, CUstream stream) {
  KVXFER_STANDIN_ENTER(cuMemFreeAsync, kContext);
  State& state = call.state();
  Stream* const found = FindStream(&state, &call.context(), stream, "cuMemFreeAsync");
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Range* const range = state.memory.Find(at);
  if (!IsAllocation(range, at)) return CUDA_ERROR_INVALID_VALUE;
  found->Enqueue([state = &state, at, id = range->buffer_id] {
    const Lock lock(state->mutex);
    const Range* const range = state->memory.Find(at);
    if (range != nullptr && range->buffer_id == id) state->memory.Erase(at);
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemHostRegister_v2(void* at, size_t bytes, unsigned flags) {
  KVXFER_STANDIN_ENTER(cuMemHostRegister_v2, kContext);
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  if (at == nullptr || bytes == 0 || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  const auto address = reinterpret_cast<uint64_t>(at);
  if (state.memory.Overlaps(address, bytes)) {
    const Range* const range = state.memory.Find(address);
    return range != nullptr && range->kind != RangeKind::kHost
               ? CUDA_ERROR_INVALID_VALUE
               : CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  if (!Readable(at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  state.memory.Add({.at = address,
                    .bytes = bytes,
                    .kind = RangeKind::kHost,
                    .device = call.context().device,
                    .context = &call.context(),
                    .buffer_id = state.next_buffer++,
                    .alias = static_cast<std::byte*>(at)});
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemHostUnregister(void* at) {
  KVXFER_STANDIN_ENTER(cuMemHostUnregister, kContext);
  const auto address = reinterpret_cast<uint64_t>(at);
  const Range* const range = call.state().memory.Find(address);
  if (range == nullptr || range->kind != RangeKind::kHost || range->at != address) {
    return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  call.state().memory.Erase(address);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* at, void* host, unsigned flags) {
  KVXFER_STANDIN_ENTER(cuMemHostGetDevicePointer_v2, kContext);
  const auto address = reinterpret_cast<uint64_t>(host);
  const Range* const range = call.state().memory.Find(address);
  if (at == nullptr || flags != 0 || range == nullptr || range->kind != RangeKind::kHost) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *at = address;
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
