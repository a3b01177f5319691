// Primary contexts, and which are current in a thread.
#include <algorithm>
#include <iterator>
#include <utility>

#include "tests/support/cuda_driver/call.h"

namespace kvxfer::testing::cuda_driver {
namespace {

template <typename Map, typename Ours>
void EraseIf(Map* map, Ours ours) {
  for (auto entry = map->begin(); entry != map->end();) {
    entry = ours(entry->second) ? map->erase(entry) : std::next(entry);
  }
}

// Forgets all that belongs to the context. Its streams end first, without the lock.
void Reset(State* state, Lock* lock, Context* context) {
  std::vector<std::shared_ptr<Stream>> streams;
  const auto take = [&](const std::shared_ptr<Stream>& stream) {
    if (stream == nullptr || &stream->context() != context) return false;
    stream->Close(true);
    streams.push_back(stream);
    return true;
  };
  EraseIf(&state->streams, take);
  EraseIf(&context->thread_streams, take);
  take(std::exchange(context->default_stream, nullptr));
  std::erase_if(state->leaving, take);
  EraseIf(&state->events, [&](const Event& event) { return event.context == context; });
  EraseIf(&state->kernels, [&](const Kernel& kernel) {
    return state->modules.at(kernel.module).context == context;
  });
  EraseIf(&state->modules, [&](const Module& module) { return module.context == context; });
  std::vector<uint64_t> ranges;
  state->memory.ForEach([&](const Range& range) {
    const bool pool = range.kind == RangeKind::kPool && range.device == context->device;
    if (pool || range.context == context) ranges.push_back(range.at);
  });
  for (const uint64_t at : ranges) state->memory.Erase(at);
  context->peers.clear();
  context->sticky = CUDA_SUCCESS;
  lock->unlock();
  for (const auto& stream : streams) stream->Join();
}

}  // namespace

extern "C" CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  KVXFER_STANDIN_ENTER(cuDevicePrimaryCtxRetain, kInit);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Device* const found = call.state().FindDevice(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  ++found->context.retained;
  *context = found->context.handle();
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  KVXFER_STANDIN_ENTER(cuDevicePrimaryCtxRelease_v2, kInit);
  Device* const found = call.state().FindDevice(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  if (found->context.retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--found->context.retained == 0) Reset(&call.state(), &call.lock(), &found->context);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  KVXFER_STANDIN_ENTER(cuDevicePrimaryCtxGetState, kInit);
  if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Device* const found = call.state().FindDevice(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = found->context.retained > 0 ? 1 : 0;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxPushCurrent_v2(CUcontext context) {
  KVXFER_STANDIN_ENTER(cuCtxPushCurrent_v2, kInit);
  Context* const found = call.state().FindContext(context);
  if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  ContextStack().push_back(found);
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  KVXFER_STANDIN_ENTER(cuCtxPopCurrent_v2, kInit);
  std::vector<Context*>& stack = ContextStack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context != nullptr) *context = stack.back()->handle();
  stack.pop_back();
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxGetCurrent(CUcontext* context) {
  KVXFER_STANDIN_ENTER(cuCtxGetCurrent, kInit);
  if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<Context*>& stack = ContextStack();
  *context = stack.empty() ? nullptr : stack.back()->handle();
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxSetCurrent(CUcontext context) {
  KVXFER_STANDIN_ENTER(cuCtxSetCurrent, kInit);
  std::vector<Context*>& stack = ContextStack();
  if (context == nullptr) {
    if (!stack.empty()) stack.pop_back();
    return CUDA_SUCCESS;
  }
  Context* const found = call.state().FindContext(context);
  if (found == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (stack.empty()) stack.push_back(found);
  stack.back() = found;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxGetDevice(CUdevice* device) {
  KVXFER_STANDIN_ENTER(cuCtxGetDevice, kInit);
  if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const std::vector<Context*>& stack = ContextStack();
  if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  *device = stack.back()->device;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
  KVXFER_STANDIN_ENTER(cuCtxEnablePeerAccess, kContext);
  const Context* const found = call.state().FindContext(peer);
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (found == nullptr || found->retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  // A device is no peer of itself.
  if (found == &call.context() ||
      !CanReach(call.device(), *call.state().FindDevice(found->device))) {
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  return call.context().peers.insert(found->device).second ? CUDA_SUCCESS
                                                           : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
}

}  // namespace kvxfer::testing::cuda_driver
