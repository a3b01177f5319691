#include "tests/support/gpu_pieces.h"

#include <algorithm>
#include <numeric>

namespace kvxfer::testing {

absl::StatusOr<std::unique_ptr<GpuPieces>> GpuPieces::Allocate(int device,
                                                               std::span<const size_t> bytes,
                                                               bool gpu_direct) {
  absl::StatusOr<const cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  std::unique_ptr<GpuPieces> out(new GpuPieces(*driver, device));
  if (absl::Status status = out->Map(bytes, gpu_direct); !status.ok()) return status;
  return out;
}

absl::Status GpuPieces::Map(std::span<const size_t> bytes, bool gpu_direct) {
  const cuda::ContextScope context(*driver_, device_);
  if (!context.status().ok()) return context.status();
  const cuda::api::Calls& calls = driver_->calls();
  bytes_ = std::accumulate(bytes.begin(), bytes.end(), size_t{0});
  absl::Status status =
      driver_->Error(calls.cuMemAddressReserve(&at_, bytes_, 0, 0, 0), "cuMemAddressReserve");
  if (!status.ok()) return status;
  cuda::api::CUmemAllocationProp prop{};
  prop.type = cuda::api::CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location = {.type = cuda::api::CU_MEM_LOCATION_TYPE_DEVICE, .id = device_};
  prop.allocFlags.gpuDirectRDMACapable = gpu_direct ? 1 : 0;
  cuda::api::CUdeviceptr to = at_;
  for (const size_t of_piece : bytes) {
    cuda::api::CUmemGenericAllocationHandle handle = 0;
    status = driver_->Error(calls.cuMemCreate(&handle, of_piece, &prop, 0), "cuMemCreate");
    if (!status.ok()) return status;
    status = driver_->Error(calls.cuMemMap(to, of_piece, 0, handle, 0), "cuMemMap");
    // Mapped, it lives without its handle.
    status.Update(driver_->Error(calls.cuMemRelease(handle), "cuMemRelease"));
    if (!status.ok()) return status;
    mapped_.push_back(of_piece);
    to += of_piece;
  }
  const cuda::api::CUmemAccessDesc access{.location = prop.location,
                                          .flags = cuda::api::CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  return driver_->Error(calls.cuMemSetAccess(at_, bytes_, &access, 1), "cuMemSetAccess");
}

GpuPieces::~GpuPieces() {
  const cuda::ContextScope context(*driver_, device_);
  const cuda::api::Calls& calls = driver_->calls();
  cuda::api::CUdeviceptr from = at_;
  for (const size_t of_piece : mapped_) {
    calls.cuMemUnmap(from, of_piece);
    from += of_piece;
  }
  if (at_ != 0) calls.cuMemAddressFree(at_, bytes_);
}

MemorySpan GpuPieces::span(size_t offset, size_t bytes) const {
  return {.data = reinterpret_cast<void*>(at_ + offset),
          .bytes = std::min(bytes, bytes_ - offset),
          .kind = MemoryKind::kCuda,
          .device_id = device_};
}

}  // namespace kvxfer::testing
