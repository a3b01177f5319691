#include "tests/support/gpu_stream.h"

#include <gtest/gtest.h>

#include <utility>

#include "src/cuda/driver.h"
#include "tests/support/cuda_driver/hooks.h"
#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): the driver's own names

const cuda::Driver& TheDriver() { return **cuda::Driver::Get(); }
const Calls& Cuda() { return TheDriver().calls(); }

}  // namespace

bool UsesGpu() { return cuda::Driver::Get().ok() && cuda_driver::FindHooks() != nullptr; }

GpuStream::GpuStream(int device) : device_(device) {
  const cuda::ContextScope scope(TheDriver(), device);
  EXPECT_EQ(Cuda().cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
}

GpuStream::~GpuStream() {
  LetGo();
  EXPECT_TRUE(Finish());
  const cuda::ContextScope scope(TheDriver(), device_);
  EXPECT_EQ(Cuda().cuStreamDestroy_v2(stream_), CUDA_SUCCESS);
}

GpuStream::operator CudaStream() const {
  return {.handle = reinterpret_cast<uint64_t>(stream_), .device = device_};
}

void GpuStream::Launch(CUhostFn call, void* user) {
  const cuda::ContextScope scope(TheDriver(), device_);
  EXPECT_EQ(Cuda().cuLaunchHostFunc(stream_, call, user), CUDA_SUCCESS);
}

void GpuStream::Hold() {
  Launch([](void* gate) { static_cast<std::atomic<uint32_t>*>(gate)->wait(0); },
         &gates_.emplace_back(0));
}

void GpuStream::LetGo() {
  for (auto& gate : gates_) {
    gate = 1;
    gate.notify_all();
  }
}

void GpuStream::Put(std::function<void()> work) {
  Launch(
      [](void* user) {
        const std::unique_ptr<std::function<void()>> own(static_cast<std::function<void()>*>(user));
        (*own)();
      },
      new std::function<void()>(std::move(work)));
}

void GpuStream::PutCopy(uint64_t to, uint64_t from, uint64_t bytes) {
  const cuda::ContextScope scope(TheDriver(), device_);
  EXPECT_EQ(Cuda().cuMemcpyAsync(to, from, bytes, stream_), CUDA_SUCCESS);
}

bool GpuStream::Idle() const {
  const cuda::ContextScope scope(TheDriver(), device_);
  return Cuda().cuStreamQuery(stream_) == CUDA_SUCCESS;
}

bool GpuStream::Finish() const {
  return Eventually(kAmple, [this] { return Idle(); });
}

GpuEvent::GpuEvent(int device) : device_(device) {
  const cuda::ContextScope scope(TheDriver(), device);
  EXPECT_EQ(Cuda().cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING), CUDA_SUCCESS);
}

GpuEvent::~GpuEvent() { Destroy(); }

void GpuEvent::Record(const GpuStream& stream) {
  const cuda::ContextScope scope(TheDriver(), device_);
  EXPECT_EQ(Cuda().cuEventRecord(event_, stream.handle()), CUDA_SUCCESS);
}

void GpuEvent::Destroy() {
  if (event_ == nullptr) return;
  const cuda::ContextScope scope(TheDriver(), device_);
  EXPECT_EQ(Cuda().cuEventDestroy_v2(std::exchange(event_, nullptr)), CUDA_SUCCESS);
}

}  // namespace kvxfer::testing
