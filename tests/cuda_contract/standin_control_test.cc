// How tests steer the stand-in and look into it: failures on demand, the environment, counts.
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "tests/cuda_contract/child.h"
#include "tests/cuda_contract/standin.h"

namespace kvxfer::testing {
namespace {

using cuda_driver::LiveObjects;

// --- failures on demand -------------------------------------------------------------------------

TEST_F(CudaStandIn, AnyCallFailsOnDemandOnce) {
  CUdeviceptr at = 0;
  EXPECT_EQ(hooks_->kvxfer_standin_fail("cuMemAlloc_v2", 2, CUDA_ERROR_OUT_OF_MEMORY), 0);
  EXPECT_EQ(hooks_->kvxfer_standin_fail("cuMemAlloc", 1, CUDA_ERROR_OUT_OF_MEMORY),
            CUDA_ERROR_INVALID_VALUE);
  const uint64_t before = hooks_->kvxfer_standin_calls("cuMemAlloc_v2");
  ASSERT_CUDA(cuMemAlloc_v2(&at, 4096));
  EXPECT_CUDA(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&at, 4096));
  ASSERT_CUDA(cuMemFree_v2(at));
  EXPECT_TRUE(StillWorks());
  EXPECT_EQ(hooks_->kvxfer_standin_calls("cuMemAlloc_v2"), before + 3);
  hooks_->kvxfer_standin_fail("cuCtxGetDevice", 0, CUDA_ERROR_UNKNOWN);
  int device = 0;
  for (int i = 0; i < 3; ++i) EXPECT_CUDA(CUDA_ERROR_UNKNOWN, cuCtxGetDevice(&device));
  hooks_->kvxfer_standin_fail_none();
  EXPECT_CUDA(CUDA_SUCCESS, cuCtxGetDevice(&device));
}

TEST_F(CudaStandIn, EveryCallCanFail) {
  for (const char* name : cuda_driver::kCalls) {
    EXPECT_EQ(hooks_->kvxfer_standin_fail(name, 1, CUDA_ERROR_UNKNOWN), 0) << name;
  }
  hooks_->kvxfer_standin_fail_none();
}

KVXFER_CONTRACT_CHILD(FailsByEnvironment) {
  if (Cuda().cuInit(0) != CUDA_ERROR_SYSTEM_DRIVER_MISMATCH) return 1;
  if (Cuda().cuInit(0) != CUDA_SUCCESS) return 7;
  const Current current;
  OwnEvent event;
  CUstream stream = nullptr;
  if (Cuda().cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0) != CUDA_SUCCESS)
    return 2;
  const PinnedMemory pinned(4096);
  const Memory memory(4096);
  // The first operation that a stream begins; events are none.
  if (Cuda().cuEventRecord(event.get(), stream) != CUDA_SUCCESS) return 3;
  if (Cuda().cuStreamSynchronize(stream) != CUDA_SUCCESS) return 4;
  if (Cuda().cuMemcpyAsync(pinned.at(), memory.at(), 4096, stream) != CUDA_SUCCESS) return 5;
  const CUresult result = Cuda().cuStreamSynchronize(stream);
  _exit(result == CUDA_ERROR_LAUNCH_FAILED ? 0 : 6);  // what owns things cannot let go of them
}

TEST_F(CudaStandIn, ChildrenFailByTheirEnvironment) {
  Child child("FailsByEnvironment",
              {"KVXFER_STANDIN_FAIL=cuInit:1:CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,"
               "async:1:CUDA_ERROR_LAUNCH_FAILED"});
  EXPECT_EQ(child.Wait(), 0);
}

KVXFER_CONTRACT_CHILD(InitResult) {
  socket->Send(Cuda().cuInit(0));
  return 0;
}

TEST_F(CudaStandIn, ThereCanBeNoDeviceOrABrokenDriver) {
  {
    Child child("InitResult", {"KVXFER_STANDIN_DEVICES=0"});
    EXPECT_EQ(child.socket().Receive<CUresult>(), CUDA_ERROR_NO_DEVICE);
  }
  {
    Child child("InitResult", {"CUDA_VISIBLE_DEVICES="});
    EXPECT_EQ(child.socket().Receive<CUresult>(), CUDA_ERROR_NO_DEVICE);
  }
  {
    Child child("InitResult", {"KVXFER_STANDIN_INIT=CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"});
    EXPECT_EQ(child.socket().Receive<CUresult>(), CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE);
  }
  Child child("InitResult", {"KVXFER_STANDIN_NONSENSE=1"});
  EXPECT_EQ(child.Wait(), 128 + SIGABRT);
}

