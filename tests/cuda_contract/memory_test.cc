// Kinds of memory, what is known of them, copies and their bounds, pinned host memory.
#include <sys/mman.h>

#include <cstring>
#include <thread>

#include "tests/cuda_contract/cuda.h"

namespace kvxfer::testing {
namespace {

constexpr size_t kMiB = size_t{1} << 20;

class CudaMemoryContract : public ::testing::Test {
 protected:
  const Current current_;
};

template <typename Value>
Value Ask(CUpointer_attribute attribute, CUdeviceptr at) {
  Value value{};
  EXPECT_TRUE(Gives(CUDA_SUCCESS, PointerAttribute(attribute, at, &value)))
      << "attribute " << attribute;
  return value;
}

TEST_F(CudaMemoryContract, DeviceMemoryIsKnown) {
  const Memory memory(3 * kMiB);
  const CUdeviceptr inside = memory.at() + kMiB + 123;
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside),
            unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, inside), 0u);
  EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, inside), 0);
  EXPECT_EQ(Ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, inside), current_.context());
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_DEVICE_POINTER, inside), inside);
  EXPECT_EQ(Ask<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, inside), nullptr);
  EXPECT_EQ(Ask<CUdeviceptr>(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, inside), memory.at());
  EXPECT_EQ(Ask<size_t>(CU_POINTER_ATTRIBUTE_RANGE_SIZE, inside), 3 * kMiB);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MAPPED, inside), 1u);
  EXPECT_EQ(Ask<uint64_t>(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, inside), 0u);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, inside) != 0,
            Attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0);
  void* host = nullptr;
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_HOST_POINTER, inside, &host),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CudaMemoryContract, QuestionsAboutPointersNeedNoContext) {
  const Memory memory(4096);
  std::thread([&] {
    EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, memory.at()),
              unsigned{CU_MEMORYTYPE_DEVICE});
    EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, memory.at()), 0);
  }).join();
}

TEST_F(CudaMemoryContract, PlainHostMemoryIsUnknownAndThatIsNoLastingError) {
  int host = 0;
  unsigned type = 0;
  uint64_t id = 0;
  const auto at = reinterpret_cast<CUdeviceptr>(&host);
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, &type),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_BUFFER_ID, at, &id), CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  EXPECT_NE(Cuda().cuMemGetAddressRange_v2(&base, &bytes, at), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaMemoryContract, AnAllocationsRangeIsKnownFromWithin) {
  const Memory memory(kMiB + 512);
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ASSERT_CUDA(cuMemGetAddressRange_v2(&base, &bytes, memory.at() + kMiB + 511));
  EXPECT_EQ(base, memory.at());
  EXPECT_EQ(bytes, kMiB + 512);
  ASSERT_CUDA(cuMemGetAddressRange_v2(nullptr, &bytes, memory.at()));
  ASSERT_CUDA(cuMemGetAddressRange_v2(&base, nullptr, memory.at()));
}

TEST_F(CudaMemoryContract, FreedMemoryIsUnknown) {
  Memory memory(4 * kMiB);
  const CUdeviceptr at = memory.at();
  memory.Free();
  unsigned type = 0;
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, &type),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(at));
  CUipcMemHandle handle{};
  EXPECT_NE(Cuda().cuIpcGetMemHandle(&handle, at), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaMemoryContract, ABufferIdIsNeverGivenTwice) {
  std::vector<uint64_t> ids;
  for (int i = 0; i < 8; ++i) {
    const Memory memory(4096);
    ids.push_back(Ask<uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, memory.at()));
    EXPECT_EQ(Ask<uint64_t>(CU_POINTER_ATTRIBUTE_BUFFER_ID, memory.at() + 100), ids.back());
    for (int k = 0; k < i; ++k) EXPECT_NE(ids[static_cast<size_t>(k)], ids.back());
  }
}

