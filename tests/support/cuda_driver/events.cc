// cuEvent..., cuStreamWaitEvent.
#include "tests/support/cuda_driver/call.h"

namespace kvxfer::testing::cuda_driver {
namespace {

Event* FindEvent(State* state, CUevent handle) {
  const auto found = state->events.find(ToId(handle));
  return found == state->events.end() ? nullptr : &found->second;
}

}  // namespace

extern "C" CUresult cuEventCreate(CUevent* event, unsigned flags) {
  KVXFER_STANDIN_ENTER(cuEventCreate, kContext);
  // Blocking synchronisation is 1, no times 2; 4 is for other processes and needs 2.
  if (event == nullptr || flags > 3) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t id = call.state().NewId();
  call.state().events.emplace(id, Event{.context = &call.context()});
  *event = ToHandle<CUevent>(id);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuEventDestroy_v2(CUevent event) {
  KVXFER_STANDIN_ENTER(cuEventDestroy_v2, kContext);
  if (call.state().events.erase(ToId(event)) == 0) return CUDA_ERROR_INVALID_HANDLE;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuEventRecord(CUevent event, CUstream stream) {
  KVXFER_STANDIN_ENTER(cuEventRecord, kContext);
  Event* const found = FindEvent(&call.state(), event);
  Stream* const at = FindStream(&call.state(), &call.context(), stream, "cuEventRecord");
  if (found == nullptr || at == nullptr || found->context != &at->context()) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  found->recorded = at->Enqueue(nullptr);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuEventQuery(CUevent event) {
  KVXFER_STANDIN_ENTER(cuEventQuery, kContext);
  const Event* const found = FindEvent(&call.state(), event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->context->sticky != CUDA_SUCCESS) return found->context->sticky;
  return found->recorded == nullptr || found->recorded->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

extern "C" CUresult cuEventSynchronize(CUevent event) {
  KVXFER_STANDIN_ENTER(cuEventSynchronize, kContext);
  State& state = call.state();
  const Event* const found = FindEvent(&state, event);
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const Context& context = *found->context;
  const std::shared_ptr<Operation> recorded = found->recorded;
  if (recorded != nullptr) {
    state.changed.wait(call.lock(), [&] { return recorded->done || state.ended; });
  }
  return context.sticky;
}

extern "C" CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  KVXFER_STANDIN_ENTER(cuStreamWaitEvent, kContext);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  const Event* const found = FindEvent(&call.state(), event);
  Stream* const at = FindStream(&call.state(), &call.context(), stream, "cuStreamWaitEvent");
  if (found == nullptr || at == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (found->recorded == nullptr || found->recorded->done) return CUDA_SUCCESS;
  at->Enqueue(nullptr, {found->recorded});
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
