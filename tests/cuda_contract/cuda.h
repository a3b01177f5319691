// The driver under test, and owners of what it hands out. Plain dlopen: this program runs on bare
// GPU machines too, and uses nothing of the library but src/cuda/api.h.
#ifndef KVXFER_TESTS_CUDA_CONTRACT_CUDA_H_
#define KVXFER_TESTS_CUDA_CONTRACT_CUDA_H_

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "src/cuda/api.h"
#include "tests/support/cuda_driver/hooks.h"

namespace kvxfer::testing {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): what is tested here

// Loaded at the first call. Optional functions may be null. The process ends where there is no
// driver.
const Calls& Cuda();
// Why there is none, or it has no device; empty: it works, and is initialised.
std::string WhyNoCuda();
bool IsStandIn();

std::string NameOf(CUresult result);

// The call gave `wanted`; else which it gave.
::testing::AssertionResult Gives(CUresult wanted, CUresult result);
#define EXPECT_CUDA(wanted, call) EXPECT_TRUE(Gives(wanted, Cuda().call))
#define ASSERT_CUDA(call) ASSERT_TRUE(Gives(CUDA_SUCCESS, Cuda().call))

int Attribute(CUdevice_attribute attribute, int device = 0);
int DeviceCount();
template <typename Value>
CUresult PointerAttribute(CUpointer_attribute attribute, CUdeviceptr at, Value* value) {
  return Cuda().cuPointerGetAttribute(value, attribute, at);
}

// The primary context of a device, current in this thread.
class Current {
 public:
  explicit Current(int device = 0);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  CUcontext context() const { return context_; }

 private:
  const int device_;
  CUcontext context_ = nullptr;
};

// Memory of cuMemAlloc.
class Memory {
 public:
  explicit Memory(size_t bytes);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  CUdeviceptr at() const { return at_; }
  void Free();

 private:
  CUdeviceptr at_ = 0;
};

class OwnStream {
 public:
  OwnStream();
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;
  CUstream get() const { return stream_; }

 private:
  CUstream stream_ = nullptr;
};

class OwnEvent {
 public:
  OwnEvent();
  ~OwnEvent();
  OwnEvent(const OwnEvent&) = delete;
  OwnEvent& operator=(const OwnEvent&) = delete;
  CUevent get() const { return event_; }

 private:
  CUevent event_ = nullptr;
};

// Something in a stream that is over when it is opened, and then only.
class Gate {
 public:
  explicit Gate(CUstream stream) {
    EXPECT_CUDA(CUDA_SUCCESS, cuLaunchHostFunc(
                                  stream,
                                  [](void* user) {
                                    auto* const open = static_cast<std::atomic<bool>*>(user);
                                    open->wait(false);
                                  },
                                  &open_));
  }
  ~Gate() { Open(); }
  void Open() {
    open_ = true;
    open_.notify_all();
  }

 private:
  std::atomic<bool> open_{false};
};

// Page-aligned host memory, pinned.
class PinnedMemory {
 public:
  explicit PinnedMemory(size_t bytes);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  std::byte* data() const { return data_; }
  CUdeviceptr at() const { return reinterpret_cast<CUdeviceptr>(data_); }

 private:
  std::byte* data_ = nullptr;
};

// `chunks` pieces of cuMemCreate side by side in one reservation, each of the least size; device 0
// may use them.
class Virtual {
 public:
  explicit Virtual(size_t chunks, CUmemAllocationHandleType handles = CU_MEM_HANDLE_TYPE_NONE,
                   bool access = true);
  ~Virtual();
  Virtual(const Virtual&) = delete;
  Virtual& operator=(const Virtual&) = delete;
  CUdeviceptr at() const { return at_; }
  size_t chunk_bytes() const { return chunk_; }
  size_t bytes() const { return chunk_ * handles_.size(); }
  CUmemGenericAllocationHandle handle(size_t i) const { return handles_[i]; }

 private:
  size_t chunk_ = 0;
  CUdeviceptr at_ = 0;
  std::vector<CUmemGenericAllocationHandle> handles_{};
};
CUmemAllocationProp PropOf(CUmemAllocationHandleType handles, int device = 0);

// Bytes that tell `seed` from others, into and out of device memory.
void FillDevice(CUdeviceptr at, size_t bytes, int seed);
::testing::AssertionResult HoldsSeed(CUdeviceptr at, size_t bytes, int seed);
std::vector<unsigned char> SeedBytes(size_t bytes, int seed);

// The driver still does what it is told: no error has stayed.
::testing::AssertionResult StillWorks();

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_CUDA_CONTRACT_CUDA_H_
