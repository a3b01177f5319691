// What the stand-in does that no case can ask of a real driver: crash where a GPU machine would,
// and hide what NICs write.
#include "tests/cuda_contract/standin.h"

#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <memory>

#include "src/cuda/kernels.cuh"
#include "tests/cuda_contract/child.h"

namespace kvxfer::testing {
namespace {

// --- device memory ------------------------------------------------------------------------------

KVXFER_CONTRACT_CHILD(TouchesDeviceMemory) {
  if (!WhyNoCuda().empty()) return 97;
  signal(SIGSEGV, SIG_DFL);  // a sanitizer has its own
  const Current current;
  const Memory memory(4096);
  *reinterpret_cast<volatile char*>(memory.at()) = 1;
  return 0;
}

TEST_F(CudaStandIn, ACpuThatTouchesDeviceMemoryCrashes) {
  Child child("TouchesDeviceMemory");
  EXPECT_EQ(child.Wait(), 128 + SIGSEGV);
}

TEST_F(CudaStandIn, TestsSeeDeviceMemoryByItsAlias) {
  const Memory memory(10'000);
  std::byte* const alias = hooks_->kvxfer_standin_alias(memory.at() + 100, 9'900);
  ASSERT_NE(alias, nullptr);
  EXPECT_EQ(hooks_->kvxfer_standin_alias(memory.at() + 100, 9'901), nullptr);
  FillDevice(memory.at(), 10'000, 31);
  const std::vector<unsigned char> wanted = SeedBytes(10'000, 31);
  EXPECT_EQ(std::memcmp(alias, wanted.data() + 100, 9'900), 0);
  // The alias follows segments that lie side by side.
  const Virtual segments(2);
  EXPECT_NE(hooks_->kvxfer_standin_alias(segments.at(), segments.bytes()), nullptr);
}

// --- kernels ------------------------------------------------------------------------------------

constexpr char kImage[] = "// none\n.version 7.0\n";

// One unit that copies; the result of the stream behind it.
CUresult RunKernel(CUdeviceptr to, CUdeviceptr from, uint32_t bytes) {
  auto list = std::make_unique<PinnedMemory>(4096);
  const cuda::CopyUnit unit = {
      .to = to, .from = from, .bytes = bytes, .rows = 1, .to_stride = 0, .from_stride = 0};
  std::memcpy(list->data(), &unit, sizeof(unit));
  CUmodule module = nullptr;
  CUfunction kernel = nullptr;
  EXPECT_CUDA(CUDA_SUCCESS, cuModuleLoadData(&module, kImage));
  EXPECT_CUDA(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&kernel, module, "other"));
  EXPECT_CUDA(CUDA_SUCCESS, cuModuleGetFunction(&kernel, module, cuda::kCopyKernel));
  CUstream stream = nullptr;
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
  cuda::CopyParams params;
  params.parts[0] = {.list = list->at(), .units = 1};
  params.count = 1;
  void* parameters[] = {&params};
  EXPECT_CUDA(CUDA_SUCCESS, cuLaunchKernel(kernel, 1, 1, 1, cuda::kCopyThreads, 1, 1, 0, stream,
                                           parameters, nullptr));
  const CUresult result = Cuda().cuStreamSynchronize(stream);
  if (result != CUDA_SUCCESS) {
    static_cast<void>(list.release());  // nothing of a ruined context can be given back
    return result;
  }
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamDestroy_v2(stream));
  EXPECT_CUDA(CUDA_SUCCESS, cuModuleUnload(module));
  return CUDA_SUCCESS;
}

TEST_F(CudaStandIn, TheKernelCopies) {
  const Memory a(50'001);
  const Memory b(50'001);
  const PinnedMemory pinned(50'001);
  FillDevice(a.at(), 50'001, 41);
  EXPECT_EQ(RunKernel(b.at(), a.at(), 50'001), CUDA_SUCCESS);
  EXPECT_TRUE(HoldsSeed(b.at(), 50'001, 41));
  EXPECT_EQ(RunKernel(pinned.at(), a.at() + 1, 50'000), CUDA_SUCCESS);
  const std::vector<unsigned char> wanted = SeedBytes(50'001, 41);
  EXPECT_EQ(std::memcmp(pinned.data(), wanted.data() + 1, 50'000), 0);
}

// Each ruins the context of a process of its own.
enum class Fault : uint8_t { kPageable, kBehindTheEnd, kFreed, kOtherDevice, kNotMapped };

KVXFER_CONTRACT_CHILD(KernelFaults) {
  if (!WhyNoCuda().empty()) return 97;
  const auto fault = socket->Receive<Fault>();
  CUcontext context = nullptr;
  CUdeviceptr bad = 0;
  std::vector<std::byte> plain(4096);
  if (fault == Fault::kOtherDevice) {
    const CUresult retained = Cuda().cuDevicePrimaryCtxRetain(&context, 1);
    if (retained != CUDA_SUCCESS || Cuda().cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return 1;
    if (Cuda().cuMemAlloc_v2(&bad, 4096) != CUDA_SUCCESS) return 2;
  }
  if (Cuda().cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 3;
  if (Cuda().cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return 4;
  CUdeviceptr good = 0;
  if (Cuda().cuMemAlloc_v2(&good, 4096) != CUDA_SUCCESS) return 5;
  if (fault == Fault::kPageable) bad = reinterpret_cast<CUdeviceptr>(plain.data());
  if (fault == Fault::kBehindTheEnd) bad = good + 1;
  if (fault == Fault::kFreed) {
    if (Cuda().cuMemAlloc_v2(&bad, 4096) != CUDA_SUCCESS) return 6;
    if (Cuda().cuMemFree_v2(bad) != CUDA_SUCCESS) return 7;
  }
  if (fault == Fault::kNotMapped) {
    if (Cuda().cuMemAddressReserve(&bad, size_t{2} << 20, 0, 0, 0) != CUDA_SUCCESS) return 8;
  }
  CUstream other = nullptr;
  if (Cuda().cuStreamCreateWithPriority(&other, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS)
    return 9;
  socket->Send(RunKernel(bad, good, 4096));
  // From now on everything of this context fails in the same way.
  socket->Send(Cuda().cuStreamQuery(other));
  socket->Send(Cuda().cuMemAlloc_v2(&good, 4096));
  _exit(0);
}

TEST_F(CudaStandIn, AKernelThatTouchesWhatItMustNotRuinsTheContext) {
  for (const Fault fault : {Fault::kPageable, Fault::kBehindTheEnd, Fault::kFreed,
                            Fault::kOtherDevice, Fault::kNotMapped}) {
    Child child("KernelFaults");
    child.socket().Send(fault);
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(Gives(CUDA_ERROR_ILLEGAL_ADDRESS, child.socket().Receive<CUresult>()))
          << static_cast<int>(fault);
    }
    EXPECT_EQ(child.Wait(), 0);
  }
}

TEST_F(CudaStandIn, KernelsReachPeersWhenTheyMay) {
  if (DeviceCount() < 2) GTEST_SKIP() << "one GPU";
  const Current second(1);
  const Memory there(4096);
  FillDevice(there.at(), 4096, 43);
  {
    const Current first(0);
    const Memory here(4096);
    const CUresult enabled = Cuda().cuCtxEnablePeerAccess(second.context(), 0);
    EXPECT_TRUE(enabled == CUDA_SUCCESS || enabled == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    EXPECT_EQ(RunKernel(here.at(), there.at(), 4096), CUDA_SUCCESS);
    EXPECT_TRUE(HoldsSeed(here.at(), 4096, 43));
  }
}

// --- NICs ---------------------------------------------------------------------------------------

TEST_F(CudaStandIn, WhatANicWritesIsSeenWhenItWasFlushed) {
  constexpr size_t kBytes = 5'000;
  const Memory memory(kBytes);
  FillDevice(memory.at(), kBytes, 51);
  const std::vector<unsigned char> other = SeedBytes(kBytes, 52);
  ASSERT_EQ(hooks_->kvxfer_standin_nic_write(memory.at(), other.data(), kBytes), CUDA_SUCCESS);
  EXPECT_TRUE(HoldsSeed(memory.at(), kBytes, 51));
  EXPECT_EQ(hooks_->kvxfer_standin_nic_pending(0), kBytes);
  ASSERT_CUDA(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                         CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER));
  EXPECT_TRUE(HoldsSeed(memory.at(), kBytes, 52));
  EXPECT_EQ(hooks_->kvxfer_standin_nic_pending(0), 0u);
  // A NIC that reads pushes what was written.
  const std::vector<unsigned char> third = SeedBytes(kBytes, 53);
  ASSERT_EQ(hooks_->kvxfer_standin_nic_write(memory.at(), third.data(), kBytes), CUDA_SUCCESS);
  char byte = 0;
  ASSERT_EQ(hooks_->kvxfer_standin_nic_read(memory.at(), &byte, 1), CUDA_SUCCESS);
  EXPECT_TRUE(HoldsSeed(memory.at(), kBytes, 53));
  // A device that orders writes needs neither.
  hooks_->kvxfer_standin_set_attribute(0, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                                       CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
  ASSERT_EQ(hooks_->kvxfer_standin_nic_write(memory.at(), other.data(), kBytes), CUDA_SUCCESS);
  EXPECT_TRUE(HoldsSeed(memory.at(), kBytes, 52));
  hooks_->kvxfer_standin_set_attribute(0, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING,
                                       CU_GPU_DIRECT_RDMA_WRITES_ORDERING_NONE);
}

TEST_F(CudaStandIn, NicsGetDeviceMemoryOnly) {
  const Memory memory(4096);
  const PinnedMemory pinned(4096);
  CUdeviceptr managed = 0;
  ASSERT_CUDA(cuMemAllocManaged(&managed, 4096, CU_MEM_ATTACH_GLOBAL));
  EXPECT_EQ(hooks_->kvxfer_standin_nic_may(memory.at(), 4096), 0);
  EXPECT_EQ(hooks_->kvxfer_standin_nic_may(memory.at(), 4097), EFAULT);
  EXPECT_EQ(hooks_->kvxfer_standin_nic_may(pinned.at(), 4096), EFAULT);
  EXPECT_EQ(hooks_->kvxfer_standin_nic_may(managed, 4096), EFAULT);
  ASSERT_CUDA(cuMemFree_v2(managed));
}

TEST_F(CudaStandIn, ADmabufStandsForItsRangeWhileItIsOpen) {
  const Memory memory(size_t{4} << 20);
  const uint64_t before = Live().dmabufs;
  int fd = -1;
  ASSERT_CUDA(cuMemGetHandleForAddressRange(&fd, memory.at() + 4096, 8192,
                                            CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  uint64_t at = 0;
  uint64_t bytes = 0;
  EXPECT_EQ(hooks_->kvxfer_standin_dmabuf(fd, &at, &bytes), CUDA_SUCCESS);
  EXPECT_EQ(at, memory.at() + 4096);
  EXPECT_EQ(bytes, 8192u);
  EXPECT_EQ(Live().dmabufs, before + 1);
  close(fd);
  EXPECT_EQ(Live().dmabufs, before);
}

}  // namespace
}  // namespace kvxfer::testing
