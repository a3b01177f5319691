#include "src/cuda/flush.h"

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda {

using namespace api;  // NOLINT(google-build-using-namespace): the driver's own names

absl::Status Flusher::Add(const Driver* driver, int device) {
  auto known = driver->device(device);
  if (!known.ok()) return known.status();
  // Only visibility for the device that owns the memory is promised. A kernel of another GPU that
  // reads it peer to peer asks the owner, which answers from its own memory.
  const bool ordered = (*known)->writes_ordering >= CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER;
  if (!ordered && ((*known)->flush_options & CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST) == 0) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", device, " (", (*known)->name,
        ") neither orders what NICs write before its kernels nor can be told to from the host, so "
        "that NICs may not be given its memory; over staging in host memory it can take part"));
  }
  driver_ = driver;
  Use& use = devices_[device];
  if (use.regions++ == 0 && !ordered) {
    use.flushes = true;
    ++needed_;
  }
  return absl::OkStatus();
}

void Flusher::Remove(int device) {
  const auto it = devices_.find(device);
  if (it == devices_.end() || --it->second.regions > 0) return;
  if (it->second.flushes) --needed_;
  devices_.erase(it);
}

absl::Status Flusher::Flush() {
  // The flush covers the current context, so each device needs one of its own.
  for (const auto& [device, use] : devices_) {
    if (!use.flushes) continue;
    const ContextScope scope(*driver_, device);
    if (!scope.status().ok()) return scope.status();
    const CUresult result = driver_->calls().cuFlushGPUDirectRDMAWrites(
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
        CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER);
    if (result != CUDA_SUCCESS) {
      return Annotate(driver_->Error(result, "cuFlushGPUDirectRDMAWrites"),
                      absl::StrCat("what a NIC wrote into GPU ", device, " is not visible yet"));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::cuda
