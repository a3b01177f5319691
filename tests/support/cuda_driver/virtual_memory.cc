// Virtual memory management: cuMemCreate, cuMemAddressReserve, cuMemMap and what belongs to them.
#include "tests/support/cuda_driver/virtual_memory.h"

#include <algorithm>
#include <span>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

constexpr size_t kGranularity = size_t{2} << 20;

// What a property asks for, or why it cannot be.
CUresult CheckProp(State* state, const CUmemAllocationProp* prop) {
  if (prop == nullptr || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
  const Device* const device = state->FindDevice(prop->location.id);
  if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const bool fd = (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
  const bool fabric = (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) != 0;
  const auto lacks = [&](CUdevice_attribute attribute) { return !Has(state, *device, attribute); };
  if (lacks(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
      (fd && lacks(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) ||
      (fabric && lacks(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED))) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}

bool Multiple(size_t value) { return value % kGranularity == 0; }

// The reservation with [at, at + bytes) in it, or null.
std::shared_ptr<View> ReservationOf(State* state, uint64_t at, size_t bytes) {
  const auto next = state->reservations.upper_bound(at);
  if (next == state->reservations.begin()) return nullptr;
  const std::shared_ptr<View>& view = std::prev(next)->second;
  const uint64_t offset = at - view->address();
  return offset <= view->bytes() && bytes <= view->bytes() - offset ? view : nullptr;
}

// The mappings that [at, at + bytes) consists of, whole ones only.
std::vector<Range*> WholeMappings(State* state, uint64_t at, size_t bytes) {
  std::vector<Range*> cover = state->memory.Cover(at, bytes);
  const bool whole = !cover.empty() && cover.front()->kind == RangeKind::kVirtual &&
                     cover.front()->at == at && cover.back()->end() == at + bytes;
  if (!whole) cover.clear();
  return cover;
}

}  // namespace

void DropHandle(State* state, uint64_t id) {
  const auto found = state->handles.find(id);
  if (found->second.references == 0 && found->second.mappings == 0) state->handles.erase(found);
}

Handle* FindHandle(State* state, CUmemGenericAllocationHandle handle) {
  const auto found = state->handles.find(handle);
  return found == state->handles.end() || found->second.references == 0 ? nullptr : &found->second;
}

extern "C" CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp* prop,
                                                  CUmemAllocationGranularity_flags option) {
  KVXFER_STANDIN_ENTER(cuMemGetAllocationGranularity, kInit);
  if (bytes == nullptr || option > CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult fit = CheckProp(&call.state(), prop);
  if (fit == CUDA_SUCCESS) *bytes = kGranularity;
  return fit;
}

extern "C" CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes,
                                const CUmemAllocationProp* prop, uint64_t flags) {
  KVXFER_STANDIN_ENTER(cuMemCreate, kInit);
  State& state = call.state();
  if (handle == nullptr || bytes == 0 || !Multiple(bytes) || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult fit = CheckProp(&state, prop);
  if (fit != CUDA_SUCCESS) return fit;
  Device* const device = state.FindDevice(prop->location.id);
  if (bytes > static_cast<size_t>(state.config.memory) - device->used) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  std::shared_ptr<Physical> physical =
      CreatePhysical(bytes, device->uuid, static_cast<uint64_t>(prop->requestedHandleTypes),
                     prop->allocFlags.gpuDirectRDMACapable != 0);
  if (physical == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  physical->device = prop->location.id;
  physical->used = &device->used;
  device->used += physical->bytes;
  *handle = state.NewId();
  state.handles.emplace(*handle, Handle{.physical = std::move(physical), .references = 1});
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  KVXFER_STANDIN_ENTER(cuMemRelease, kInit);
  Handle* const found = FindHandle(&call.state(), handle);
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  --found->references;
  DropHandle(&call.state(), handle);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle, void* at) {
  KVXFER_STANDIN_ENTER(cuMemRetainAllocationHandle, kInit);
  const Range* const range = call.state().memory.Find(reinterpret_cast<uint64_t>(at));
  if (handle == nullptr || range == nullptr || range->kind != RangeKind::kVirtual) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  *handle = range->handle;
  ++call.state().handles.at(range->handle).references;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp* prop,
                                                           CUmemGenericAllocationHandle handle) {
  KVXFER_STANDIN_ENTER(cuMemGetAllocationPropertiesFromHandle, kInit);
  const Handle* const found = FindHandle(&call.state(), handle);
  if (prop == nullptr || found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *prop = {};
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes =
      static_cast<CUmemAllocationHandleType>(found->physical->handle_types);
  prop->location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = found->physical->device};
  prop->allocFlags.gpuDirectRDMACapable = found->physical->gpu_direct ? 1 : 0;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemAddressReserve(CUdeviceptr* at, size_t bytes, size_t alignment,
                                        CUdeviceptr wish, uint64_t flags) {
  KVXFER_STANDIN_ENTER(cuMemAddressReserve, kInit);
  const bool power = (alignment & (alignment - 1)) == 0;
  if (at == nullptr || bytes == 0 || !Multiple(bytes) || !power || flags != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::shared_ptr<View> view = View::Reserve(bytes, std::max(alignment, kGranularity), wish);
  if (view == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  *at = view->address();
  call.state().reservations.emplace(*at, std::move(view));
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemAddressFree(CUdeviceptr at, size_t bytes) {
  KVXFER_STANDIN_ENTER(cuMemAddressFree, kInit);
  State& state = call.state();
  const auto found = state.reservations.find(at);
  if (found == state.reservations.end() || found->second->bytes() != bytes ||
      state.memory.Overlaps(at, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  state.reservations.erase(found);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemMap(CUdeviceptr at, size_t bytes, size_t offset,
                             CUmemGenericAllocationHandle handle, uint64_t flags) {
  KVXFER_STANDIN_ENTER(cuMemMap, kInit);
  State& state = call.state();
  Handle* const found = FindHandle(&state, handle);
  if (found == nullptr || offset != 0 || flags != 0 || bytes == 0 || !Multiple(bytes) ||
      !Multiple(at) || bytes > found->physical->bytes || state.memory.Overlaps(at, bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const std::shared_ptr<View> view = ReservationOf(&state, at, bytes);
  if (view == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!view->Map(at - view->address(), *found->physical, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  state.memory.Add({.at = at,
                    .bytes = bytes,
                    .kind = RangeKind::kVirtual,
                    .device = found->physical->device,
                    .buffer_id = state.next_buffer++,
                    .alias = view->alias() + (at - view->address()),
                    .view = view,
                    .physical = found->physical,
                    .handle = handle});
  ++found->mappings;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemUnmap(CUdeviceptr at, size_t bytes) {
  KVXFER_STANDIN_ENTER(cuMemUnmap, kInit);
  State& state = call.state();
  if (WholeMappings(&state, at, bytes).empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const Device& device : state.devices) WaitIdle(&state, &call.lock(), device.context);
  for (const Range* range : WholeMappings(&state, at, bytes)) {  // the lock was free
    range->view->Unmap(range->at - range->view->address(), range->bytes);
    const uint64_t handle = range->handle;
    state.memory.Erase(range->at);
    --state.handles.at(handle).mappings;
    DropHandle(&state, handle);
  }
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemSetAccess(CUdeviceptr at, size_t bytes, const CUmemAccessDesc* desc,
                                   size_t count) {
  KVXFER_STANDIN_ENTER(cuMemSetAccess, kInit);
  State& state = call.state();
  const std::vector<Range*> mappings = WholeMappings(&state, at, bytes);
  if (mappings.empty() || desc == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  for (const CUmemAccessDesc& one : std::span(desc, count)) {
    if (one.location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    const Device* const device = state.FindDevice(one.location.id);
    if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
    for (const Range* range : mappings) {
      if (range->device != one.location.id && one.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
          !CanReach(*device, *state.FindDevice(range->device))) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
  }
  for (const CUmemAccessDesc& one : std::span(desc, count)) {
    const uint32_t bit = 1u << one.location.id;
    for (Range* range : mappings) {
      range->readers = one.flags != 0 ? range->readers | bit : range->readers & ~bit;
      range->writers = one.flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? range->writers | bit
                                                                       : range->writers & ~bit;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
