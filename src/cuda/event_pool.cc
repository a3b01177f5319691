#include "src/cuda/event_pool.h"

#include <utility>

namespace kvxfer::cuda {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

EventPool& EventPool::Get() {
  static auto* const pool = new EventPool;
  return *pool;
}

absl::StatusOr<CUevent> EventPool::Take(const Driver& driver, int device) {
  {
    const std::lock_guard lock(mu_);
    std::vector<CUevent>& kept = kept_[device];
    if (!kept.empty()) {
      const CUevent event = kept.back();
      kept.pop_back();
      return event;
    }
  }
  const ContextScope scope(driver, device);
  if (!scope.status().ok()) return scope.status();
  CUevent event = nullptr;
  const CUresult made = driver.calls().cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
  if (made != CUDA_SUCCESS) return driver.Error(made, "cuEventCreate");
  return event;
}

void EventPool::Return(const Driver& driver, int device, CUevent event) {
  {
    const std::lock_guard lock(mu_);
    std::vector<CUevent>& kept = kept_[device];
    if (kept.size() < kMostKept) {
      kept.push_back(event);
      return;
    }
  }
  const ContextScope scope(driver, device);
  if (scope.status().ok()) driver.calls().cuEventDestroy_v2(event);
}

void EventPool::Discard(const Driver& driver, int device, CUevent event) {
  std::vector<CUevent> all;
  {
    const std::lock_guard lock(mu_);
    all = std::exchange(kept_[device], {});
  }
  all.push_back(event);
  const ContextScope scope(driver, device);
  if (!scope.status().ok()) return;
  for (const CUevent one : all) driver.calls().cuEventDestroy_v2(one);
}

}  // namespace kvxfer::cuda
