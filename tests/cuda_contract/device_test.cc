// The driver itself, its devices, and what is current.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <regex>
#include <thread>

#include "tests/cuda_contract/child.h"
#include "tests/cuda_contract/cuda.h"

namespace kvxfer::testing {
namespace {

KVXFER_CONTRACT_CHILD(CallsBeforeInit) {
  int value = 0;
  CUcontext context = nullptr;
  if (Cuda().cuDeviceGetCount(&value) != CUDA_ERROR_NOT_INITIALIZED) return 1;
  if (Cuda().cuCtxGetCurrent(&context) != CUDA_ERROR_NOT_INITIALIZED) return 2;
  if (Cuda().cuDriverGetVersion(&value) != CUDA_SUCCESS || value < 11040) return 3;
  if (Cuda().cuInit(1) != CUDA_ERROR_INVALID_VALUE) return 4;
  if (Cuda().cuInit(0) != CUDA_SUCCESS) return 5;
  return Cuda().cuInit(0) == CUDA_SUCCESS ? 0 : 6;  // again
}

TEST(CudaDriverContract, OnlyTheVersionIsKnownBeforeInit) {
  Child child("CallsBeforeInit");
  EXPECT_EQ(child.Wait(), 0);
}

TEST(CudaDriverContract, ErrorsHaveNames) {
  const char* text = nullptr;
  ASSERT_CUDA(cuGetErrorName(CUDA_ERROR_INVALID_VALUE, &text));
  EXPECT_STREQ(text, "CUDA_ERROR_INVALID_VALUE");
  ASSERT_CUDA(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
  EXPECT_STREQ(text, "out of memory");
  EXPECT_CUDA(CUDA_ERROR_INVALID_VALUE, cuGetErrorName(CUresult{54321}, &text));
}

TEST(CudaDriverContract, AForkedChildHasNoDriver) {
  const Current current;
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    CUdeviceptr at = 0;
    _exit(Cuda().cuMemAlloc_v2(&at, 4096) == CUDA_SUCCESS ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(StillWorks());
}

TEST(CudaDeviceContract, ThereIsNoDeviceBehindTheLast) {
  CUdevice device = -1;
  int value = 0;
  ASSERT_CUDA(cuDeviceGet(&device, 0));
  EXPECT_EQ(device, 0);
  EXPECT_CUDA(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&device, DeviceCount()));
  EXPECT_CUDA(CUDA_ERROR_INVALID_DEVICE,
              cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_INTEGRATED, DeviceCount()));
}

TEST(CudaDeviceContract, ADeviceIsDescribed) {
  char text[64] = "";
  ASSERT_CUDA(cuDeviceGetName(text, sizeof(text), 0));
  EXPECT_GT(std::strlen(text), 0u);
  ASSERT_CUDA(cuDeviceGetPCIBusId(text, sizeof(text), 0));
  EXPECT_TRUE(
      std::regex_match(text, std::regex("[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\\.0")))
      << text;
  size_t bytes = 0;
  ASSERT_CUDA(cuDeviceTotalMem_v2(&bytes, 0));
  EXPECT_GE(bytes, size_t{1} << 30);
  EXPECT_GE(Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT), 1);
  EXPECT_GE(Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR), 5);
  EXPECT_EQ(Attribute(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING), 1);
  const int ordering = Attribute(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
  EXPECT_TRUE(ordering == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE ||
              ordering == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER ||
              ordering == CU_GPU_DIRECT_RDMA_WRITES_ORDERING_ALL_DEVICES)
      << ordering;
}

KVXFER_CONTRACT_CHILD(SendsUuid) {
  if (!WhyNoCuda().empty()) return 97;
  CUuuid uuid{};
  if (Cuda().cuDeviceGetUuid_v2(&uuid, 0) != CUDA_SUCCESS) return 1;
  socket->Send(uuid);
  return 0;
}

TEST(CudaDeviceContract, UuidsAreTheSameInEachProcess) {
  CUuuid own{};
  ASSERT_CUDA(cuDeviceGetUuid_v2(&own, 0));
  Child child("SendsUuid");
  const auto other = child.socket().Receive<CUuuid>();
  EXPECT_EQ(std::memcmp(&own, &other, sizeof(own)), 0);
  EXPECT_EQ(child.Wait(), 0);
  if (DeviceCount() < 2) return;
  CUuuid second{};
  ASSERT_CUDA(cuDeviceGetUuid_v2(&second, 1));
  EXPECT_NE(std::memcmp(&own, &second, sizeof(own)), 0);
}

TEST(CudaDeviceContract, ADeviceIsNoPeerOfItself) {
  int value = -1;
  ASSERT_CUDA(cuDeviceCanAccessPeer(&value, 0, 0));
  EXPECT_EQ(value, 0);
  EXPECT_CUDA(CUDA_ERROR_INVALID_DEVICE,
              cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
  const Current current;
  EXPECT_CUDA(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(current.context(), 0));
}

TEST(CudaDeviceContract, PeerAccessIsEnabledOnceAndOneWay) {
  if (DeviceCount() < 2) GTEST_SKIP() << "one GPU";
  int can = 0;
  int supported = 0;
  ASSERT_CUDA(cuDeviceCanAccessPeer(&can, 0, 1));
  ASSERT_CUDA(cuDeviceGetP2PAttribute(&supported, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
  EXPECT_EQ(can, supported);
  const Current other(1);
  const Current current(0);
  if (can == 0) {
    EXPECT_CUDA(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(other.context(), 0));
    return;
  }
  EXPECT_CUDA(CUDA_SUCCESS, cuCtxEnablePeerAccess(other.context(), 0));
  EXPECT_CUDA(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(other.context(), 0));
  EXPECT_TRUE(StillWorks());
}

TEST(CudaContextContract, APrimaryContextIsOneAndCounted) {
  unsigned flags = 0;
  int active = -1;
  CUcontext first = nullptr;
  CUcontext second = nullptr;
  ASSERT_CUDA(cuDevicePrimaryCtxRetain(&first, 0));
  ASSERT_CUDA(cuDevicePrimaryCtxRetain(&second, 0));
  EXPECT_EQ(first, second);
  EXPECT_CUDA(CUDA_SUCCESS, cuDevicePrimaryCtxRelease_v2(0));
  ASSERT_CUDA(cuDevicePrimaryCtxGetState(0, &flags, &active));
  EXPECT_EQ(active, 1);
  EXPECT_CUDA(CUDA_SUCCESS, cuDevicePrimaryCtxRelease_v2(0));
}

KVXFER_CONTRACT_CHILD(ReleasesTooOften) {
  if (!WhyNoCuda().empty()) return 97;
  unsigned flags = 0;
  int active = -1;
  if (Cuda().cuDevicePrimaryCtxRelease_v2(0) != CUDA_ERROR_INVALID_CONTEXT) return 1;
  if (Cuda().cuDevicePrimaryCtxGetState(0, &flags, &active) != CUDA_SUCCESS || active != 0)
    return 2;
  CUcontext context = nullptr;
  if (Cuda().cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 3;
  if (Cuda().cuDevicePrimaryCtxRelease_v2(0) != CUDA_SUCCESS) return 4;
  return Cuda().cuDevicePrimaryCtxRelease_v2(0) == CUDA_ERROR_INVALID_CONTEXT ? 0 : 5;
}

TEST(CudaContextContract, WhatWasNotRetainedCannotBeReleased) {
  Child child("ReleasesTooOften");
  EXPECT_EQ(child.Wait(), 0);
}

TEST(CudaContextContract, WhatIsCurrentIsAStackOfTheThread) {
  CUcontext now = nullptr;
  std::thread([&] {
    ASSERT_CUDA(cuCtxGetCurrent(&now));
    EXPECT_EQ(now, nullptr);
    const Current outer;
    {
      const Current inner;
      ASSERT_CUDA(cuCtxGetCurrent(&now));
      EXPECT_EQ(now, inner.context());
      std::thread([] {
        CUcontext other = nullptr;
        ASSERT_CUDA(cuCtxGetCurrent(&other));
        EXPECT_EQ(other, nullptr);
      }).join();
    }
    ASSERT_CUDA(cuCtxGetCurrent(&now));
    EXPECT_EQ(now, outer.context());
    CUdevice device = -1;
    ASSERT_CUDA(cuCtxGetDevice(&device));
    EXPECT_EQ(device, 0);
  }).join();
}

TEST(CudaContextContract, StreamsMayHaveTheGreatestPriority) {
  const Current current;
  int least = -1;
  int greatest = 1;
  ASSERT_CUDA(cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_GE(least, greatest);  // the smaller the number, the greater
  ASSERT_CUDA(cuCtxGetStreamPriorityRange(nullptr, &greatest));
  CUstream stream = nullptr;
  ASSERT_CUDA(cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, greatest));
  ASSERT_CUDA(cuStreamDestroy_v2(stream));
}

TEST(CudaContextContract, WithoutACurrentOneThereIsAnErrorThatDoesNotStay) {
  std::thread([] {
    CUcontext context = nullptr;
    CUdevice device = -1;
    CUdeviceptr at = 0;
    CUstream stream = nullptr;
    EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(&context));
    EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetDevice(&device));
    EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&at, 4096));
    EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT,
                cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    EXPECT_CUDA(CUDA_ERROR_INVALID_CONTEXT, cuCtxGetStreamPriorityRange(nullptr, nullptr));
    const Current current;
    EXPECT_TRUE(StillWorks());
  }).join();
}

}  // namespace
}  // namespace kvxfer::testing
