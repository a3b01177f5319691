// A stream of the application, looked at before something is put into it.
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

// For as long as it lives the stream's context is current in this thread.
class AppStream {
 public:
  // Where status() is an error nothing may be done. InvalidArgument, with the remedy: no stream of
  // this process, of another device than it says, of a context that is not its device's primary
  // one, or one that is being captured into a graph, of which a transfer cannot be a part. Else as
  // Driver::Get.
  explicit AppStream(const CudaStream& stream);
  AppStream(const AppStream&) = delete;
  AppStream& operator=(const AppStream&) = delete;

  const absl::Status& status() const { return status_; }
  // Only where that is OK.
  const Driver& driver() const { return *driver_; }
  const Device& device() const { return *device_; }
  api::CUstream handle() const { return handle_; }
  // What names it for good, of its device: 0 for the default stream of a thread, which is another
  // one in each.
  uint64_t key() const { return key_; }

  // "CUDA stream 0x7f31c0002a80"
  std::string Describe() const;
  // What `result` of `call` with it means.
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

// The device of the context that is current in this thread, or else of one that the process uses;
// of which does not matter to calls that work in any context. InvalidArgument: it uses none.
absl::StatusOr<int> SomeDeviceInUse(const Driver& driver);

}  // namespace kvxfer::cuda

#endif  // KVXFER_CUDA_APP_STREAM_H_
