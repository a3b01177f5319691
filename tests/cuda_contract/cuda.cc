#include "tests/cuda_contract/cuda.h"

#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace kvxfer::testing {
namespace {

constexpr size_t kSmall = 4096;

Calls Load(std::string* why) {
  Calls calls;
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *why = std::string("no CUDA driver: ") + dlerror();
    return calls;
  }
#define KVXFER_FIND(name, parameters) \
  calls.name = reinterpret_cast<decltype(calls.name)>(dlsym(library, #name));
  KVXFER_CUDA_CALLS(KVXFER_FIND)
  KVXFER_CUDA_OPTIONAL_CALLS(KVXFER_FIND)
#undef KVXFER_FIND
#define KVXFER_REQUIRE(name, parameters) \
  if (calls.name == nullptr) *why = "the CUDA driver has no " #name;
  KVXFER_CUDA_CALLS(KVXFER_REQUIRE)
#undef KVXFER_REQUIRE
  return calls;
}

struct Loaded {
  Loaded() : calls(Load(&why)) {}
  std::string why{};
  const Calls calls;
};

const Loaded& TheDriver() {
  static const Loaded loaded;
  return loaded;
}

}  // namespace

const Calls& Cuda() {
  const Loaded& loaded = TheDriver();
  if (!loaded.why.empty()) {
    std::fprintf(stderr, "%s\n", loaded.why.c_str());
    std::exit(77);
  }
  return loaded.calls;
}

std::string WhyNoCuda() {
  const Loaded& loaded = TheDriver();
  if (!loaded.why.empty()) return loaded.why;
  const CUresult result = loaded.calls.cuInit(0);
  return result == CUDA_SUCCESS ? "" : "no GPU to test: cuInit gives " + NameOf(result);
}

bool IsStandIn() { return cuda_driver::FindHooks() != nullptr; }

std::string NameOf(CUresult result) {
  const char* name = nullptr;
  Cuda().cuGetErrorName(result, &name);
  return name == nullptr ? "error " + std::to_string(result) : name;
}

::testing::AssertionResult Gives(CUresult wanted, CUresult result) {
  if (wanted == result) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "wanted " << NameOf(wanted) << ", got " << NameOf(result);
}

int Attribute(CUdevice_attribute attribute, int device) {
  int value = 0;
  const CUresult result = Cuda().cuDeviceGetAttribute(&value, attribute, device);
  EXPECT_TRUE(Gives(CUDA_SUCCESS, result)) << "attribute " << attribute;
  return value;
}

int DeviceCount() {
  int count = 0;
  Cuda().cuDeviceGetCount(&count);
  return count;
}

Current::Current(int device) : device_(device) {
  EXPECT_CUDA(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context_, device));
  EXPECT_CUDA(CUDA_SUCCESS, cuCtxPushCurrent_v2(context_));
}
Current::~Current() {
  CUcontext popped = nullptr;
  EXPECT_CUDA(CUDA_SUCCESS, cuCtxPopCurrent_v2(&popped));
  EXPECT_EQ(popped, context_);
  EXPECT_CUDA(CUDA_SUCCESS, cuDevicePrimaryCtxRelease_v2(device_));
}

Memory::Memory(size_t bytes) { EXPECT_CUDA(CUDA_SUCCESS, cuMemAlloc_v2(&at_, bytes)); }
Memory::~Memory() {
  if (at_ != 0) Free();
}
void Memory::Free() {
  EXPECT_CUDA(CUDA_SUCCESS, cuMemFree_v2(at_));
  at_ = 0;
}

OwnStream::OwnStream() {
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0));
}
OwnStream::~OwnStream() { EXPECT_CUDA(CUDA_SUCCESS, cuStreamDestroy_v2(stream_)); }

OwnEvent::OwnEvent() { EXPECT_CUDA(CUDA_SUCCESS, cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING)); }
OwnEvent::~OwnEvent() { EXPECT_CUDA(CUDA_SUCCESS, cuEventDestroy_v2(event_)); }

PinnedMemory::PinnedMemory(size_t bytes)
    : data_(static_cast<std::byte*>(std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096))) {
  constexpr unsigned kFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP;
  EXPECT_CUDA(CUDA_SUCCESS, cuMemHostRegister_v2(data_, bytes, kFlags));
}
PinnedMemory::~PinnedMemory() {
  EXPECT_CUDA(CUDA_SUCCESS, cuMemHostUnregister(data_));
  std::free(data_);
}

CUmemAllocationProp PropOf(CUmemAllocationHandleType handles, int device) {
  CUmemAllocationProp prop{};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = handles;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  prop.allocFlags.gpuDirectRDMACapable =
      Attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED, device) != 0 ? 1 : 0;
  return prop;
}

Virtual::Virtual(size_t chunks, CUmemAllocationHandleType handles, bool access) {
  const CUmemAllocationProp prop = PropOf(handles);
  EXPECT_CUDA(CUDA_SUCCESS,
              cuMemGetAllocationGranularity(&chunk_, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
  EXPECT_CUDA(CUDA_SUCCESS, cuMemAddressReserve(&at_, chunks * chunk_, 0, 0, 0));
  for (size_t i = 0; i < chunks; ++i) {
    CUmemGenericAllocationHandle handle = 0;
    EXPECT_CUDA(CUDA_SUCCESS, cuMemCreate(&handle, chunk_, &prop, 0));
    EXPECT_CUDA(CUDA_SUCCESS, cuMemMap(at_ + i * chunk_, chunk_, 0, handle, 0));
    handles_.push_back(handle);
  }
  if (!access) return;
  const CUmemAccessDesc all = {.location = prop.location,
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_CUDA(CUDA_SUCCESS, cuMemSetAccess(at_, bytes(), &all, 1));
}
Virtual::~Virtual() {
  for (size_t i = 0; i < handles_.size(); ++i) {
    EXPECT_CUDA(CUDA_SUCCESS, cuMemUnmap(at_ + i * chunk_, chunk_));
    EXPECT_CUDA(CUDA_SUCCESS, cuMemRelease(handles_[i]));
  }
  EXPECT_CUDA(CUDA_SUCCESS, cuMemAddressFree(at_, bytes()));
}

std::vector<unsigned char> SeedBytes(size_t bytes, int seed) {
  std::vector<unsigned char> out(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    out[i] = static_cast<unsigned char>((i * 31 + i / 251 + static_cast<size_t>(seed) * 77) & 0xff);
  }
  return out;
}

void FillDevice(CUdeviceptr at, size_t bytes, int seed) {
  const std::vector<unsigned char> content = SeedBytes(bytes, seed);
  EXPECT_CUDA(CUDA_SUCCESS, cuMemcpyHtoD_v2(at, content.data(), bytes));
}

::testing::AssertionResult HoldsSeed(CUdeviceptr at, size_t bytes, int seed) {
  std::vector<unsigned char> content(bytes);
  const CUresult result = Cuda().cuMemcpyDtoH_v2(content.data(), at, bytes);
  if (result != CUDA_SUCCESS) return Gives(CUDA_SUCCESS, result);
  const std::vector<unsigned char> wanted = SeedBytes(bytes, seed);
  for (size_t i = 0; i < bytes; ++i) {
    if (content[i] == wanted[i]) continue;
    return ::testing::AssertionFailure() << "byte " << i << " is " << int{content[i]};
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult StillWorks() {
  const Memory memory(kSmall);
  FillDevice(memory.at(), kSmall, 99);
  return HoldsSeed(memory.at(), kSmall, 99);
}

}  // namespace kvxfer::testing
