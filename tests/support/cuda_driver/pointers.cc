// What is known of an address: cuPointerGetAttribute, cuMemGetAddressRange.
#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

template <typename Value>
CUresult Give(void* out, Value value) {
  *static_cast<Value*>(out) = value;
  return CUDA_SUCCESS;
}
// How the driver writes a boolean.
CUresult GiveBool(void* out, bool value) { return Give<unsigned>(out, value ? 1 : 0); }

// Of memory that is reserved and not mapped nearly nothing is known.
CUresult OfReservation(const View& view, CUpointer_attribute attribute, void* out) {
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Give<CUdeviceptr>(out, view.address());
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Give<size_t>(out, view.bytes());
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return GiveBool(out, false);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

const View* FindReservation(const State& state, uint64_t at) {
  auto next = state.reservations.upper_bound(at);
  if (next == state.reservations.begin()) return nullptr;
  const View& view = *std::prev(next)->second;
  return at < view.address() + view.bytes() ? &view : nullptr;
}

// Who may do what with it from the current context, or from its own device.
int AccessFlags(State* state, const Range& range) {
  const std::vector<Context*>& stack = ContextStack();
  const int device = stack.empty() ? range.device : stack.back()->device;
  if (!MayReach(state, range, device)) return CU_MEM_ACCESS_FLAGS_PROT_NONE;
  return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

CUresult OfRange(State* state, const Range& range, CUpointer_attribute attribute, uint64_t at,
                 void* out) {
  const bool host = range.kind == RangeKind::kHost;
  const bool touchable = host || range.kind == RangeKind::kManaged;
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
      return Give<CUcontext>(out, range.context == nullptr ? nullptr : range.context->handle());
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      return Give<unsigned>(out, host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE);
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (ContextStack().empty()) return CUDA_ERROR_INVALID_CONTEXT;
      return Give<CUdeviceptr>(out, at);
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
      if (!touchable) return CUDA_ERROR_INVALID_VALUE;
      return Give<void*>(out, reinterpret_cast<void*>(at));
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
      return GiveBool(out, range.sync_memops);
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
      return Give<unsigned long long>(out, range.buffer_id);  // NOLINT(google-runtime-int)
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
      return GiveBool(out, range.kind == RangeKind::kManaged);
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
      return Give<int>(out, range.device);
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
      return GiveBool(out, range.kind == RangeKind::kDevice);
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
      return Give<CUdeviceptr>(
          out, range.kind == RangeKind::kVirtual ? range.view->address() : range.at);
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
      return Give<size_t>(out,
                          range.kind == RangeKind::kVirtual ? range.view->bytes() : range.bytes);
    case CU_POINTER_ATTRIBUTE_MAPPED:
      return GiveBool(out, true);
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
      return Give<uint64_t>(out, host ? 0 : range.physical->handle_types);
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
      return GiveBool(out, MayGiveToNic(state, range));
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
      return Give<int>(out, AccessFlags(state, range));
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
      return Give<CUmemoryPool>(
          out,
          range.kind == RangeKind::kPool
              ? ToHandle<CUmemoryPool>((uint64_t{1} << 40) + static_cast<uint64_t>(range.device))
              : nullptr);
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

extern "C" CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute,
                                          CUdeviceptr at) {
  KVXFER_STANDIN_ENTER(cuPointerGetAttribute, kInit);
  if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
  State& state = call.state();
  if (const Range* const range = state.memory.Find(at); range != nullptr) {
    return OfRange(&state, *range, attribute, at, value);
  }
  const View* const view = FindReservation(state, at);
  return view == nullptr ? CUDA_ERROR_INVALID_VALUE : OfReservation(*view, attribute, value);
}

extern "C" CUresult cuPointerSetAttribute(const void* value, CUpointer_attribute attribute,
                                          CUdeviceptr at) {
  KVXFER_STANDIN_ENTER(cuPointerSetAttribute, kContext);
  Range* const range = call.state().memory.Find(at);
  if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || range == nullptr ||
      range->kind != RangeKind::kDevice) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  range->sync_memops = *static_cast<const unsigned*>(value) != 0;
  return CUDA_SUCCESS;
}

extern "C" CUresult cuMemGetAddressRange_v2(CUdeviceptr* base, size_t* bytes, CUdeviceptr at) {
  KVXFER_STANDIN_ENTER(cuMemGetAddressRange_v2, kContext);
  const Range* const range = call.state().memory.Find(at);
  if (range == nullptr) return CUDA_ERROR_NOT_FOUND;
  // The real driver does not say it of managed memory.
  if (range->kind == RangeKind::kManaged) return CUDA_ERROR_INVALID_VALUE;
  if (base != nullptr) *base = range->at;
  if (bytes != nullptr) *bytes = range->bytes;
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