TEST_F(CudaMemoryContract, OnlyWhatIsOneCanBeFreed) {
  const Memory memory(kMiB);
  CUdeviceptr at = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(memory.at() + 256));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&at, 0));
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&at, size_t{1} << 50));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaMemoryContract, SyncMemopsCanBeSetOnDeviceMemory) {
  const Memory memory(kMiB);
  const unsigned on = 1;
  ASSERT_CUDA(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory.at()));
  EXPECT_NE(Ask<unsigned>(CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, memory.at()) & 0xff, 0u);
}

TEST_F(CudaMemoryContract, ManagedMemoryIsDeviceMemoryThatTheHostTouches) {
  CUdeviceptr at = 0;
  ASSERT_CUDA(cuMemAllocManaged(&at, 64 << 10, CU_MEM_ATTACH_GLOBAL));
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, at) & 0xff, 1u);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), unsigned{CU_MEMORYTYPE_DEVICE});
  FillDevice(at, 64 << 10, 3);
  const std::vector<unsigned char> wanted = SeedBytes(64 << 10, 3);
  EXPECT_EQ(std::memcmp(reinterpret_cast<void*>(at), wanted.data(), wanted.size()), 0);
  CUipcMemHandle handle{};
  EXPECT_NE(Cuda().cuIpcGetMemHandle(&handle, at), CUDA_SUCCESS);
  EXPECT_CUDA(CUDA_SUCCESS, cuMemFree_v2(at));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaMemoryContract, PoolMemoryHasAPoolNoContextAndNoIpc) {
  const OwnStream stream;
  CUdeviceptr at = 0;
  ASSERT_CUDA(cuMemAllocAsync(&at, 2 * kMiB, stream.get()));
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at), unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_NE(Ask<CUmemoryPool>(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, at), nullptr);
  EXPECT_EQ(Ask<CUcontext>(CU_POINTER_ATTRIBUTE_CONTEXT, at), nullptr);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at), 0u);
  CUipcMemHandle handle{};
  EXPECT_NE(Cuda().cuIpcGetMemHandle(&handle, at), CUDA_SUCCESS);
  FillDevice(at, 2 * kMiB, 4);
  EXPECT_TRUE(HoldsSeed(at, 2 * kMiB, 4));
  ASSERT_CUDA(cuMemFreeAsync(at, stream.get()));
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaMemoryContract, CopiesBeyondAnAllocationAreRefused) {
  const Memory memory(4 * kMiB);
  std::vector<std::byte> host(8 * kMiB);
  const OwnStream stream;
  const PinnedMemory pinned(8 * kMiB);
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(memory.at(), host.data(), 8 * kMiB));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(host.data(), memory.at() + 1, 4 * kMiB));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              cuMemcpyAsync(pinned.at(), memory.at() + 1, 4 * kMiB, stream.get()));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(memory.at(), 1, 4 * kMiB + 1));
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(stream.get()));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaMemoryContract, EveryWayOfCopyingMovesTheBytes) {
  constexpr size_t kBytes = 100'003;
  const Memory a(kBytes);
  const Memory b(kBytes);
  const PinnedMemory pinned(kBytes);
  const OwnStream stream;
  const std::vector<unsigned char> content = SeedBytes(kBytes, 5);
  std::memcpy(pinned.data(), content.data(), kBytes);
  ASSERT_CUDA(cuMemcpyAsync(a.at(), pinned.at(), kBytes, stream.get()));
  ASSERT_CUDA(cuMemcpyAsync(b.at(), a.at(), kBytes, stream.get()));
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_TRUE(HoldsSeed(b.at(), kBytes, 5));
  ASSERT_CUDA(cuMemsetD8_v2(a.at(), 0x5a, kBytes));
  ASSERT_CUDA(cuMemcpyAsync(pinned.at(), a.at(), kBytes, stream.get()));
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  for (size_t i = 0; i < kBytes; ++i) ASSERT_EQ(pinned.data()[i], std::byte{0x5a});
}

