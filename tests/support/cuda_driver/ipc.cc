// cuIpc...MemHandle: memory of cuMemAlloc in other processes.
#include <unistd.h>

#include <cstring>
#include <utility>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"
#include "tests/support/cuda_driver/shared_memory.h"

namespace kvxfer::testing::cuda_driver {
namespace {

constexpr size_t kAlignment = size_t{2} << 20;

// What this context has open of it already, or null.
Range* FindOpened(State* state, const Context& context, const MemoryName& name) {
  Range* opened = nullptr;
  state->memory.ForEach([&](Range& range) {
    if (range.kind == RangeKind::kIpc && range.context == &context &&
        range.physical->inode == name.inode) {
      opened = &range;
    }
  });
  return opened;
}

// Whether the current context may use memory of that device; makes it so where the flags ask for
// it.
CUresult ReachDevice(Call* call, int device, unsigned flags) {
  if (device == call->context().device) return CUDA_SUCCESS;
  const Device& owner = *call->state().FindDevice(device);
  if (!CanReach(call->device(), owner)) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  if ((flags & CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0) call->context().peers.insert(device);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr at) {
  KVXFER_STANDIN_ENTER(cuIpcGetMemHandle, kContext);
  State& state = call.state();
  const Range* const range = state.memory.Find(at);
  if (handle == nullptr || range == nullptr || range->kind != RangeKind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!Has(&state, call.device(), CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED)) {
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  MemoryName name = NameOf(state, kIpcName, *range->physical);
  name.offset = range->at - range->view->address();
  name.bytes = range->bytes;
  *handle = {};
  std::memcpy(handle, &name, sizeof(name));
  return CUDA_SUCCESS;
}

extern "C" CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* at, CUipcMemHandle handle, unsigned flags) {
  KVXFER_STANDIN_ENTER(cuIpcOpenMemHandle_v2, kContext);
  State& state = call.state();
  MemoryName name{};
  std::memcpy(&name, &handle, sizeof(name));
  if (at == nullptr || name.magic != kIpcName || flags > CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (name.incarnation == state.incarnation) return CUDA_ERROR_INVALID_CONTEXT;
  if (Range* const opened = FindOpened(&state, call.context(), name); opened != nullptr) {
    ++opened->opened;
    *at = opened->at;
    return CUDA_SUCCESS;
  }
  const std::shared_ptr<Physical> physical = OpenNamed(&state, name);
  if (physical == nullptr) return CUDA_ERROR_MAP_FAILED;
  if (physical->device < 0) return CUDA_ERROR_INVALID_DEVICE;
  if (name.bytes == 0 || name.offset > physical->bytes ||
      name.bytes > physical->bytes - name.offset) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult reach = ReachDevice(&call, physical->device, flags);
  if (reach != CUDA_SUCCESS) return reach;
  const std::shared_ptr<View> view = View::Reserve(physical->bytes, kAlignment);
  if (view == nullptr || !view->Map(0, *physical, physical->bytes)) return CUDA_ERROR_MAP_FAILED;
  close(std::exchange(physical->fd, -1));  // the mapping keeps it
  *at = view->address() + name.offset;
  state.memory.Add({.at = *at,
                    .bytes = name.bytes,
                    .kind = RangeKind::kIpc,
                    .device = physical->device,
                    .context = &call.context(),
                    .buffer_id = state.next_buffer++,
                    .alias = view->alias() + name.offset,
                    .view = view,
                    .physical = physical,
                    .opened = 1});
  return CUDA_SUCCESS;
}

extern "C" CUresult cuIpcCloseMemHandle(CUdeviceptr at) {
  KVXFER_STANDIN_ENTER(cuIpcCloseMemHandle, kContext);
  State& state = call.state();
  const auto find = [&]() -> Range* {
    Range* const range = state.memory.Find(at);
    const bool ours = range != nullptr && range->kind == RangeKind::kIpc && range->at == at;
    return ours ? range : nullptr;
  };
  Range* range = find();
  if (range == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (--range->opened > 0) return CUDA_SUCCESS;
  WaitIdle(&state, &call.lock(), *range->context);
  range = find();  // the lock was free
  if (range != nullptr && range->opened <= 0) state.memory.Erase(at);
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
