// What tests may ask: hooks.h.
#include <algorithm>

#include "tests/support/cuda_driver/call.h"
#include "tests/support/cuda_driver/place.h"
#include "tests/support/cuda_driver/shared_memory.h"

namespace kvxfer::testing::cuda_driver {
namespace {

void Count(const Range& range, LiveObjects* objects) {
  switch (range.kind) {
    case RangeKind::kDevice:
    case RangeKind::kPool:
    case RangeKind::kManaged:
      ++objects->allocations;
      break;
    case RangeKind::kVirtual:
      ++objects->mappings;
      break;
    case RangeKind::kIpc:
      ++objects->ipc_mappings;
      break;
    case RangeKind::kHost:
      ++objects->pinned;
      break;
  }
}

}  // namespace

extern "C" std::byte* kvxfer_standin_alias(uint64_t at, uint64_t bytes) {
  State& state = TheState();
  const Lock lock(state.mutex);
  const std::vector<Range*> cover = state.memory.Cover(at, bytes);
  if (cover.empty() || cover.front()->kind == RangeKind::kHost) return nullptr;
  return cover.front()->alias + (at - cover.front()->at);
}

extern "C" int kvxfer_standin_fail(const char* name, int nth, int error) {
  State& state = TheState();
  const Lock lock(state.mutex);
  const std::optional<Function> function = FunctionNamed(name);
  if (!function.has_value() || nth < 0) return CUDA_ERROR_INVALID_VALUE;
  state.faults.Add(*function, nth, static_cast<CUresult>(error));
  return CUDA_SUCCESS;
}

extern "C" void kvxfer_standin_fail_async(int nth, int error) {
  State& state = TheState();
  const Lock lock(state.mutex);
  state.faults.AddAsync(nth, static_cast<CUresult>(error));
}

extern "C" void kvxfer_standin_fail_none() {
  State& state = TheState();
  const Lock lock(state.mutex);
  state.faults.Clear();
}

extern "C" uint64_t kvxfer_standin_calls(const char* name) {
  State& state = TheState();
  const Lock lock(state.mutex);
  if (name == nullptr) return state.faults.all_calls();
  const std::optional<Function> function = FunctionNamed(name);
  return function.has_value() ? state.faults.calls(*function) : 0;
}

extern "C" uint64_t kvxfer_standin_default_stream_uses() {
  State& state = TheState();
  const Lock lock(state.mutex);
  return state.default_stream_uses;
}

extern "C" uint64_t kvxfer_standin_pageable_copies() {
  State& state = TheState();
  const Lock lock(state.mutex);
  return state.pageable_copies;
}

extern "C" void kvxfer_standin_live(LiveObjects* objects) {
  State& state = TheState();
  const Lock lock(state.mutex);
  *objects = {};
  for (const Device& device : state.devices) {
    objects->contexts += device.context.retained > 0 ? 1 : 0;
    objects->retains += device.context.retained;
  }
  state.memory.ForEach([&](const Range& range) { Count(range, objects); });
  DropDmabufs(&state);
  objects->reservations = state.reservations.size();
  objects->handles = static_cast<uint64_t>(std::ranges::count_if(
      state.handles, [](const auto& entry) { return entry.second.references > 0; }));
  objects->streams = state.streams.size();
  objects->events = state.events.size();
  objects->modules = state.modules.size();
  objects->dmabufs = state.dmabufs.size();
}

extern "C" void kvxfer_standin_pause(int paused) {
  State& state = TheState();
  const Lock lock(state.mutex);
  state.paused = paused != 0;
  state.changed.notify_all();
}

extern "C" void kvxfer_standin_set_delay(unsigned microseconds) {
  TheState().delay_us = microseconds;
}

extern "C" int kvxfer_standin_set_attribute(int device, int attribute, int value) {
  State& state = TheState();
  const Lock lock(state.mutex);
  Device* const found = state.FindDevice(device);
  if (found == nullptr) return CUDA_ERROR_INVALID_DEVICE;
  found->attributes[attribute] = value;
  return CUDA_SUCCESS;
}

}  // namespace kvxfer::testing::cuda_driver
