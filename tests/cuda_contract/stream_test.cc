// What streams and events promise.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/cuda_contract/cuda.h"

namespace kvxfer::testing {
namespace {

class CudaStreamContract : public ::testing::Test {
 protected:
  const Current current_;
};

TEST_F(CudaStreamContract, AnEventThatWasNotRecordedIsOver) {
  const OwnEvent event;
  const OwnStream stream;
  EXPECT_CUDA(CUDA_SUCCESS, cuEventQuery(event.get()));
  EXPECT_CUDA(CUDA_SUCCESS, cuEventSynchronize(event.get()));
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamWaitEvent(stream.get(), event.get(), 0));
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(stream.get()));
}

TEST_F(CudaStreamContract, WhatIsBehindSomethingWaitsForIt) {
  constexpr size_t kBytes = 64 << 10;
  const PinnedMemory pinned(kBytes);
  const Memory memory(kBytes);
  ASSERT_CUDA(cuMemsetD8_v2(memory.at(), 0x11, kBytes));
  std::memset(pinned.data(), 0x22, kBytes);
  const OwnEvent event;
  {
    const OwnStream stream;
    EXPECT_CUDA(CUDA_SUCCESS, cuStreamQuery(stream.get()));
    Gate gate(stream.get());
    ASSERT_CUDA(cuMemcpyAsync(pinned.at(), memory.at(), kBytes, stream.get()));
    ASSERT_CUDA(cuEventRecord(event.get(), stream.get()));
    EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuStreamQuery(stream.get()));
    EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuEventQuery(event.get()));
    EXPECT_EQ(pinned.data()[0], std::byte{0x22});
    gate.Open();
    ASSERT_CUDA(cuEventSynchronize(event.get()));
    EXPECT_CUDA(CUDA_SUCCESS, cuEventQuery(event.get()));
    EXPECT_EQ(pinned.data()[kBytes - 1], std::byte{0x11});
    ASSERT_CUDA(cuStreamSynchronize(stream.get()));
    EXPECT_CUDA(CUDA_SUCCESS, cuStreamQuery(stream.get()));
  }
}

TEST_F(CudaStreamContract, AStreamWaitsForWhatAnEventHeldAtTheCall) {
  constexpr size_t kBytes = 4096;
  const Memory memory(kBytes);
  const PinnedMemory pinned(kBytes);
  ASSERT_CUDA(cuMemsetD8_v2(memory.at(), 0x11, kBytes));
  const OwnStream first;
  const OwnStream second;
  const OwnStream third;
  const OwnEvent event;
  const OwnEvent end;
  Gate gate(first.get());
  ASSERT_CUDA(cuEventRecord(event.get(), first.get()));
  ASSERT_CUDA(cuStreamWaitEvent(second.get(), event.get(), 0));
  ASSERT_CUDA(cuMemcpyAsync(pinned.at(), memory.at(), kBytes, second.get()));
  ASSERT_CUDA(cuEventRecord(end.get(), second.get()));
  // Recorded anew it holds something else, for those who wait from now on.
  ASSERT_CUDA(cuEventRecord(event.get(), third.get()));
  ASSERT_CUDA(cuEventSynchronize(event.get()));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuEventQuery(end.get()));
  gate.Open();
  ASSERT_CUDA(cuEventSynchronize(end.get()));
  EXPECT_EQ(pinned.data()[0], std::byte{0x11});
}

TEST_F(CudaStreamContract, AnEventMayGoBeforeWhatWaitsForIt) {
  const OwnStream first;
  const OwnStream second;
  auto event = std::make_unique<OwnEvent>();
  Gate gate(first.get());
  ASSERT_CUDA(cuEventRecord(event->get(), first.get()));
  ASSERT_CUDA(cuStreamWaitEvent(second.get(), event->get(), 0));
  event.reset();
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuStreamQuery(second.get()));
  gate.Open();
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(second.get()));
}

TEST_F(CudaStreamContract, ADestroyedStreamDoesWhatItHasToDo) {
  constexpr size_t kBytes = 64 << 10;
  const Memory memory(kBytes);
  const PinnedMemory pinned(kBytes);
  ASSERT_CUDA(cuMemsetD8_v2(memory.at(), 0x33, kBytes));
  std::memset(pinned.data(), 0, kBytes);
  const OwnEvent event;
  std::unique_ptr<Gate> gate;
  {
    const OwnStream stream;
    gate = std::make_unique<Gate>(stream.get());
    ASSERT_CUDA(cuMemcpyAsync(pinned.at(), memory.at(), kBytes, stream.get()));
    ASSERT_CUDA(cuEventRecord(event.get(), stream.get()));
  }
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuEventQuery(event.get()));
  gate->Open();
  ASSERT_CUDA(cuEventSynchronize(event.get()));
  EXPECT_EQ(pinned.data()[kBytes - 1], std::byte{0x33});
}

