#include "tests/support/cuda_driver/place.h"

namespace kvxfer::testing::cuda_driver {
namespace {

void Take(const std::vector<Range*>& cover, uint64_t at, Place* place) {
  place->data = cover.front()->alias + (at - cover.front()->at);
  for (const Range* range : cover) {
    if (range->view != nullptr) place->keep.push_back(range->view);
  }
}

}  // namespace

bool MayReach(State* state, const Range& range, int device) {
  switch (range.kind) {
    case RangeKind::kHost:
    case RangeKind::kManaged:
      return true;
    case RangeKind::kVirtual:
      return (range.readers & range.writers & (1u << device)) != 0;
    case RangeKind::kDevice:
    case RangeKind::kPool:
    case RangeKind::kIpc:
      break;
  }
  return range.device == device || state->FindDevice(device)->context.peers.contains(range.device);
}

bool FindPlace(State* state, uint64_t at, size_t bytes, int device, Place* place) {
  const std::vector<Range*> cover = state->memory.Cover(at, bytes);
  if (cover.empty()) return false;
  for (const Range* range : cover) {
    if (!MayReach(state, *range, device)) return false;
  }
  Take(cover, at, place);
  return true;
}

CUresult FindCopyPlace(State* state, uint64_t at, size_t bytes, int device, Place* place) {
  if (state->memory.Overlaps(at, bytes)) {
    const std::vector<Range*> cover = state->memory.Cover(at, bytes);
    if (cover.empty()) return CUDA_ERROR_INVALID_VALUE;
    for (const Range* range : cover) {
      if (range->kind == RangeKind::kVirtual && !MayReach(state, *range, device)) {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    Take(cover, at, place);
    return CUDA_SUCCESS;
  }
  place->data = reinterpret_cast<std::byte*>(at);
  place->pageable = true;
  return Readable(place->data, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace kvxfer::testing::cuda_driver
