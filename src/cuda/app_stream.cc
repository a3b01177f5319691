#include "src/cuda/app_stream.h"

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

namespace {

constexpr uint64_t kPerThread = 2;
// CU_STREAM_LEGACY (1 or 0) and CU_STREAM_PER_THREAD (2) are not pointers.
constexpr bool IsDefault(uint64_t handle) { return handle <= kPerThread; }

// Both values of the legacy default stream give one key.
uint64_t KeyOf(uint64_t handle) {
  if (handle == kPerThread) return 0;
  return handle == 0 ? 1 : handle;
}

}  // namespace

AppStream::AppStream(const CudaStream& stream)
    : handle_(reinterpret_cast<CUstream>(stream.handle)),
      key_(KeyOf(stream.handle)),
      status_(Open(stream)) {}

absl::Status AppStream::Open(const CudaStream& stream) {
  const auto driver = Driver::Get();
  if (!driver.ok()) return driver.status();
  driver_ = *driver;
  const auto ordinal = FindDevice(stream);
  if (!ordinal.ok()) return ordinal.status();
  const auto device = driver_->device(*ordinal);
  if (!device.ok()) return device.status();
  device_ = *device;
  scope_.emplace(*driver_, *ordinal, ContextScope::For::kQueueing);
  if (!scope_->status().ok()) return scope_->status();
  return CheckNotCapturing();
}

absl::StatusOr<int> AppStream::FindDevice(const CudaStream& stream) const {
  if (IsDefault(stream.handle)) {
    return stream.device >= 0 ? absl::StatusOr<int>(stream.device) : CurrentDevice();
  }
  // A default stream belongs to the current context, so its handle does not identify a device.
  CUcontext context = nullptr;
  const CUresult asked = driver_->calls().cuStreamGetCtx(handle_, &context);
  if (asked != CUDA_SUCCESS) return Error(asked, "cuStreamGetCtx");
  const std::optional<int> primary = driver_->FindContext(context);
  absl::StatusOr<int> device =
      primary.has_value() ? absl::StatusOr<int>(*primary) : DeviceOf(context);
  if (!device.ok()) return device;
  if (stream.device >= 0 && stream.device != *device) {
    return absl::InvalidArgumentError(absl::StrCat(Describe(), " is of GPU ", *device,
                                                   ", and was said to be of GPU ", stream.device,
                                                   "; CudaStream::device -1 takes its own"));
  }
  if (primary.has_value()) return device;
  if (auto status = CheckPrimary(context, *device); !status.ok()) return status;
  return device;
}

absl::StatusOr<int> AppStream::DeviceOf(CUcontext context) const {
  const Calls& calls = driver_->calls();
  const CUresult pushed = calls.cuCtxPushCurrent_v2(context);
  if (pushed != CUDA_SUCCESS) return Error(pushed, "cuCtxPushCurrent");
  CUdevice device = -1;
  const CUresult asked = calls.cuCtxGetDevice(&device);
  CUcontext popped = nullptr;
  calls.cuCtxPopCurrent_v2(&popped);
  if (asked != CUDA_SUCCESS) return Error(asked, "cuCtxGetDevice");
  return device;
}

// The device of a default stream: that of the current context.
absl::StatusOr<int> AppStream::CurrentDevice() const {
  CUcontext context = nullptr;
  CUdevice device = -1;
  const bool current =
      driver_->calls().cuCtxGetCurrent(&context) == CUDA_SUCCESS && context != nullptr;
  if (const auto primary = driver_->FindContext(context); primary.has_value()) return *primary;
  if (!current || driver_->calls().cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(),
                     " is the default stream of the current device, and this thread "
                     "has none; say which device: CudaStream::device"));
  }
  if (auto status = CheckPrimary(context, device); !status.ok()) return status;
  return device;
}

absl::Status AppStream::CheckPrimary(CUcontext context, int device) const {
  unsigned flags = 0;
  int active = 0;
  const CUresult asked = driver_->calls().cuDevicePrimaryCtxGetState(device, &flags, &active);
  if (asked != CUDA_SUCCESS) return Error(asked, "cuDevicePrimaryCtxGetState");
  // Asked only if the primary context is active, because retaining it would otherwise create it.
  if (active != 0) {
    const auto primary = driver_->Context(device);
    if (!primary.ok()) return primary.status();
    if (*primary == context) return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      Describe(), " is of a context of GPU ", device,
      " that is not its primary one; take a stream of the primary context, as the runtime API and "
      "PyTorch do (cuDevicePrimaryCtxRetain)"));
}

absl::Status AppStream::CheckNotCapturing() const {
  const auto ask = driver_->calls().cuStreamIsCapturing;
  if (ask == nullptr) return absl::OkStatus();
  CUstreamCaptureStatus captures = CU_STREAM_CAPTURE_STATUS_NONE;
  const CUresult asked = ask(handle_, &captures);
  // A legacy default stream is ordered with every blocking stream, and one of those is being
  // captured.
  const bool implicit = asked == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  if (asked != CUDA_SUCCESS && !implicit) return Error(asked, "cuStreamIsCapturing");
  if (captures == CU_STREAM_CAPTURE_STATUS_NONE && !implicit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Describe(),
                   " is being captured into a CUDA graph, which a transfer cannot be a "
                   "part of; post it, and wait for it, outside of the capture"));
}

std::string AppStream::Describe() const {
  return absl::StrCat("CUDA stream 0x", absl::Hex(reinterpret_cast<uint64_t>(handle_)));
}

absl::Status AppStream::Error(CUresult result, const char* call) const {
  const bool none = result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_INVALID_VALUE ||
                    result == CUDA_ERROR_INVALID_CONTEXT;
  if (none) {
    return absl::InvalidArgumentError(
        absl::StrCat(Describe(), " is no stream of this process, or was destroyed (", call, ")"));
  }
  return Annotate(driver_->Error(result, call), Describe());
}

absl::StatusOr<int> SomeDeviceInUse(const Driver& driver) {
  CUdevice device = -1;
  if (driver.calls().cuCtxGetDevice(&device) == CUDA_SUCCESS) return device;
  for (const Device& one : driver.devices()) {
    unsigned flags = 0;
    int active = 0;
    const CUresult asked = driver.calls().cuDevicePrimaryCtxGetState(one.ordinal, &flags, &active);
    if (asked == CUDA_SUCCESS && active != 0) return one.ordinal;
  }
  return absl::InvalidArgumentError("a CUDA event, and this process uses no GPU");
}

}  // namespace kvxfer::cuda
