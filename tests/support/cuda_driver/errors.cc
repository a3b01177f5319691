#include "tests/support/cuda_driver/errors.h"

#include <algorithm>
#include <iterator>

#include "tests/support/cuda_driver/call.h"

namespace kvxfer::testing::cuda_driver {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): what is implemented here

namespace {

#define KVXFER_STANDIN_ERROR(code, words) \
  { code, #code, words }
constexpr ErrorText kErrors[] = {
    KVXFER_STANDIN_ERROR(CUDA_SUCCESS, "no error"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_INVALID_VALUE, "invalid argument"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_OUT_OF_MEMORY, "out of memory"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_NOT_INITIALIZED, "initialization error"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_DEINITIALIZED, "driver shutting down"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_STUB_LIBRARY, "CUDA driver is a stub library"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE,
                         "CUDA-capable device(s) is/are busy or unavailable"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_NO_DEVICE, "no CUDA-capable device is detected"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_INVALID_DEVICE, "invalid device ordinal"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_INVALID_IMAGE, "device kernel image is invalid"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_INVALID_CONTEXT, "invalid device context"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_MAP_FAILED, "mapping of buffer object failed"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_ALREADY_MAPPED, "resource already mapped"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU, "no kernel image for this device"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE, "uncorrectable ECC error encountered"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED,
                         "peer access is not supported between these two devices"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_INVALID_PTX, "a PTX JIT compilation failed"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_NVLINK_UNCORRECTABLE, "uncorrectable NVLink error detected"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
                         "the provided PTX was compiled with an unsupported toolchain"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_OPERATING_SYSTEM, "OS call failed"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_INVALID_HANDLE, "invalid resource handle"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_NOT_FOUND, "named symbol not found"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_NOT_READY, "device not ready"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS, "an illegal memory access was encountered"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "peer access is already enabled"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is destroyed"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_TOO_MANY_PEERS, "peer mapping resources exhausted"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
                         "part or all of the requested memory range is already mapped"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
                         "pointer does not correspond to a registered memory region"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_HARDWARE_STACK_ERROR, "hardware stack error"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_MISALIGNED_ADDRESS, "misaligned address"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_LAUNCH_FAILED, "unspecified launch failure"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_NOT_PERMITTED, "operation not permitted"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_NOT_SUPPORTED, "operation not supported"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_SYSTEM_NOT_READY, "system not yet initialized"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH,
                         "system has unsupported display driver / cuda driver combination"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE,
                         "forward compatibility was attempted on non supported HW"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
                         "operation would make the legacy stream depend on a capturing blocking "
                         "stream"),
    KVXFER_STANDIN_ERROR(CUDA_ERROR_UNKNOWN, "unknown error"),
};

}  // namespace

const ErrorText* FindError(CUresult code) {
  const auto* const found = std::ranges::find(kErrors, code, &ErrorText::code);
  return found == std::end(kErrors) ? nullptr : found;
}

std::optional<CUresult> ErrorNamed(std::string_view name) {
  const auto* const found =
      std::ranges::find_if(kErrors, [&](const ErrorText& error) { return name == error.name; });
  if (found == std::end(kErrors)) return std::nullopt;
  return found->code;
}

extern "C" CUresult cuGetErrorName(CUresult error, const char** text) {
  KVXFER_STANDIN_ENTER(cuGetErrorName, kNothing);
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* const found = FindError(error);
  *text = found == nullptr ? nullptr : found->name;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

extern "C" CUresult cuGetErrorString(CUresult error, const char** text) {
  KVXFER_STANDIN_ENTER(cuGetErrorString, kNothing);
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ErrorText* const found = FindError(error);
  *text = found == nullptr ? nullptr : found->words;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
