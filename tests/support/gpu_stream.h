// A CUDA stream as an application has it: held back and let go by the test, with work that says
// that it ran. Over the stand-in driver: cases skip where FindHooks() of cuda_driver/hooks.h finds
// none after UsesGpu().
//
// Lifetime: let go of, and idle, when it is destroyed.
#ifndef KVXFER_TESTS_SUPPORT_GPU_STREAM_H_
#define KVXFER_TESTS_SUPPORT_GPU_STREAM_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>

#include "kvxfer/types.h"
#include "src/cuda/api.h"

namespace kvxfer::testing {

// Whether this process has the stand-in driver, which is loaded now.
bool UsesGpu();

class GpuStream {
 public:
  explicit GpuStream(int device = 0);
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;

  cuda::api::CUstream handle() const { return stream_; }
  operator CudaStream() const;  // NOLINT(google-explicit-constructor): it is one

  // What is put into it from now on waits until LetGo.
  void Hold();
  void LetGo();
  // Puts work into it.
  void Put(std::function<void()> work);
  // The same, that only counts.
  void PutCount() {
    Put([this] { ++ran_; });
  }
  int ran() const { return ran_; }
  void PutCopy(uint64_t to, uint64_t from, uint64_t bytes);
  bool Idle() const;
  // Waits until it is idle; false: that took longer than any case may.
  bool Finish() const;

 private:
  void Launch(cuda::api::CUhostFn call, void* user);

  const int device_;
  cuda::api::CUstream stream_ = nullptr;
  // One for each Hold.
  std::deque<std::atomic<uint32_t>> gates_{};
  std::atomic<int> ran_{0};
};

// An event of the application.
class GpuEvent {
 public:
  explicit GpuEvent(int device = 0);
  ~GpuEvent();
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  void Record(const GpuStream& stream);
  void Destroy();
  uint64_t handle() const { return reinterpret_cast<uint64_t>(event_); }

 private:
  const int device_;
  cuda::api::CUevent event_ = nullptr;
};

}  // namespace kvxfer::testing

#endif  // KVXFER_TESTS_SUPPORT_GPU_STREAM_H_
