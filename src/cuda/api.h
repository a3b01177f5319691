// The part of the CUDA driver's binary interface that kvxfer calls: types, constants and functions
// with the names and values of NVIDIA's <cuda.h>, so that building needs no CUDA toolkit. If a
// toolkit is installed, tests/cuda_api/same_as_toolkit.cc compares each of them with the original.
//
// Functions that exist in several versions are named with the version that is meant ("_v2"). An
// optional function that the installed CUDA driver lacks is null.
//
// Thread-safety: declarations only.

#ifndef KVXFER_CUDA_API_H_
#define KVXFER_CUDA_API_H_

#include <cstddef>
#include <cstdint>

namespace kvxfer::cuda::api {

using CUdevice = int;
using CUdeviceptr = unsigned long long;  // NOLINT(google-runtime-int): the driver's own
using CUcontext = struct CUctx_st*;
using CUstream = struct CUstream_st*;
using CUevent = struct CUevent_st*;
using CUmodule = struct CUmod_st*;
using CUfunction = struct CUfunc_st*;
using CUmemGenericAllocationHandle = unsigned long long;  // NOLINT(google-runtime-int)
using CUmemoryPool = struct CUmemPoolHandle_st*;
using CUhostFn = void (*)(void* user);

enum CUresult : int {
  CUDA_SUCCESS = 0,
  CUDA_ERROR_INVALID_VALUE = 1,
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NOT_INITIALIZED = 3,
  CUDA_ERROR_DEINITIALIZED = 4,
  CUDA_ERROR_STUB_LIBRARY = 34,
  CUDA_ERROR_DEVICE_UNAVAILABLE = 46,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_INVALID_DEVICE = 101,
  CUDA_ERROR_INVALID_IMAGE = 200,
  CUDA_ERROR_INVALID_CONTEXT = 201,
  CUDA_ERROR_MAP_FAILED = 205,
  CUDA_ERROR_ALREADY_MAPPED = 208,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_PEER_ACCESS_UNSUPPORTED = 217,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_OPERATING_SYSTEM = 304,
  CUDA_ERROR_INVALID_HANDLE = 400,
  CUDA_ERROR_NOT_FOUND = 500,
  CUDA_ERROR_NOT_READY = 600,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_TOO_MANY_PEERS = 711,
  CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712,
  CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_MISALIGNED_ADDRESS = 716,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_NOT_PERMITTED = 800,
  CUDA_ERROR_NOT_SUPPORTED = 801,
  CUDA_ERROR_SYSTEM_NOT_READY = 802,
  CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803,
  CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE = 804,
  CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  CUDA_ERROR_CAPTURED_EVENT = 907,
  CUDA_ERROR_UNKNOWN = 999,
};

enum CUdevice_attribute : int {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_INTEGRATED = 18,
  CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT = 40,
  CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING = 41,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED = 116,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS = 117,
  CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING = 118,
  CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
  CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED = 124,
  CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED = 125,
  CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED = 128,
  CU_DEVICE_ATTRIBUTE_MPS_ENABLED = 133,
  CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID = 134,
};

enum CUdevice_P2PAttribute : int {
  CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK = 1,
  CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED = 2,
  CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED = 3,
};

// The values of CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING.
enum CUGPUDirectRDMAWritesOrdering : int {
  CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE = 0,
  CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER = 100,
  CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES = 200,
};
// The bits of CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS.
inline constexpr int CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST = 1;
inline constexpr int CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS = 2;
enum CUflushGPUDirectRDMAWritesTarget : int {
  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX = 0,
};
enum CUflushGPUDirectRDMAWritesScope : int {
  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER = 100,
  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES = 200,
};

enum CUpointer_attribute : int {
  CU_POINTER_ATTRIBUTE_CONTEXT = 1,
  CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
  CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
  CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
  CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6,
  CU_POINTER_ATTRIBUTE_BUFFER_ID = 7,
  CU_POINTER_ATTRIBUTE_IS_MANAGED = 8,
  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
  CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
  CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
  CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
  CU_POINTER_ATTRIBUTE_MAPPED = 13,
  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES = 14,
  CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE = 15,
  CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
  CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};

enum CUmemorytype : int {
  CU_MEMORYTYPE_HOST = 1,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_MEMORYTYPE_ARRAY = 3,
  CU_MEMORYTYPE_UNIFIED = 4,
};

enum CUmemAllocationHandleType : int {
  CU_MEM_HANDLE_TYPE_NONE = 0,
  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
  CU_MEM_HANDLE_TYPE_FABRIC = 8,
};
enum CUmemAllocationType : int { CU_MEM_ALLOCATION_TYPE_PINNED = 1 };
enum CUmemLocationType : int {
  CU_MEM_LOCATION_TYPE_DEVICE = 1,
  CU_MEM_LOCATION_TYPE_HOST = 2,
  CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
};
struct CUmemLocation {
  CUmemLocationType type;
  int id;
};
struct CUmemAllocationProp {
  CUmemAllocationType type;
  CUmemAllocationHandleType requestedHandleTypes;
  CUmemLocation location;
  void* win32HandleMetaData;
  struct {
    unsigned char compressionType;
    unsigned char gpuDirectRDMACapable;
    unsigned short usage;  // NOLINT(google-runtime-int)
    unsigned char reserved[4];
  } allocFlags;
};
enum CUmemAccess_flags : int {
  CU_MEM_ACCESS_FLAGS_PROT_NONE = 0,
  CU_MEM_ACCESS_FLAGS_PROT_READ = 1,
  CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3,
};
struct CUmemAccessDesc {
  CUmemLocation location;
  CUmemAccess_flags flags;
};
enum CUmemAllocationGranularity_flags : int {
  CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
  CU_MEM_ALLOC_GRANULARITY_RECOMMENDED = 1,
};
enum CUmemRangeHandleType : int { CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1 };
struct CUmemFabricHandle {
  unsigned char data[64];
};

struct CUuuid {
  char bytes[16];
};
struct CUipcMemHandle {
  char reserved[64];
};
inline constexpr unsigned CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1;

inline constexpr unsigned CU_MEMHOSTREGISTER_PORTABLE = 1;
inline constexpr unsigned CU_MEMHOSTREGISTER_DEVICEMAP = 2;
inline constexpr unsigned CU_MEM_ATTACH_GLOBAL = 1;
inline constexpr unsigned CU_STREAM_NON_BLOCKING = 1;
inline constexpr unsigned CU_EVENT_DISABLE_TIMING = 2;
inline constexpr unsigned CU_STREAM_WAIT_VALUE_GEQ = 0;
inline constexpr unsigned CU_STREAM_WAIT_VALUE_EQ = 1;
inline constexpr unsigned CU_STREAM_WRITE_VALUE_DEFAULT = 0;

enum CUstreamCaptureStatus : int {
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
};
enum CUstreamCaptureMode : int {
  CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
  CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
};

// X(function, (parameters)); each returns a CUresult. A CUDA driver must have all of these. CUDA
// 11.4 is the first version that has them: it introduced the ordering attributes of GPUDirect RDMA.
#define KVXFER_CUDA_CALLS(X)                                                                      \
  X(cuInit, (unsigned flags))                                                                     \
  X(cuDriverGetVersion, (int* version))                                                           \
  X(cuGetErrorName, (CUresult error, const char** text))                                          \
  X(cuGetErrorString, (CUresult error, const char** text))                                        \
  X(cuDeviceGetCount, (int* count))                                                               \
  X(cuDeviceGet, (CUdevice * device, int ordinal))                                                \
  X(cuDeviceGetName, (char* name, int bytes, CUdevice device))                                    \
  X(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device))                                         \
  X(cuDeviceGetAttribute, (int* value, CUdevice_attribute attribute, CUdevice device))            \
  X(cuDeviceGetPCIBusId, (char* text, int bytes, CUdevice device))                                \
  X(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device))                                       \
  X(cuDeviceCanAccessPeer, (int* can, CUdevice device, CUdevice peer))                            \
  X(cuDeviceGetP2PAttribute,                                                                      \
    (int* value, CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to))                    \
  X(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device))                             \
  X(cuDevicePrimaryCtxRelease_v2, (CUdevice device))                                              \
  X(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned* flags, int* active))                  \
  X(cuCtxPushCurrent_v2, (CUcontext context))                                                     \
  X(cuCtxPopCurrent_v2, (CUcontext * context))                                                    \
  X(cuCtxGetCurrent, (CUcontext * context))                                                       \
  X(cuCtxSetCurrent, (CUcontext context))                                                         \
  X(cuCtxGetDevice, (CUdevice * device))                                                          \
  X(cuCtxEnablePeerAccess, (CUcontext peer, unsigned flags))                                      \
  X(cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                     \
  X(cuMemAlloc_v2, (CUdeviceptr * at, size_t bytes))                                              \
  X(cuMemFree_v2, (CUdeviceptr at))                                                               \
  X(cuMemAllocManaged, (CUdeviceptr * at, size_t bytes, unsigned flags))                          \
  X(cuMemAllocAsync, (CUdeviceptr * at, size_t bytes, CUstream stream))                           \
  X(cuMemFreeAsync, (CUdeviceptr at, CUstream stream))                                            \
  X(cuMemHostRegister_v2, (void* at, size_t bytes, unsigned flags))                               \
  X(cuMemHostUnregister, (void* at))                                                              \
  X(cuMemHostGetDevicePointer_v2, (CUdeviceptr * at, void* host, unsigned flags))                 \
  X(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t * bytes, CUdeviceptr at))                \
  X(cuPointerGetAttribute, (void* value, CUpointer_attribute attribute, CUdeviceptr at))          \
  X(cuPointerSetAttribute, (const void* value, CUpointer_attribute attribute, CUdeviceptr at))    \
  X(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))             \
  X(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, size_t bytes))                            \
  X(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, size_t bytes))                                  \
  X(cuMemsetD8_v2, (CUdeviceptr at, unsigned char value, size_t bytes))                           \
  X(cuStreamCreateWithPriority, (CUstream * stream, unsigned flags, int priority))                \
  X(cuStreamDestroy_v2, (CUstream stream))                                                        \
  X(cuStreamQuery, (CUstream stream))                                                             \
  X(cuStreamSynchronize, (CUstream stream))                                                       \
  X(cuStreamGetCtx, (CUstream stream, CUcontext * context))                                       \
  X(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags))                          \
  X(cuLaunchHostFunc, (CUstream stream, CUhostFn call, void* user))                               \
  X(cuEventCreate, (CUevent * event, unsigned flags))                                             \
  X(cuEventDestroy_v2, (CUevent event))                                                           \
  X(cuEventRecord, (CUevent event, CUstream stream))                                              \
  X(cuEventQuery, (CUevent event))                                                                \
  X(cuEventSynchronize, (CUevent event))                                                          \
  X(cuIpcGetMemHandle, (CUipcMemHandle * handle, CUdeviceptr at))                                 \
  X(cuIpcOpenMemHandle_v2, (CUdeviceptr * at, CUipcMemHandle handle, unsigned flags))             \
  X(cuIpcCloseMemHandle, (CUdeviceptr at))                                                        \
  X(cuMemCreate, (CUmemGenericAllocationHandle * handle, size_t bytes,                            \
                  const CUmemAllocationProp* prop, uint64_t flags))                               \
  X(cuMemRelease, (CUmemGenericAllocationHandle handle))                                          \
  X(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * handle, void* at))               \
  X(cuMemGetAllocationGranularity,                                                                \
    (size_t * bytes, const CUmemAllocationProp* prop, CUmemAllocationGranularity_flags option))   \
  X(cuMemGetAllocationPropertiesFromHandle,                                                       \
    (CUmemAllocationProp * prop, CUmemGenericAllocationHandle handle))                            \
  X(cuMemExportToShareableHandle, (void* shareable, CUmemGenericAllocationHandle handle,          \
                                   CUmemAllocationHandleType type, uint64_t flags))               \
  X(cuMemImportFromShareableHandle,                                                               \
    (CUmemGenericAllocationHandle * handle, void* shareable, CUmemAllocationHandleType type))     \
  X(cuMemAddressReserve,                                                                          \
    (CUdeviceptr * at, size_t bytes, size_t alignment, CUdeviceptr wish, uint64_t flags))         \
  X(cuMemAddressFree, (CUdeviceptr at, size_t bytes))                                             \
  X(cuMemMap, (CUdeviceptr at, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,  \
               uint64_t flags))                                                                   \
  X(cuMemUnmap, (CUdeviceptr at, size_t bytes))                                                   \
  X(cuMemSetAccess, (CUdeviceptr at, size_t bytes, const CUmemAccessDesc* desc, size_t count))    \
  X(cuModuleLoadData, (CUmodule * module, const void* image))                                     \
  X(cuModuleUnload, (CUmodule module))                                                            \
  X(cuModuleGetFunction, (CUfunction * function, CUmodule module, const char* name))              \
  X(cuLaunchKernel, (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,      \
                     unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes, \
                     CUstream stream, void** parameters, void** extra))                           \
  X(cuFlushGPUDirectRDMAWrites,                                                                   \
    (CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope))

// Newer functions, which may be missing: dmabuf export (11.7) and the second version of the stream
// memory operations (11.7). The two on graph capture are older, and kvxfer can do without them.
#define KVXFER_CUDA_OPTIONAL_CALLS(X)                                                          \
  X(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode))                           \
  X(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus * status))                    \
  X(cuMemGetHandleForAddressRange,                                                             \
    (void* handle, CUdeviceptr at, size_t bytes, CUmemRangeHandleType type, uint64_t flags))   \
  X(cuStreamWaitValue32_v2, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags)) \
  X(cuStreamWriteValue32_v2, (CUstream stream, CUdeviceptr at, uint32_t value, unsigned flags))

struct Calls {
#define KVXFER_CUDA_MEMBER(name, parameters) CUresult(*name) parameters = nullptr;
  KVXFER_CUDA_CALLS(KVXFER_CUDA_MEMBER)
  KVXFER_CUDA_OPTIONAL_CALLS(KVXFER_CUDA_MEMBER)
#undef KVXFER_CUDA_MEMBER
};

}  // namespace kvxfer::cuda::api

#endif  // KVXFER_CUDA_API_H_
