// Memory of cuMemAlloc in two processes, and the death of either.
#include "tests/cuda_contract/child.h"
#include "tests/cuda_contract/cuda.h"

namespace kvxfer::testing {
namespace {

constexpr size_t kBytes = size_t{3} << 20;

class CudaIpcContract : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Attribute(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED) == 0) GTEST_SKIP() << "no IPC";
  }
  static CUipcMemHandle HandleOf(CUdeviceptr at) {
    CUipcMemHandle handle{};
    EXPECT_CUDA(CUDA_SUCCESS, cuIpcGetMemHandle(&handle, at));
    return handle;
  }
  const Current current_;
};

CUresult Open(const CUipcMemHandle& handle, CUdeviceptr* at) {
  return Cuda().cuIpcOpenMemHandle_v2(at, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
}

// Opens what it is sent, twice; reads, writes, and waits to be told to close.
KVXFER_CONTRACT_CHILD(OpensAndAdds) {
  if (!WhyNoCuda().empty()) return 97;
  const Current current;
  const auto handle = socket->Receive<CUipcMemHandle>();
  CUdeviceptr at = 0;
  CUdeviceptr again = 0;
  EXPECT_TRUE(Gives(CUDA_SUCCESS, Open(handle, &at)));
  EXPECT_TRUE(Gives(CUDA_SUCCESS, Open(handle, &again)));
  EXPECT_EQ(at, again);
  EXPECT_CUDA(CUDA_SUCCESS, cuIpcCloseMemHandle(at));
  EXPECT_TRUE(HoldsSeed(at, 100'000, 21));
  FillDevice(at + 100'000, 100'000, 22);
  unsigned type = 0;
  int device = -1;
  CUdeviceptr base = 0;
  size_t bytes = 0;
  CUipcMemHandle second{};
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at, &type), CUDA_SUCCESS);
  EXPECT_EQ(type, unsigned{CU_MEMORYTYPE_DEVICE});
  EXPECT_EQ(PointerAttribute(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at, &device), CUDA_SUCCESS);
  EXPECT_EQ(device, 0);
  EXPECT_CUDA(CUDA_SUCCESS, cuMemGetAddressRange_v2(&base, &bytes, at + 5));
  EXPECT_LE(base, at);
  EXPECT_GE(base + bytes, at + kBytes);
  EXPECT_NE(Cuda().cuMemFree_v2(at), CUDA_SUCCESS);
  EXPECT_NE(Cuda().cuIpcGetMemHandle(&second, at), CUDA_SUCCESS);
  socket->Send(1);
  if (socket->Receive<int>() == 2) return 0;  // ends with it open
  EXPECT_TRUE(HoldsSeed(at, 100'000, 21));
  EXPECT_CUDA(CUDA_SUCCESS, cuIpcCloseMemHandle(at));
  EXPECT_NE(Cuda().cuIpcCloseMemHandle(at), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
  return 0;
}

TEST_F(CudaIpcContract, AHandleIsTheMemoryInAnotherProcess) {
  const Memory memory(kBytes);
  FillDevice(memory.at(), 100'000, 21);
  Child child("OpensAndAdds");
  child.socket().Send(HandleOf(memory.at()));
  ASSERT_EQ(child.socket().Receive<int>(), 1);
  EXPECT_TRUE(HoldsSeed(memory.at() + 100'000, 100'000, 22));
  child.socket().Send(1);
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(CudaIpcContract, AHandleOfTheMiddleIsOfTheWhole) {
  const Memory memory(kBytes);
  FillDevice(memory.at(), 100'000, 21);
  Child child("OpensAndAdds");
  child.socket().Send(HandleOf(memory.at() + 54321));
  ASSERT_EQ(child.socket().Receive<int>(), 1);
  EXPECT_TRUE(HoldsSeed(memory.at() + 100'000, 100'000, 22));
  child.socket().Send(1);
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(CudaIpcContract, AnImporterThatIsKilledLeavesTheMemoryAlone) {
  const Memory memory(kBytes);
  FillDevice(memory.at(), 100'000, 21);
  for (const bool killed : {true, false}) {
    Child child("OpensAndAdds");
    child.socket().Send(HandleOf(memory.at()));
    ASSERT_EQ(child.socket().Receive<int>(), 1);
    if (killed) {
      child.Kill();
    } else {
      child.socket().Send(2);
      EXPECT_EQ(child.Wait(), 0);
    }
    EXPECT_TRUE(HoldsSeed(memory.at() + 100'000, 100'000, 22));
  }
}

TEST_F(CudaIpcContract, TheExporterItselfCannotOpenIt) {
  const Memory memory(kBytes);
  CUdeviceptr at = 0;
  EXPECT_TRUE(Gives(CUDA_ERROR_INVALID_CONTEXT, Open(HandleOf(memory.at()), &at)));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaIpcContract, OnlyWhatWasOpenedCanBeClosed) {
  const Memory memory(kBytes);
  EXPECT_NE(Cuda().cuIpcCloseMemHandle(memory.at()), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

KVXFER_CONTRACT_CHILD(Exports) {
  if (!WhyNoCuda().empty()) return 97;
  const Current current;
  Memory memory(kBytes);
  FillDevice(memory.at(), 100'000, 23);
  CUipcMemHandle handle{};
  EXPECT_CUDA(CUDA_SUCCESS, cuIpcGetMemHandle(&handle, memory.at()));
  socket->Send(handle);
  socket->Receive<int>();
  memory.Free();
  socket->Send(1);
  socket->Receive<int>();
  return 0;
}

TEST_F(CudaIpcContract, AnExporterThatIsKilledLeavesItToTheImporter) {
  Child child("Exports");
  const auto handle = child.socket().Receive<CUipcMemHandle>();
  CUdeviceptr at = 0;
  ASSERT_TRUE(Gives(CUDA_SUCCESS, Open(handle, &at)));
  child.Kill();
  EXPECT_TRUE(HoldsSeed(at, 100'000, 23));
  FillDevice(at, 100'000, 24);
  EXPECT_TRUE(HoldsSeed(at, 100'000, 24));
  EXPECT_CUDA(CUDA_SUCCESS, cuIpcCloseMemHandle(at));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaIpcContract, WhatIsFreedOrDeadCannotBeOpened) {
  Child child("Exports");
  const auto handle = child.socket().Receive<CUipcMemHandle>();
  child.socket().Send(1);
  ASSERT_EQ(child.socket().Receive<int>(), 1);  // freed
  CUdeviceptr at = 0;
  EXPECT_NE(Open(handle, &at), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
  child.Kill();
  EXPECT_NE(Open(handle, &at), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaIpcContract, GarbageIsNoHandle) {
  CUdeviceptr at = 0;
  EXPECT_NE(Open(CUipcMemHandle{}, &at), CUDA_SUCCESS);
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaIpcContract, AnotherDeviceOpensItWhereItIsAPeer) {
  if (DeviceCount() < 2) GTEST_SKIP() << "one GPU";
  Child child("Exports");
  const auto handle = child.socket().Receive<CUipcMemHandle>();
  for (int device = 1; device < DeviceCount(); ++device) {
    int can = 0;
    ASSERT_CUDA(cuDeviceCanAccessPeer(&can, device, 0));
    const Current other(device);
    CUdeviceptr at = 0;
    if (can == 0) {
      EXPECT_NE(Open(handle, &at), CUDA_SUCCESS);
      EXPECT_TRUE(StillWorks());
      continue;
    }
    ASSERT_TRUE(Gives(CUDA_SUCCESS, Open(handle, &at)));
    EXPECT_TRUE(HoldsSeed(at, 100'000, 23));
    EXPECT_CUDA(CUDA_SUCCESS, cuIpcCloseMemHandle(at));
  }
}

}  // namespace
}  // namespace kvxfer::testing
