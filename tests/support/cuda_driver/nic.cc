// GPUDirect: what NICs write is seen by the GPU when it was flushed, and not before.
#include <cerrno>
#include <cstring>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

// Where a NIC finds [at, at + bytes), and whose it is; null: it was not given that.
std::byte* FindForNic(State* state, uint64_t at, uint64_t bytes, Device** device) {
  const std::vector<Range*> cover = state->memory.Cover(at, bytes);
  for (const Range* range : cover) {
    if (!MayGiveToNic(state, *range)) return nullptr;
  }
  if (cover.empty()) return nullptr;
  *device = state->FindDevice(cover.front()->device);
  return cover.front()->alias + (at - cover.front()->at);
}

uint64_t BufferAt(State* state, uint64_t at) {
  return state->memory.Cover(at, 1).front()->buffer_id;
}

// What was written to memory that is gone by now is lost, also where there is other memory now.
void Flush(State* state, Device* device) {
  for (const NicWrite& write : device->nic_writes) {
    Device* owner = nullptr;
    std::byte* const at = FindForNic(state, write.at, write.bytes.size(), &owner);
    if (at == nullptr || BufferAt(state, write.at) != write.buffer_id) continue;
    std::memcpy(at, write.bytes.data(), write.bytes.size());
  }
  device->nic_writes.clear();
}

}  // namespace

bool MayGiveToNic(State* state, const Range& range) {
  const bool memory = range.kind == RangeKind::kDevice || range.kind == RangeKind::kPool ||
                      range.kind == RangeKind::kVirtual || range.kind == RangeKind::kIpc;
  return memory && range.physical->gpu_direct &&
         Has(state, *state->FindDevice(range.device),
             CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
}

extern "C" CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                               CUflushGPUDirectRDMAWritesScope scope) {
  KVXFER_STANDIN_ENTER(cuFlushGPUDirectRDMAWrites, kContext);
  if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
      (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER &&
       scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int options = DeviceAttribute(&call.state(), call.device(),
                                      CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  if ((options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  Flush(&call.state(), &call.device());
  return CUDA_SUCCESS;
}

extern "C" int kvxfer_standin_nic_may(uint64_t at, uint64_t bytes) {
  State& state = TheState();
  const Lock lock(state.mutex);
  Device* device = nullptr;
  return FindForNic(&state, at, bytes, &device) == nullptr ? EFAULT : 0;
}

extern "C" int kvxfer_standin_nic_write(uint64_t at, const void* from, uint64_t bytes) {
  State& state = TheState();
  const Lock lock(state.mutex);
  Device* device = nullptr;
  std::byte* const to = FindForNic(&state, at, bytes, &device);
  if (to == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
  const int ordering =
      DeviceAttribute(&state, *device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
  const auto* const data = static_cast<const std::byte*>(from);
  if (ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER) {
    std::memcpy(to, data, bytes);
  } else {
    device->nic_writes.push_back(
        {.at = at, .buffer_id = BufferAt(&state, at), .bytes = {data, data + bytes}});
  }
  return CUDA_SUCCESS;
}

extern "C" int kvxfer_standin_nic_read(uint64_t at, void* to, uint64_t bytes) {
  State& state = TheState();
  const Lock lock(state.mutex);
  Device* device = nullptr;
  const std::byte* const from = FindForNic(&state, at, bytes, &device);
  if (from == nullptr) return CUDA_ERROR_ILLEGAL_ADDRESS;
  Flush(&state, device);
  std::memcpy(to, from, bytes);
  return CUDA_SUCCESS;
}

extern "C" uint64_t kvxfer_standin_nic_pending(int device) {
  State& state = TheState();
  const Lock lock(state.mutex);
  const Device* const found = state.FindDevice(device);
  uint64_t bytes = 0;
  if (found == nullptr) return 0;
  for (const NicWrite& write : found->nic_writes) bytes += write.bytes.size();
  return bytes;
}

}  // namespace kvxfer::testing::cuda_driver
