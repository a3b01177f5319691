// cuStream..., cuLaunchHostFunc.
#include <algorithm>
#include <utility>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

thread_local bool in_host_function = false;

// Those that are through are joined now.
void Reap(State* state, Lock* lock) {
  std::vector<std::shared_ptr<Stream>> finished;
  std::erase_if(state->leaving, [&](const std::shared_ptr<Stream>& stream) {
    if (!stream->finished()) return false;
    finished.push_back(stream);
    return true;
  });
  lock->unlock();
  for (const auto& stream : finished) stream->Join();
}

bool Holds(uint32_t word, uint32_t value, unsigned flags) {
  if (flags == CU_STREAM_WAIT_VALUE_EQ) return word == value;
  return static_cast<int32_t>(word - value) >= 0;
}

// The word of memory, for one look at it.
CUresult WordOf(State* state, int device, CUdeviceptr at, Place* place) {
  const Lock lock(state->mutex);
  return FindPlace(state, at, sizeof(uint32_t), device, place) ? CUDA_SUCCESS
                                                               : CUDA_ERROR_ILLEGAL_ADDRESS;
}

CUresult WaitForWord(State* state, const Context& context, CUdeviceptr at, uint32_t value,
                     unsigned flags) {
  for (;;) {
    Place place;
    const CUresult found = WordOf(state, context.device, at, &place);
    if (found != CUDA_SUCCESS) return found;
    const std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(place.data));
    if (Holds(word.load(std::memory_order_acquire), value, flags)) return CUDA_SUCCESS;
    {
      const Lock lock(state->mutex);
      if (state->ended || context.retained == 0 || context.sticky != CUDA_SUCCESS) {
        return CUDA_SUCCESS;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// Common to waiting and writing.
CUresult CheckWord(Call* call, CUdeviceptr at) {
  if (!Has(&call->state(), call->device(), CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const Range* const range = call->state().memory.Find(at);
  if (at % sizeof(uint32_t) != 0 || range == nullptr || range->kind == RangeKind::kManaged) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

}  // namespace

bool InHostFunction() { return in_host_function; }

// The numbers of today's GPUs; here no stream goes before another.
extern "C" CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  KVXFER_STANDIN_ENTER(cuCtxGetStreamPriorityRange, kContext);
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int /*priority*/) {
  KVXFER_STANDIN_ENTER(cuStreamCreateWithPriority, kContext);
  if (stream == nullptr || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  const uint64_t id = state.NewId();
  const auto kind =
      flags == CU_STREAM_NON_BLOCKING ? Stream::Kind::kNonBlocking : Stream::Kind::kBlocking;
  state.streams.emplace(id,
                        std::make_shared<Stream>(&state, &call.context(), kind,
                                                 static_cast<uint64_t>(state.config.seed) + id));
  *stream = ToHandle<CUstream>(id);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuStreamDestroy_v2(CUstream stream) {
  KVXFER_STANDIN_ENTER(cuStreamDestroy_v2, kContext);
  State& state = call.state();
  const auto found = state.streams.find(ToId(stream));
  if (found == state.streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  found->second->Close(false);
  state.leaving.push_back(std::move(found->second));
  state.streams.erase(found);
  Reap(&state, &call.lock());
  return CUDA_SUCCESS;
}

extern "C" CUresult cuStreamQuery(CUstream stream) {
  KVXFER_STANDIN_ENTER(cuStreamQuery, kContext);
  const Stream* const found = FindStream(&call.state(), &call.context(), stream, "cuStreamQuery");
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return found->idle() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

extern "C" CUresult cuStreamSynchronize(CUstream stream) {
  KVXFER_STANDIN_ENTER(cuStreamSynchronize, kContext);
  State& state = call.state();
  const Stream* const found = FindStream(&state, &call.context(), stream, "cuStreamSynchronize");
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const std::shared_ptr<Operation> last = found->last();
  if (last != nullptr) {
    state.changed.wait(call.lock(), [&] { return last->done || state.ended; });
  }
  return call.context().sticky;
}

extern "C" CUresult cuStreamGetCtx(CUstream stream, CUcontext* context) {
  KVXFER_STANDIN_ENTER(cuStreamGetCtx, kInit);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<uint64_t>(stream) <= 2) {
    const std::vector<Context*>& stack = ContextStack();
    if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
    *context = stack.back()->handle();
    return CUDA_SUCCESS;
  }
  const auto found = call.state().streams.find(ToId(stream));
  if (found == call.state().streams.end()) return CUDA_ERROR_INVALID_HANDLE;
  *context = found->second->context().handle();
  return CUDA_SUCCESS;
}

extern "C" CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* user) {
  KVXFER_STANDIN_ENTER(cuLaunchHostFunc, kContext);
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Stream* const found = FindStream(&call.state(), &call.context(), stream, "cuLaunchHostFunc");
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  found->Enqueue([function, user] {
    in_host_function = true;
    function(user);
    in_host_function = false;
    return CUDA_SUCCESS;
  });
  return CUDA_SUCCESS;
}

extern "C" CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value,
                                           unsigned flags) {
  KVXFER_STANDIN_ENTER(cuStreamWaitValue32_v2, kContext);
  if (flags > CU_STREAM_WAIT_VALUE_EQ) return CUDA_ERROR_INVALID_VALUE;
  const CUresult fit = CheckWord(&call, at);
  if (fit != CUDA_SUCCESS) return fit;
  Stream* const found =
      FindStream(&call.state(), &call.context(), stream, "cuStreamWaitValue32_v2");
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  found->Enqueue([state = &call.state(), context = &call.context(), at, value, flags] {
    return WaitForWord(state, *context, at, value, flags);
  });
  return CUDA_SUCCESS;
}

extern "C" CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr at, uint32_t value,
                                            unsigned flags) {
  KVXFER_STANDIN_ENTER(cuStreamWriteValue32_v2, kContext);
  if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
  const CUresult fit = CheckWord(&call, at);
  if (fit != CUDA_SUCCESS) return fit;
  Stream* const found =
      FindStream(&call.state(), &call.context(), stream, "cuStreamWriteValue32_v2");
  if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const auto written =
      found->Enqueue([state = &call.state(), device = call.context().device, at, value] {
        Place place;
        const CUresult word = WordOf(state, device, at, &place);
        if (word != CUDA_SUCCESS) return word;
        std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(place.data))
            .store(value, std::memory_order_release);
        return CUDA_SUCCESS;
      });
  AwaitIfAtOnce(&call.state(), &call.lock(), *written);
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