KVXFER_CONTRACT_CHILD(HasAnOldDriver) {
  const bool initialised = WhyNoCuda().empty();
  if (!initialised) return 1;
  const Current current;
  EXPECT_TRUE(IsStandIn());
  EXPECT_EQ(Cuda().cuStreamWaitValue32_v2, nullptr);
  EXPECT_EQ(Cuda().cuMemGetHandleForAddressRange, nullptr);
  EXPECT_TRUE(StillWorks());
  return 0;
}

TEST_F(CudaStandIn, ThereAreOldDriversToo) {
  const std::string folder = std::getenv("LD_LIBRARY_PATH");
  Child old("HasAnOldDriver", {"LD_LIBRARY_PATH=" + folder + "/11.4"});
  EXPECT_EQ(old.Wait(), 0);
  Child too_old("HasAnOldDriver", {"LD_LIBRARY_PATH=" + folder + "/11.2"});
  EXPECT_EQ(too_old.Wait(), 1);
}

KVXFER_CONTRACT_CHILD(UuidOfTheFirst) {
  if (!WhyNoCuda().empty()) return 97;
  CUuuid uuid{};
  EXPECT_CUDA(CUDA_SUCCESS, cuDeviceGetUuid_v2(&uuid, 0));
  socket->Send(uuid);
  return 0;
}

TEST_F(CudaStandIn, ProcessesMayNumberDevicesDifferently) {
  if (DeviceCount() < 2) GTEST_SKIP() << "one GPU";
  CUuuid second{};
  ASSERT_CUDA(cuDeviceGetUuid_v2(&second, 1));
  Child child("UuidOfTheFirst", {"CUDA_VISIBLE_DEVICES=1,0"});
  const auto uuid = child.socket().Receive<CUuuid>();
  EXPECT_EQ(std::memcmp(&uuid, &second, sizeof(uuid)), 0);
}

// --- the default stream -------------------------------------------------------------------------

KVXFER_CONTRACT_CHILD(UsesTheDefaultStream) {
  if (!WhyNoCuda().empty()) return 97;
  const Current current;
  const Memory memory(4096);
  const OwnEvent event;
  switch (socket->Receive<int>()) {
    case 0:
      return Cuda().cuEventRecord(event.get(), nullptr);
    case 1:
      return Cuda().cuMemsetD8_v2(memory.at(), 0, 4096);
    default:
      return 0;
  }
}

TEST_F(CudaStandIn, WhoUsesTheDefaultStreamIsSeen) {
  const uint64_t before = hooks_->kvxfer_standin_default_stream_uses();
  const OwnEvent event;
  const OwnStream stream;
  ASSERT_CUDA(cuEventRecord(event.get(), stream.get()));
  EXPECT_EQ(hooks_->kvxfer_standin_default_stream_uses(), before);
  ASSERT_CUDA(cuEventRecord(event.get(), nullptr));
  EXPECT_EQ(hooks_->kvxfer_standin_default_stream_uses(), before + 1);
  for (const int how : {0, 1, 2}) {
    Child child("UsesTheDefaultStream", {"KVXFER_STANDIN_NO_DEFAULT_STREAM=1"});
    child.socket().Send(how);
    EXPECT_EQ(child.Wait(), how == 2 ? 0 : 128 + SIGABRT);
  }
}

TEST_F(CudaStandIn, TheDefaultStreamAndBlockingOnesWaitForEachOther) {
  CUstream blocking = nullptr;
  ASSERT_CUDA(cuStreamCreateWithPriority(&blocking, 0, 0));
  const OwnStream apart;
  const OwnEvent event;
  hooks_->kvxfer_standin_pause(1);
  ASSERT_CUDA(cuLaunchHostFunc(
      blocking, [](void*) {}, nullptr));
  ASSERT_CUDA(cuEventRecord(event.get(), nullptr));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuEventQuery(event.get()));
  hooks_->kvxfer_standin_pause(0);
  ASSERT_CUDA(cuEventSynchronize(event.get()));
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamQuery(blocking));
  ASSERT_CUDA(cuStreamDestroy_v2(blocking));
}

// --- what is left behind ------------------------------------------------------------------------

