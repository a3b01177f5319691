// A CUDA stream of the application, checked before something is put into it.
//
// Thread-safety: none; used within one call.

#ifndef KVXFER_CUDA_APP_STREAM_H_
#define KVXFER_CUDA_APP_STREAM_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kvxfer/types.h"
#include "src/cuda/driver.h"

namespace kvxfer::cuda {

// While it exists, the CUDA stream's context is current in this thread, in a scope of kQueueing:
// work may be put into the stream.
class AppStream {
 public:
  // Check status() first: if it is an error, the stream must not be used. InvalidArgument, with
  // what to do: the handle is not a CUDA stream of this process, belongs to another device than
  // `stream` says, or to a context that is not its device's primary one; or the stream is being
  // captured into a graph, which a transfer cannot be part of. Other errors as Driver::Get.
  explicit AppStream(const CudaStream& stream);
  AppStream(const AppStream&) = delete;
  AppStream& operator=(const AppStream&) = delete;

  const absl::Status& status() const { return status_; }
  // Only if status() is OK.
  const Driver& driver() const { return *driver_; }
  const Device& device() const { return *device_; }
  api::CUstream handle() const { return handle_; }
  // Identifies the CUDA stream on its device for as long as it exists. 0 for the per-thread default
  // stream, which is a different stream in each thread.
  uint64_t key() const { return key_; }

  // "CUDA stream 0x7f31c0002a80"
  std::string Describe() const;
  // The Status for `result` of `call` on this CUDA stream.
  absl::Status Error(api::CUresult result, const char* call) const;

 private:
  absl::Status Open(const CudaStream& stream);
  absl::StatusOr<int> FindDevice(const CudaStream& stream) const;
  absl::StatusOr<int> DeviceOf(api::CUcontext context) const;
  absl::StatusOr<int> CurrentDevice() const;
  absl::Status CheckPrimary(api::CUcontext context, int device) const;
  absl::Status CheckNotCapturing() const;

  const Driver* driver_ = nullptr;
  const Device* device_ = nullptr;
  const api::CUstream handle_;
  const uint64_t key_;
  std::optional<ContextScope> scope_;
  absl::Status status_;
};

// The device of this thread's current context, or else one that the process uses. For calls that
// work in any context, which device it is does not matter. InvalidArgument: the process uses none.
absl::StatusOr<int> SomeDeviceInUse(const Driver& driver);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_APP_STREAM_H_
