// What is known of graphs: that a stream is being captured (a hook says so), and that calls which
// do not belong to the graph spoil it, from whichever thread, unless that thread has said that it
// knows what it does.
#include <utility>

#include "tests/support/cuda_driver/call.h"

namespace kvxfer::testing::cuda_driver {
namespace {

constexpr CUresult kUnsupported{900};  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
constexpr CUresult kInvalidated{901};  // CUDA_ERROR_STREAM_CAPTURE_INVALIDATED

thread_local CUstreamCaptureMode mode_of_thread = CU_STREAM_CAPTURE_MODE_GLOBAL;

// Potentially unsafe, as the driver calls it; not all of those.
bool IsUnsafe(Function function) {
  switch (function) {
    case Function::cuEventQuery:
    case Function::cuEventSynchronize:
    case Function::cuStreamQuery:
    case Function::cuStreamSynchronize:
    case Function::cuMemAlloc_v2:
    case Function::cuMemFree_v2:
    case Function::cuMemHostRegister_v2:
    case Function::cuMemHostUnregister:
    case Function::cuMemcpyHtoD_v2:
    case Function::cuMemcpyDtoH_v2:
    case Function::cuModuleLoadData:
      return true;
    default:
      return false;
  }
}

}  // namespace

CUresult CheckCapture(State* state, Function function) {
  const bool harmless = state->capturing.empty() || !IsUnsafe(function) ||
                        mode_of_thread != CU_STREAM_CAPTURE_MODE_GLOBAL;
  if (harmless) return CUDA_SUCCESS;
  state->capture_spoilt = true;
  return kUnsupported;
}

extern "C" CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  KVXFER_STANDIN_ENTER(cuThreadExchangeStreamCaptureMode, kInit);
  if (mode == nullptr || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::swap(*mode, mode_of_thread);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  KVXFER_STANDIN_ENTER(cuStreamIsCapturing, kContext);
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const auto found = call.state().capturing.find(ToId(stream));
  *status = found == call.state().capturing.end() ? CU_STREAM_CAPTURE_STATUS_NONE
                                                  : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return CUDA_SUCCESS;
}

extern "C" int kvxfer_standin_capture(CUstream stream, int capturing) {
  State& state = TheState();
  const Lock lock(state.mutex);
  if (!state.streams.contains(ToId(stream))) return CUDA_ERROR_INVALID_HANDLE;
  if (capturing != 0) {
    state.capturing.insert(ToId(stream));
    return CUDA_SUCCESS;
  }
  state.capturing.erase(ToId(stream));
  return std::exchange(state.capture_spoilt, false) ? kInvalidated : CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
