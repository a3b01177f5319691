// That src/cuda/api.h, which is written by hand, says what the toolkit's <cuda.h> says: every
// value, the layout of every structure, the parameters of every function. Compiling this is the
// test.

// clang-format off: before the toolkit's, which has macros of the same names
#include "src/cuda/api.h"

namespace kvxfer::cuda {
constexpr unsigned kPortable = api::CU_MEMHOSTREGISTER_PORTABLE;
constexpr unsigned kDeviceMap = api::CU_MEMHOSTREGISTER_DEVICEMAP;
}  // namespace kvxfer::cuda
#include <cuda.h>
// clang-format on

#include <cstddef>
#include <string_view>
#include <type_traits>

// Older ones do not have all of it.
#if CUDA_VERSION >= 12040

namespace kvxfer::cuda {
namespace {

namespace ours = ::kvxfer::cuda::api;

// Alike at the boundary of a C function: what a caller of one passes is what the other takes.
// Opaque structures are known by pointers only.
template <typename A, typename B>
struct Alike {
  static constexpr bool value = [] {
    if constexpr (std::is_same_v<A, B>) {
      return true;
    } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
      using To = std::remove_pointer_t<A>;
      using Other = std::remove_pointer_t<B>;
      return std::is_const_v<To> == std::is_const_v<Other> &&
             Alike<std::remove_const_t<To>, std::remove_const_t<Other>>::value;
    } else if constexpr ((std::is_integral_v<A> || std::is_enum_v<A>)&&(std::is_integral_v<B> ||
                                                                        std::is_enum_v<B>)) {
      return sizeof(A) == sizeof(B);
    } else {
      return std::is_class_v<A> && std::is_class_v<B>;
    }
  }();
};
template <typename A, typename B, typename... As, typename... Bs>
struct Alike<A (*)(As...), B (*)(Bs...)> {
  static constexpr bool value = [] {
    if constexpr (sizeof...(As) != sizeof...(Bs)) {
      return false;
    } else {
      return Alike<A, B>::value && (Alike<As, Bs>::value && ...);
    }
  }();
};

#define KVXFER_CUDA_CONSTANTS(X)                                     \
  X(CUDA_SUCCESS)                                                    \
  X(CUDA_ERROR_INVALID_VALUE)                                        \
  X(CUDA_ERROR_OUT_OF_MEMORY)                                        \
  X(CUDA_ERROR_NOT_INITIALIZED)                                      \
  X(CUDA_ERROR_DEINITIALIZED)                                        \
  X(CUDA_ERROR_STUB_LIBRARY)                                         \
  X(CUDA_ERROR_DEVICE_UNAVAILABLE)                                   \
  X(CUDA_ERROR_NO_DEVICE)                                            \
  X(CUDA_ERROR_INVALID_DEVICE)                                       \
  X(CUDA_ERROR_INVALID_IMAGE)                                        \
  X(CUDA_ERROR_INVALID_CONTEXT)                                      \
  X(CUDA_ERROR_MAP_FAILED)                                           \
  X(CUDA_ERROR_ALREADY_MAPPED)                                       \
  X(CUDA_ERROR_NO_BINARY_FOR_GPU)                                    \
  X(CUDA_ERROR_ECC_UNCORRECTABLE)                                    \
  X(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)                              \
  X(CUDA_ERROR_INVALID_PTX)                                          \
  X(CUDA_ERROR_NVLINK_UNCORRECTABLE)                                 \
  X(CUDA_ERROR_UNSUPPORTED_PTX_VERSION)                              \
  X(CUDA_ERROR_OPERATING_SYSTEM)                                     \
  X(CUDA_ERROR_INVALID_HANDLE)                                       \
  X(CUDA_ERROR_NOT_FOUND)                                            \
  X(CUDA_ERROR_NOT_READY)                                            \
  X(CUDA_ERROR_ILLEGAL_ADDRESS)                                      \
  X(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED)                          \
  X(CUDA_ERROR_CONTEXT_IS_DESTROYED)                                 \
  X(CUDA_ERROR_TOO_MANY_PEERS)                                       \
  X(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)                       \
  X(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)                           \
  X(CUDA_ERROR_HARDWARE_STACK_ERROR)                                 \
  X(CUDA_ERROR_MISALIGNED_ADDRESS)                                   \
  X(CUDA_ERROR_LAUNCH_FAILED)                                        \
  X(CUDA_ERROR_NOT_PERMITTED)                                        \
  X(CUDA_ERROR_NOT_SUPPORTED)                                        \
  X(CUDA_ERROR_SYSTEM_NOT_READY)                                     \
  X(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH)                               \
  X(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE)                       \
  X(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)                              \
  X(CUDA_ERROR_CAPTURED_EVENT)                                       \
  X(CUDA_ERROR_UNKNOWN)                                              \
  X(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)                        \
  X(CU_DEVICE_ATTRIBUTE_INTEGRATED)                                  \
  X(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT)                          \
  X(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING)                          \
  X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)                    \
  X(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)                    \
  X(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)               \
  X(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)         \
  X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) \
  X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED)                   \
  X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)        \
  X(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)             \
  X(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)                           \
  X(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED)                         \
  X(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)                \
  X(CU_DEVICE_ATTRIBUTE_MPS_ENABLED)                                 \
  X(CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID)                                \
  X(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK)                        \
  X(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED)                        \
  X(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED)                 \
  X(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE)                         \
  X(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)                        \
  X(CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES)                  \
  X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST)                     \
  X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_MEMOPS)                   \
  X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX)              \
  X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER)                        \
  X(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES)                  \
  X(CU_POINTER_ATTRIBUTE_CONTEXT)                                    \
  X(CU_POINTER_ATTRIBUTE_MEMORY_TYPE)                                \
  X(CU_POINTER_ATTRIBUTE_DEVICE_POINTER)                             \
  X(CU_POINTER_ATTRIBUTE_HOST_POINTER)                               \
  X(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)                                \
  X(CU_POINTER_ATTRIBUTE_BUFFER_ID)                                  \
  X(CU_POINTER_ATTRIBUTE_IS_MANAGED)                                 \
  X(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)                             \
  X(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE)                 \
  X(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)                           \
  X(CU_POINTER_ATTRIBUTE_RANGE_SIZE)                                 \
  X(CU_POINTER_ATTRIBUTE_MAPPED)                                     \
  X(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES)                       \
  X(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE)                 \
  X(CU_POINTER_ATTRIBUTE_ACCESS_FLAGS)                               \
  X(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE)                             \
  X(CU_MEMORYTYPE_HOST)                                              \
  X(CU_MEMORYTYPE_DEVICE)                                            \
  X(CU_MEMORYTYPE_ARRAY)                                             \
  X(CU_MEMORYTYPE_UNIFIED)                                           \
  X(CU_MEM_HANDLE_TYPE_NONE)                                         \
  X(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)                        \
  X(CU_MEM_HANDLE_TYPE_FABRIC)                                       \
  X(CU_MEM_ALLOCATION_TYPE_PINNED)                                   \
  X(CU_MEM_LOCATION_TYPE_DEVICE)                                     \
  X(CU_MEM_LOCATION_TYPE_HOST)                                       \
  X(CU_MEM_LOCATION_TYPE_HOST_NUMA)                                  \
  X(CU_MEM_ACCESS_FLAGS_PROT_NONE)                                   \
  X(CU_MEM_ACCESS_FLAGS_PROT_READ)                                   \
  X(CU_MEM_ACCESS_FLAGS_PROT_READWRITE)                              \
  X(CU_MEM_ALLOC_GRANULARITY_MINIMUM)                                \
  X(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)                            \
  X(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD)                             \
  X(CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)                              \
  X(CU_MEM_ATTACH_GLOBAL)                                            \
  X(CU_STREAM_NON_BLOCKING)                                          \
  X(CU_EVENT_DISABLE_TIMING)                                         \
  X(CU_STREAM_WAIT_VALUE_GEQ)                                        \
  X(CU_STREAM_WAIT_VALUE_EQ)                                         \
  X(CU_STREAM_WRITE_VALUE_DEFAULT)                                   \
  X(CU_STREAM_CAPTURE_STATUS_NONE)                                   \
  X(CU_STREAM_CAPTURE_STATUS_ACTIVE)                                 \
  X(CU_STREAM_CAPTURE_STATUS_INVALIDATED)                            \
  X(CU_STREAM_CAPTURE_MODE_GLOBAL)                                   \
  X(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)                             \
  X(CU_STREAM_CAPTURE_MODE_RELAXED)