TEST_F(CudaStandIn, WhatIsThereIsCounted) {
  const LiveObjects before = Live();
  {
    const Memory memory(4096);
    const PinnedMemory pinned(4096);
    const OwnStream stream;
    const OwnEvent event;
    const Virtual segments(2);
    const LiveObjects now = Live();
    EXPECT_EQ(now.allocations, before.allocations + 1);
    EXPECT_EQ(now.pinned, before.pinned + 1);
    EXPECT_EQ(now.streams, before.streams + 1);
    EXPECT_EQ(now.events, before.events + 1);
    EXPECT_EQ(now.mappings, before.mappings + 2);
    EXPECT_EQ(now.handles, before.handles + 2);
    EXPECT_EQ(now.reservations, before.reservations + 1);
  }
  EXPECT_EQ(Live(), before);
}

TEST_F(CudaStandIn, PageableCopiesAreCounted) {
  const Memory memory(4096);
  const PinnedMemory pinned(4096);
  const OwnStream stream;
  const uint64_t before = hooks_->kvxfer_standin_pageable_copies();
  ASSERT_CUDA(cuMemcpyAsync(pinned.at(), memory.at(), 4096, stream.get()));
  EXPECT_EQ(hooks_->kvxfer_standin_pageable_copies(), before);
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));  // it reads what FillDevice writes
  FillDevice(memory.at(), 4096, 1);
  EXPECT_EQ(hooks_->kvxfer_standin_pageable_copies(), before + 1);
}

KVXFER_CONTRACT_CHILD(LosesItsContext) {
  if (!WhyNoCuda().empty()) return 97;
  const cuda_driver::Hooks& hooks = *cuda_driver::FindHooks();
  {
    const Current current;
    CUdeviceptr at = 0;
    CUstream stream = nullptr;
    CUevent event = nullptr;
    EXPECT_CUDA(CUDA_SUCCESS, cuMemAlloc_v2(&at, 4096));
    EXPECT_CUDA(CUDA_SUCCESS, cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
    EXPECT_CUDA(CUDA_SUCCESS, cuEventCreate(&event, 0));
    EXPECT_CUDA(CUDA_SUCCESS, cuEventRecord(event, stream));
  }
  LiveObjects live;
  hooks.kvxfer_standin_live(&live);
  EXPECT_EQ(live, LiveObjects{});
  const Current current;
  EXPECT_TRUE(StillWorks());
  return 0;
}

TEST_F(CudaStandIn, TheLastReleaseOfAContextEndsWhatBelongsToIt) {
  Child child("LosesItsContext");
  EXPECT_EQ(child.Wait(), 0);
}

KVXFER_CONTRACT_CHILD(ExitsInTheMiddle) {
  if (!WhyNoCuda().empty()) return 97;
  static PinnedMemory* word = nullptr;
  static CUstream stream = nullptr;
  CUcontext context = nullptr;
  EXPECT_CUDA(CUDA_SUCCESS, cuDevicePrimaryCtxRetain(&context, 0));
  EXPECT_CUDA(CUDA_SUCCESS, cuCtxPushCurrent_v2(context));
  word = new PinnedMemory(4096);
  std::memset(word->data(), 0, 4096);
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamWaitValue32_v2(stream, word->at(), 1, 0));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuStreamQuery(stream));
  return 0;
}

TEST_F(CudaStandIn, AProcessExitsWhateverItsStreamsWaitFor) {
  Child child("ExitsInTheMiddle");
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(CudaStandIn, HostFunctionsMayNotCallTheDriver) {
  const OwnStream stream;
  CUresult result = CUDA_SUCCESS;
  ASSERT_CUDA(cuLaunchHostFunc(
      stream.get(),
      [](void* user) {
        CUcontext context = nullptr;
        *static_cast<CUresult*>(user) = Cuda().cuCtxGetCurrent(&context);
      },
      &result));
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_EQ(result, CUDA_ERROR_NOT_PERMITTED);
}

// --- threads ------------------------------------------------------------------------------------

TEST_F(CudaStandIn, ThreadsMayDoAllAtOnce) {
  std::vector<std::thread> threads;
  threads.reserve(4);
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i] {
      const Current current;
      for (int k = 0; k < 20; ++k) {
        const Memory memory(20'000);
        const PinnedMemory pinned(20'000);
        const OwnStream stream;
        const OwnEvent event;
        const std::vector<unsigned char> content = SeedBytes(20'000, i * 100 + k);
        std::memcpy(pinned.data(), content.data(), content.size());
        ASSERT_CUDA(cuMemcpyAsync(memory.at(), pinned.at(), 20'000, stream.get()));
        ASSERT_CUDA(cuEventRecord(event.get(), stream.get()));
        ASSERT_CUDA(cuEventSynchronize(event.get()));
        EXPECT_TRUE(HoldsSeed(memory.at(), 20'000, i * 100 + k));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace kvxfer::testing