TEST_F(CudaMemoryContract, CopiesBetweenDevicesNeedNoPeerAccess) {
  if (DeviceCount() < 2) GTEST_SKIP() << "one GPU";
  constexpr size_t kBytes = 64 << 10;
  const Memory here(kBytes);
  FillDevice(here.at(), kBytes, 6);
  const Current second(1);
  const Memory there(kBytes);
  const OwnStream stream;
  ASSERT_CUDA(cuMemcpyAsync(there.at(), here.at(), kBytes, stream.get()));
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_TRUE(HoldsSeed(there.at(), kBytes, 6));
  EXPECT_EQ(Ask<int>(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, there.at()), 1);
}

TEST_F(CudaMemoryContract, ACopyIntoPageableMemoryIsOverWhenTheCallIs) {
  constexpr size_t kBytes = 300'000;
  const Memory memory(kBytes);
  FillDevice(memory.at(), kBytes, 7);
  const OwnStream stream;
  std::vector<unsigned char> host(kBytes);
  ASSERT_CUDA(
      cuMemcpyAsync(reinterpret_cast<CUdeviceptr>(host.data()), memory.at(), kBytes, stream.get()));
  EXPECT_EQ(host, SeedBytes(kBytes, 7));
  // And what is copied out of it may be changed then.
  const std::vector<unsigned char> content = SeedBytes(kBytes, 8);
  host = content;
  ASSERT_CUDA(
      cuMemcpyAsync(memory.at(), reinterpret_cast<CUdeviceptr>(host.data()), kBytes, stream.get()));
  std::memset(host.data(), 0, kBytes);
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_TRUE(HoldsSeed(memory.at(), kBytes, 8));
}

TEST_F(CudaMemoryContract, PinnedMemoryIsHostMemoryWithADeviceAddress) {
  const PinnedMemory pinned(64 << 10);
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, pinned.at() + 100),
            unsigned{CU_MEMORYTYPE_HOST});
  CUdeviceptr at = 0;
  ASSERT_CUDA(cuMemHostGetDevicePointer_v2(&at, pinned.data(), 0));
  EXPECT_EQ(at, pinned.at());
  EXPECT_EQ(Ask<unsigned>(CU_POINTER_ATTRIBUTE_IS_MANAGED, pinned.at()) & 0xff, 0u);
}

TEST_F(CudaMemoryContract, PinningTwiceAndUnpinningWhatIsNotAreErrors) {
  const PinnedMemory pinned(64 << 10);
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
              cuMemHostRegister_v2(pinned.data(), 64 << 10, 0));
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
              cuMemHostRegister_v2(pinned.data() + 4096, 8192, 0));
  std::vector<std::byte> plain(64 << 10);
  EXPECT_CUDA(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(plain.data()));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaMemoryContract, WhatIsNotMappedCannotBePinned) {
  constexpr size_t kBytes = 64 << 10;
  void* const hole = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(hole, MAP_FAILED);
  EXPECT_NE(Cuda().cuMemHostRegister_v2(hole, kBytes, 0), CUDA_SUCCESS);
  munmap(hole, kBytes);
  EXPECT_NE(Cuda().cuMemHostRegister_v2(hole, kBytes, 0), CUDA_SUCCESS);
  EXPECT_NE(Cuda().cuMemHostRegister_v2(nullptr, kBytes, 0), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaMemoryContract, FlushingWritesOfNicsWorksWhereItIsSaidTo) {
  const int options = Attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
  if ((options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0) GTEST_SKIP() << "it is not";
  for (const auto scope :
       {CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES}) {
    EXPECT_CUDA(CUDA_SUCCESS, cuFlushGPUDirectRDMAWrites(
                                  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX, scope));
  }
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE,
              cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                         CUflushGPUDirectRDMAWritesScope{77}));
}

TEST_F(CudaMemoryContract, GarbageIsNoModule) {
  const std::vector<uint64_t> zeros(64);
  CUmodule module = nullptr;
  EXPECT_CUDA(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&module, zeros.data()));
  EXPECT_TRUE(StillWorks());
}

}  // namespace
}  // namespace kvxfer::testing