#define KVXFER_SAME_VALUE(name) \
  static_assert(static_cast<long long>(ours::name) == static_cast<long long>(::name), #name);
KVXFER_CUDA_CONSTANTS(KVXFER_SAME_VALUE)
// Macros there.
static_assert(kPortable == CU_MEMHOSTREGISTER_PORTABLE);
static_assert(kDeviceMap == CU_MEMHOSTREGISTER_DEVICEMAP);

#define KVXFER_SAME_LAYOUT(type)                                \
  static_assert(sizeof(ours::type) == sizeof(::type), #type);   \
  static_assert(alignof(ours::type) == alignof(::type), #type); \
  static_assert(std::is_trivially_copyable_v<ours::type>, #type);
#define KVXFER_SAME_MEMBER(type, member)                                                      \
  static_assert(offsetof(ours::type, member) == offsetof(::type, member), #type "." #member); \
  static_assert(sizeof(ours::type::member) == sizeof(::type::member), #type "." #member);

KVXFER_SAME_LAYOUT(CUdevice)
KVXFER_SAME_LAYOUT(CUdeviceptr)
KVXFER_SAME_LAYOUT(CUmemGenericAllocationHandle)
KVXFER_SAME_LAYOUT(CUuuid)
KVXFER_SAME_LAYOUT(CUipcMemHandle)
KVXFER_SAME_LAYOUT(CUmemFabricHandle)
KVXFER_SAME_LAYOUT(CUmemLocation)
KVXFER_SAME_MEMBER(CUmemLocation, type)
KVXFER_SAME_MEMBER(CUmemLocation, id)
KVXFER_SAME_LAYOUT(CUmemAccessDesc)
KVXFER_SAME_MEMBER(CUmemAccessDesc, location)
KVXFER_SAME_MEMBER(CUmemAccessDesc, flags)
KVXFER_SAME_LAYOUT(CUmemAllocationProp)
KVXFER_SAME_MEMBER(CUmemAllocationProp, type)
KVXFER_SAME_MEMBER(CUmemAllocationProp, requestedHandleTypes)
KVXFER_SAME_MEMBER(CUmemAllocationProp, location)
KVXFER_SAME_MEMBER(CUmemAllocationProp, win32HandleMetaData)
KVXFER_SAME_MEMBER(CUmemAllocationProp, allocFlags)
KVXFER_SAME_MEMBER(CUmemAllocationProp, allocFlags.compressionType)
KVXFER_SAME_MEMBER(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable)
KVXFER_SAME_MEMBER(CUmemAllocationProp, allocFlags.usage)
KVXFER_SAME_MEMBER(CUmemAllocationProp, allocFlags.reserved)

// The function of that very name: <cuda.h> makes some names macros for newer versions.
#define KVXFER_TEXT_OF(name) #name
#define KVXFER_TEXT(name) KVXFER_TEXT_OF(name)
#define KVXFER_SAME_FUNCTION(name, parameters)                                              \
  static_assert(std::string_view(#name) == KVXFER_TEXT(name), "another version of " #name); \
  static_assert(Alike<decltype(ours::Calls::name), decltype(&::name)>::value, #name);
KVXFER_CUDA_CALLS(KVXFER_SAME_FUNCTION)
KVXFER_CUDA_OPTIONAL_CALLS(KVXFER_SAME_FUNCTION)

// And that it would say what is not so.
struct Other {};
static_assert(!Alike<int, long>::value);  // NOLINT(google-runtime-int)
static_assert(!Alike<int, int*>::value);
static_assert(!Alike<const int*, int*>::value);
static_assert(!Alike<Other, int>::value);
static_assert(!Alike<int (*)(int), int (*)(int, int)>::value);
static_assert(!Alike<int (*)(int), int (*)(size_t)>::value);

}  // namespace
}  // namespace kvxfer::cuda

#endif
