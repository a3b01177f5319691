// Copies and memset by the driver.
#include <cstring>
#include <utility>
#include <vector>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

struct Copy {
  CUdeviceptr to = 0;
  CUdeviceptr from = 0;
  size_t bytes = 0;
  int device = 0;  // by whom
};

// Begins it; `copy` was looked at. What pageable memory holds is read during the call.
std::shared_ptr<Operation> Start(State* state, Stream* stream, const Copy& copy,
                                 const Place& from) {
  std::vector<std::byte> held;
  if (from.pageable) held.assign(from.data, from.data + copy.bytes);
  return stream->Enqueue([state, copy, held = std::move(held), pageable = from.pageable] {
    Place to_place;
    Place from_place;
    {
      const Lock lock(state->mutex);
      if (FindCopyPlace(state, copy.to, copy.bytes, copy.device, &to_place) != CUDA_SUCCESS) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;  // it was there at the call
      }
      if (!pageable &&
          FindCopyPlace(state, copy.from, copy.bytes, copy.device, &from_place) != CUDA_SUCCESS) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
    std::memmove(to_place.data, pageable ? held.data() : from_place.data, copy.bytes);
    return CUDA_SUCCESS;
  });
}

CUresult Wait(Call* call, const std::shared_ptr<Operation>& operation) {
  State& state = call->state();
  state.changed.wait(call->lock(), [&] { return operation->done || state.ended; });
  return call->context().sticky;
}

CUresult CopyBy(Call* call, Stream* stream, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                bool wait) {
  if (bytes == 0) return CUDA_SUCCESS;
  State& state = call->state();
  const int device = call->context().device;
  Place to_place;
  Place from_place;
  const CUresult to_result = FindCopyPlace(&state, to, bytes, device, &to_place);
  if (to_result != CUDA_SUCCESS) return to_result;
  const CUresult from_result = FindCopyPlace(&state, from, bytes, device, &from_place);
  if (from_result != CUDA_SUCCESS) return from_result;
  if (to_place.pageable || from_place.pageable) ++state.pageable_copies;
  const std::shared_ptr<Operation> operation =
      Start(&state, stream, {.to = to, .from = from, .bytes = bytes, .device = device}, from_place);
  // Into pageable memory nothing comes after the call.
  if (!wait && !to_place.pageable) return CUDA_SUCCESS;
  return Wait(call, operation);
}

// Whether [at, at + bytes) is memory of a device.
bool IsDevice(State* state, CUdeviceptr at, size_t bytes) {
  const std::vector<Range*> cover = state->memory.Cover(at, bytes);
  return !cover.empty() && cover.front()->kind != RangeKind::kHost;
}

}  // namespace

extern "C" CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  KVXFER_STANDIN_ENTER(cuMemcpyAsync, kContext);
  Stream* const found = FindStream(&call.state(), &call.context(), stream, "cuMemcpyAsync");
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return CopyBy(&call, found, to, from, bytes, false);
}

extern "C" CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void* from, size_t bytes) {
  KVXFER_STANDIN_ENTER(cuMemcpyHtoD_v2, kContext);
  if (bytes > 0 && !IsDevice(&call.state(), to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  Stream* const stream = FindStream(&call.state(), &call.context(), nullptr, "cuMemcpyHtoD_v2");
  return CopyBy(&call, stream, to, reinterpret_cast<CUdeviceptr>(from), bytes, true);
}

extern "C" CUresult cuMemcpyDtoH_v2(void* to, CUdeviceptr from, size_t bytes) {
  KVXFER_STANDIN_ENTER(cuMemcpyDtoH_v2, kContext);
  if (bytes > 0 && !IsDevice(&call.state(), from, bytes)) return CUDA_ERROR_INVALID_VALUE;
  Stream* const stream = FindStream(&call.state(), &call.context(), nullptr, "cuMemcpyDtoH_v2");
  return CopyBy(&call, stream, reinterpret_cast<CUdeviceptr>(to), from, bytes, true);
}

extern "C" CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t bytes) {
  KVXFER_STANDIN_ENTER(cuMemsetD8_v2, kContext);
  State& state = call.state();
  if (bytes == 0) return CUDA_SUCCESS;
  if (!IsDevice(&state, at, bytes)) return CUDA_ERROR_INVALID_VALUE;
  Stream* const stream = FindStream(&state, &call.context(), nullptr, "cuMemsetD8_v2");
  const int device = call.context().device;
  return Wait(&call, stream->Enqueue([state = &state, at, value, bytes, device] {
    Place place;
    {
      const Lock lock(state->mutex);
      if (FindCopyPlace(state, at, bytes, device, &place) != CUDA_SUCCESS) {
        return CUDA_ERROR_ILLEGAL_ADDRESS;
      }
    }
    std::memset(place.data, value, bytes);
    return CUDA_SUCCESS;
  }));
}

}  // namespace kvxfer::testing::cuda_driver