TEST_F(CudaStreamContract, HostFunctionsRunInOrder) {
  const OwnStream stream;
  std::vector<int> order;
  struct Entry {
    std::vector<int>* order;
    int number;
  };
  std::vector<Entry> entries;
  entries.reserve(20);
  for (int i = 0; i < 20; ++i) entries.push_back({&order, i});
  for (Entry& entry : entries) {
    ASSERT_CUDA(cuLaunchHostFunc(
        stream.get(),
        [](void* user) {
          const auto& one = *static_cast<Entry*>(user);
          one.order->push_back(one.number);
        },
        &entry));
  }
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  ASSERT_EQ(order.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
}

TEST_F(CudaStreamContract, AStreamKnowsItsContext) {
  const OwnStream stream;
  CUcontext context = nullptr;
  std::thread([&] { ASSERT_CUDA(cuStreamGetCtx(stream.get(), &context)); }).join();
  EXPECT_EQ(context, current_.context());
  ASSERT_CUDA(cuStreamGetCtx(nullptr, &context));
  EXPECT_EQ(context, current_.context());
}

TEST_F(CudaStreamContract, EventsBelongToADeviceAndAreWaitedForByAll) {
  if (DeviceCount() < 2) GTEST_SKIP() << "one GPU";
  const OwnStream here;
  const OwnEvent event;
  Gate gate(here.get());
  ASSERT_CUDA(cuEventRecord(event.get(), here.get()));
  const Current second(1);
  const OwnStream there;
  EXPECT_CUDA(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(event.get(), there.get()));
  ASSERT_CUDA(cuStreamWaitEvent(there.get(), event.get(), 0));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuStreamQuery(there.get()));
  gate.Open();
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(there.get()));
  EXPECT_TRUE(StillWorks());
}

TEST_F(CudaStreamContract, PoolMemoryIsFreedInItsTurn) {
  const OwnStream stream;
  const PinnedMemory pinned(4096);
  CUdeviceptr at = 0;
  ASSERT_CUDA(cuMemAllocAsync(&at, 4096, stream.get()));
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  ASSERT_CUDA(cuMemsetD8_v2(at, 0x44, 4096));
  Gate gate(stream.get());
  ASSERT_CUDA(cuMemcpyAsync(pinned.at(), at, 4096, stream.get()));
  ASSERT_CUDA(cuMemFreeAsync(at, stream.get()));
  gate.Open();
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_EQ(pinned.data()[4095], std::byte{0x44});
}

class CudaStreamValueContract : public CudaStreamContract {
 protected:
  void SetUp() override {
    if (Cuda().cuStreamWaitValue32_v2 == nullptr ||
        Attribute(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) == 0) {
      GTEST_SKIP() << "streams cannot wait for memory";
    }
  }
};

TEST_F(CudaStreamValueContract, AStreamWaitsForAWordOfTheHost) {
  const PinnedMemory word(4096);
  auto* const value = reinterpret_cast<uint32_t*>(word.data());
  const std::atomic_ref<uint32_t> host(*value);
  host = 5;
  CUdeviceptr at = 0;
  ASSERT_CUDA(cuMemHostGetDevicePointer_v2(&at, value, 0));
  const OwnStream stream;
  const OwnEvent event;
  ASSERT_CUDA(cuStreamWaitValue32_v2(stream.get(), at, 7, CU_STREAM_WAIT_VALUE_GEQ));
  ASSERT_CUDA(cuEventRecord(event.get(), stream.get()));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuEventQuery(event.get()));
  host.store(6, std::memory_order_release);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_CUDA(CUDA_ERROR_NOT_READY, cuEventQuery(event.get()));
  host.store(8, std::memory_order_release);
  EXPECT_CUDA(CUDA_SUCCESS, cuEventSynchronize(event.get()));
}

TEST_F(CudaStreamValueContract, WhatIsWaitedForMayWrapAround) {
  const PinnedMemory word(4096);
  const std::atomic_ref<uint32_t> host(*reinterpret_cast<uint32_t*>(word.data()));
  host = 3;
  const OwnStream stream;
  ASSERT_CUDA(
      cuStreamWaitValue32_v2(stream.get(), word.at(), 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ));
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(stream.get()));
}

TEST_F(CudaStreamValueContract, AWordIsWrittenBehindWhatWasBefore) {
  const PinnedMemory word(4096);
  const std::atomic_ref<uint32_t> host(*reinterpret_cast<uint32_t*>(word.data()));
  host = 0;
  const Memory memory(4096);
  const OwnStream stream;
  Gate gate(stream.get());
  ASSERT_CUDA(cuStreamWriteValue32_v2(stream.get(), word.at(), 42, CU_STREAM_WRITE_VALUE_DEFAULT));
  ASSERT_CUDA(
      cuStreamWriteValue32_v2(stream.get(), memory.at(), 43, CU_STREAM_WRITE_VALUE_DEFAULT));
  EXPECT_EQ(host.load(), 0u);
  gate.Open();
  ASSERT_CUDA(cuStreamSynchronize(stream.get()));
  EXPECT_EQ(host.load(std::memory_order_acquire), 42u);
  uint32_t device = 0;
  ASSERT_CUDA(cuMemcpyDtoH_v2(&device, memory.at(), sizeof(device)));
  EXPECT_EQ(device, 43u);
}

TEST_F(CudaStreamValueContract, ABadWordIsRefused) {
  const PinnedMemory word(4096);
  const OwnStream stream;
  EXPECT_NE(Cuda().cuStreamWaitValue32_v2(stream.get(), word.at() + 1, 0, 0), CUDA_SUCCESS);
  EXPECT_CUDA(CUDA_SUCCESS, cuStreamSynchronize(stream.get()));
  EXPECT_TRUE(StillWorks());
}

}  // namespace
}  // namespace kvxfer::testing
