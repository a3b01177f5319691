// cuInit, cuDevice...
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/errors.h"
#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

// `text` as a string of at most `bytes`, its end included.
CUresult CopyText(const std::string& text, char* out, int bytes) {
  if (out == nullptr || bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  std::snprintf(out, static_cast<size_t>(bytes), "%s", text.c_str());
  return CUDA_SUCCESS;
}

bool AreDevices(Call* call, CUdevice a, CUdevice b) {
  return call->state().FindDevice(a) != nullptr && call->state().FindDevice(b) != nullptr;
}

}  // namespace

int DeviceAttribute(State* state, const Device& device, int attribute) {
  if (const auto set = device.attributes.find(attribute); set != device.attributes.end()) {
    return set->second;
  }
  const Config& config = state->config;
  const auto value = [&]() -> int64_t {
    switch (attribute) {
      case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT:
        return config.processors;
      case CU_DEVICE_ATTRIBUTE_INTEGRATED:
        return config.integrated;
      case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT:
        return 3;
      case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
        return 1;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
        return config.compute / 10;
      case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
        return config.compute % 10;
      case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
        return config.stream_values;
      case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
        return config.vmm;
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
        return config.vmm & config.fd_handles;
      case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED:
        return config.vmm & config.fabric;
      case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
        return config.gpu_direct;
      case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS:
        return config.flush_options;
      case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
        return config.writes_ordering;
      case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED:
        return config.dmabuf;
      case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
        return config.ipc;
      case CU_DEVICE_ATTRIBUTE_MPS_ENABLED:
        return config.mps < 0 ? kNoAttribute : config.mps;
      case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
        return config.numa;
      default:
        return kNoAttribute;
    }
  }();
  return static_cast<int>(value);
}

extern "C" CUresult cuInit(unsigned flags) {
  KVXFER_STANDIN_ENTER(cuInit, kNothing);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  if (!state.config.init.empty()) return *ErrorNamed(state.config.init);
  if (state.devices.empty()) return CUDA_ERROR_NO_DEVICE;
  state.initialised = true;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDriverGetVersion(int* version) {
  KVXFER_STANDIN_ENTER(cuDriverGetVersion, kNothing);
  if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *version = static_cast<int>(call.state().config.version);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDeviceGetCount(int* count) {
  KVXFER_STANDIN_ENTER(cuDeviceGetCount, kInit);
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(call.state().devices.size());
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  KVXFER_STANDIN_ENTER(cuDeviceGet, kInit);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.state().FindDevice(ordinal) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDeviceGetName(char* name, int bytes, CUdevice device) {
  KVXFER_STANDIN_ENTER(cuDeviceGetName, kInit);
  const Device* const found = call.state().FindDevice(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  return CopyText("Stand-in GPU " + std::to_string(found->index), name, bytes);
}

extern "C" CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  KVXFER_STANDIN_ENTER(cuDeviceGetUuid_v2, kInit);
  if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Device* const found = call.state().FindDevice(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *uuid = found->uuid;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute,
                                         CUdevice device) {
  KVXFER_STANDIN_ENTER(cuDeviceGetAttribute, kInit);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Device* const found = call.state().FindDevice(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  const int is = DeviceAttribute(&call.state(), *found, attribute);
  if (is == kNoAttribute) return CUDA_ERROR_INVALID_VALUE;
  *value = is;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDeviceGetPCIBusId(char* text, int bytes, CUdevice device) {
  KVXFER_STANDIN_ENTER(cuDeviceGetPCIBusId, kInit);
  const Device* const found = call.state().FindDevice(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  char id[32];
  std::snprintf(id, sizeof(id), "0000:%02X:00.0", 0xE0 + found->index);
  return CopyText(id, text, bytes);
}

extern "C" CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  KVXFER_STANDIN_ENTER(cuDeviceTotalMem_v2, kInit);
  if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (call.state().FindDevice(device) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = static_cast<size_t>(call.state().config.memory);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDeviceCanAccessPeer(int* can, CUdevice device, CUdevice peer) {
  KVXFER_STANDIN_ENTER(cuDeviceCanAccessPeer, kInit);
  if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!AreDevices(&call, device, peer)) return CUDA_ERROR_INVALID_DEVICE;
  *can = CanReach(*call.state().FindDevice(device), *call.state().FindDevice(peer)) ? 1 : 0;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDeviceGetP2PAttribute(int* value, CUdevice_P2PAttribute attribute,
                                            CUdevice from, CUdevice to) {
  KVXFER_STANDIN_ENTER(cuDeviceGetP2PAttribute, kInit);
  if (value == nullptr || attribute < CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ||
      attribute > CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (from == to || !AreDevices(&call, from, to)) return CUDA_ERROR_INVALID_DEVICE;
  const bool can = CanReach(*call.state().FindDevice(from), *call.state().FindDevice(to));
  *value = can && attribute != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK ? 1 : 0;
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
