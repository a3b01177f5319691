// Memory of cuMemCreate, as PyTorch's expandable segments are made of, and dmabufs.
#include <fcntl.h>
#include <unistd.h>

#include "tests/cuda_contract/child.h"
#include "tests/cuda_contract/cuda.h"

namespace kvxfer::testing {
namespace {

class CudaVirtualContract : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Attribute(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) == 0) {
      GTEST_SKIP() << "the GPU has no virtual memory management";
    }
  }
  const Current current_;
};

TEST_F(CudaVirtualContract, ARangeIsOneSegmentAndTheReservationIsKnown) {
  const Virtual memory(3);
  const size_t chunk = memory.chunk_bytes();
  CUdeviceptr base = 0;
  size_t bytes = 0;
  ASSERT_CUDA(cuMemGetAddressRange_v2(&base, &bytes, memory.at() + chunk + 77));
  EXPECT_EQ(base, memory.at() + chunk);
  EXPECT_EQ(bytes, chunk);
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, memory.at() + chunk, &base),
            CUDA_SUCCESS);
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_RANGE_SIZE, memory.at() + chunk, &bytes),
            CUDA_SUCCESS);
  EXPECT_EQ(base, memory.at());
  EXPECT_EQ(bytes, 3 * chunk);
}

TEST_F(CudaVirtualContract, ASegmentIsDeviceMemoryWithoutContextOrIpc) {
  const Virtual memory(1);
  const CUdeviceptr at = memory.at() + 4096;
  unsigned type = 0;
  int device = -1;
  unsigned legacy = 77;
  auto context = current_.context();
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, &type), CUDA_SUCCESS);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at, &device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_CONTEXT, at, &context), CUDA_SUCCESS);
  EXPECT_EQ(context, nullptr);
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at, &legacy),
            CUDA_SUCCESS);
  EXPECT_EQ(legacy, 0u);
  CUipcMemHandle handle{};
  EXPECT_NE(Cuda().cuIpcGetMemHandle(&handle, at), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaVirtualContract, SegmentsSideBySideAreCopiedAsOne) {
  const Virtual memory(2);
  const CUdeviceptr across = memory.at() + memory.chunk_bytes() - 5000;
  FillDevice(across, 10'000, 11);
  EXPECT_TRUE(HoldsSeed(across, 10'000, 11));
}

TEST_F(CudaVirtualContract, WhatIsReservedAndNotMappedIsNoMemory) {
  const size_t chunk = Virtual(1).chunk_bytes();
  CUdeviceptr at = 0;
  ASSERT_CUDA(cuMemAddressReserve(&at, 2 * chunk, 0, 0, 0));
  unsigned type = 0;
  EXPECT_NE(PointerAttribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, &type), CUDA_SUCCESS);
  EXPECT_NE(Cuda().cuMemsetD8_v2(at, 1, 4096), CUDA_SUCCESS);
  ASSERT_CUDA(cuMemAddressFree(at, 2 * chunk));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaVirtualContract, AHandleIsFoundByAddress) {
  const Virtual memory(2);
  CUmemGenericAllocationHandle handle = 0;
  void* const at = reinterpret_cast<void*>(memory.at() + memory.chunk_bytes() + 99);
  ASSERT_CUDA(cuMemRetainAllocationHandle(&handle, at));
  EXPECT_EQ(handle, memory.handle(1));
  CUmemAllocationProp prop{};
  ASSERT_CUDA(cuMemGetAllocationPropertiesFromHandle(&prop, handle));
  EXPECT_EQ(prop.location.type, CU_MEM_LOCATION_TYPE_DEVICE);
  EXPECT_EQ(prop.location.id, 0);
  ASSERT_CUDA(cuMemRelease(handle));
  const Memory plain(4096);
  EXPECT_NE(Cuda().cuMemRetainAllocationHandle(&handle, reinterpret_cast<void*>(plain.at())),
            CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaVirtualContract, MappingsAreWholeAndAligned) {
  const Virtual memory(1);
  const size_t chunk = memory.chunk_bytes();
  const CUmemAllocationProp prop = PropOf(CU_MEM_HANDLE_TYPE_NONE);
  CUmemGenericAllocationHandle handle = 0;
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&handle, chunk / 2, &prop, 0));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(memory.at(), chunk / 2));
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuMemMap(memory.at(), chunk, 0, memory.handle(0), 0));
  CUmemAllocationProp nowhere = prop;
  nowhere.location.id = DeviceCount();
  EXPECT_NE(Cuda().cuMemCreate(&handle, chunk, &nowhere, 0), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

KVXFER_CONTRACT_CHILD(ImportsAndAdds) {
  if (!WhyNoCuda().empty()) return 97;
  const Current current;
  const auto type = socket->Receive<CUmemAllocationHandleType>();
  const auto chunk = socket->Receive<size_t>();
  CUmemGenericAllocationHandle handle = 0;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
    auto name = socket->Receive<CUmemFabricHandle>();
    EXPECT_CUDA(CUDA_SUCCESS, cuMemImportFromShareableHandle(&handle, &name, type));
  } else {
    const int fd = socket->ReceiveDescriptor();
    EXPECT_CUDA(CUDA_SUCCESS, cuMemImportFromShareableHandle(
                                  &handle, reinterpret_cast<void*>(intptr_t{fd}), type));
    close(fd);
  }
  CUdeviceptr at = 0;
  EXPECT_CUDA(CUDA_SUCCESS, cuMemAddressReserve(&at, chunk, 0, 0, 0));
  EXPECT_CUDA(CUDA_SUCCESS, cuMemMap(at, chunk, 0, handle, 0));
  const CUmemAccessDesc all = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                               .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  EXPECT_CUDA(CUDA_SUCCESS, cuMemSetAccess(at, chunk, &all, 1));
  EXPECT_CUDA(CUDA_SUCCESS, cuMemRelease(handle));
  EXPECT_TRUE(HoldsSeed(at, 10'000, 12));
  FillDevice(at + 10'000, 10'000, 13);
  socket->Send(1);
  socket->Receive<int>();  // the exporter has let it go
  EXPECT_TRUE(HoldsSeed(at, 10'000, 12));
  EXPECT_CUDA(CUDA_SUCCESS, cuMemUnmap(at, chunk));
  EXPECT_CUDA(CUDA_SUCCESS, cuMemAddressFree(at, chunk));
  return 0;
}

void ShareWithChild(CUmemAllocationHandleType type) {
  Child child("ImportsAndAdds");
  {
    const Virtual memory(1, type);
    FillDevice(memory.at(), 10'000, 12);
    child.socket().Send(type);
    child.socket().Send(memory.chunk_bytes());
    if (type == CU_MEM_HANDLE_TYPE_FABRIC) {
      CUmemFabricHandle name{};
      ASSERT_CUDA(cuMemExportToShareableHandle(&name, memory.handle(0), type, 0));
      child.socket().Send(name);
    } else {
      int fd = -1;
      ASSERT_CUDA(cuMemExportToShareableHandle(&fd, memory.handle(0), type, 0));
      child.socket().SendDescriptor(fd);
      close(fd);
    }
    ASSERT_EQ(child.socket().Receive<int>(), 1);
    EXPECT_TRUE(HoldsSeed(memory.at() + 10'000, 10'000, 13));
  }
  child.socket().Send(1);
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(CudaVirtualContract, ADescriptorIsTheMemoryInAnotherProcess) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED) == 0) {
    GTEST_SKIP() << "no descriptors";
  }
  ShareWithChild(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
}

TEST_F(CudaVirtualContract, AFabricHandleIsTheMemoryInAnotherProcess) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED) == 0) {
    GTEST_SKIP() << "no fabric handles";
  }
  const CUmemAllocationProp prop = PropOf(CU_MEM_HANDLE_TYPE_FABRIC);
  CUmemGenericAllocationHandle handle = 0;
  const CUresult made = Cuda().cuMemCreate(&handle, size_t{2} << 20, &prop, 0);
  if (made != CUDA_SUCCESS) GTEST_SKIP() << "no IMEX channel? " << NameOf(made);
  ASSERT_CUDA(cuMemRelease(handle));
  ShareWithChild(CU_MEM_HANDLE_TYPE_FABRIC);
}

TEST_F(CudaVirtualContract, WhatWasNotMadeForItIsNotExported) {
  const Virtual memory(1);
  int fd = -1;
  EXPECT_NE(Cuda().cuMemExportToShareableHandle(&fd, memory.handle(0),
                                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
            CUDA_SUCCESS);
  CUmemGenericAllocationHandle handle = 0;
  const int other = open("/dev/null", O_RDWR);
  EXPECT_NE(Cuda().cuMemImportFromShareableHandle(&handle, reinterpret_cast<void*>(intptr_t{other}),
                                                  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
            CUDA_SUCCESS);
  close(other);
  EXPECT_TRUE(StillWorks());
}

class CudaDmabufContract : public CudaVirtualContract {
 protected:
  void SetUp() override {
    CudaVirtualContract::SetUp();
    if (Cuda().cuMemGetHandleForAddressRange == nullptr ||
        Attribute(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) == 0) {
      GTEST_SKIP() << "no dmabuf";
    }
  }
  // The result, and in `fd` the descriptor.
  static CUresult Export(CUdeviceptr at, size_t bytes, int* fd) {
    return Cuda().cuMemGetHandleForAddressRange(fd, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
                                                0);
  }
};

TEST_F(CudaDmabufContract, WholePagesOfAnAllocationAreExported) {
  const Memory memory(size_t{4} << 20);
  int fd = -1;
  ASSERT_TRUE(Gives(CUDA_SUCCESS, Export(memory.at() + 8192, 16384, &fd)));
  EXPECT_GE(fd, 0);
  EXPECT_EQ(lseek(fd, 0, SEEK_END), 16384);
  EXPECT_EQ(close(fd), 0);
  EXPECT_EQ(Export(memory.at() + 100, 4096, &fd), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(Export(memory.at(), 4097, &fd), CUDA_ERROR_INVALID_VALUE);
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaDmabufContract, ASmallAllocationsPagesAreExported) {
  const Memory memory(10'000);
  const CUdeviceptr begin = memory.at() / 4096 * 4096;
  const CUdeviceptr end = (memory.at() + 10'000 + 4095) / 4096 * 4096;
  int fd = -1;
  ASSERT_TRUE(Gives(CUDA_SUCCESS, Export(begin, end - begin, &fd)));
  EXPECT_EQ(close(fd), 0);
}

TEST_F(CudaDmabufContract, SegmentsSideBySideAreExportedAsOne) {
  if (Attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) == 0) GTEST_SKIP() << "no GPUDirect";
  const Virtual memory(2);
  int fd = -1;
  const CUdeviceptr across = memory.at() + memory.chunk_bytes() - 4096;
  ASSERT_TRUE(Gives(CUDA_SUCCESS, Export(across, 8192, &fd)));
  EXPECT_EQ(close(fd), 0);
}

TEST_F(CudaDmabufContract, HostMemoryIsRefused) {
  const PinnedMemory pinned(64 << 10);
  int fd = -1;
  EXPECT_NE(Export(pinned.at(), 4096, &fd), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

}  // namespace
}  // namespace kvxfer::testing
