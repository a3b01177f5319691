#include "src/cli/common/gpu_memory.h"

#include <utility>

#include "src/cli/common/units.h"
#include "src/core/base/strings.h"

namespace kvxfer::cli {

absl::Status OfThisHost(const absl::Status& status) {
  return absl::IsUnavailable(status) ? absl::FailedPreconditionError(status.message()) : status;
}

absl::StatusOr<const cuda::Driver*> DriverFor(int device) {
  const absl::StatusOr<const cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) {
    return Annotate(OfThisHost(driver.status()),
                    absl::StrCat("memory of cuda:", device, " cannot be used"));
  }
  if (const auto found = (*driver)->device(device); !found.ok()) return found.status();
  return *driver;
}

absl::StatusOr<GpuMemory> GpuMemory::Allocate(int device, size_t bytes) {
  const absl::StatusOr<const cuda::Driver*> driver = DriverFor(device);
  if (!driver.ok()) return driver.status();
  const cuda::ContextScope scope(**driver, device);
  if (!scope.status().ok()) return OfThisHost(scope.status());
  const cuda::api::Calls& calls = (*driver)->calls();
  cuda::api::CUdeviceptr at = 0;
  if (const auto result = calls.cuMemAlloc_v2(&at, bytes); result != cuda::api::CUDA_SUCCESS) {
    return Annotate(OfThisHost((*driver)->Error(result, "cuMemAlloc")),
                    absl::StrCat("allocating ", FormatBytes(bytes), " of cuda:", device));
  }
  GpuMemory memory;
  memory.driver_ = *driver;
  memory.device_ = device;
  memory.base_ = at;
  memory.bytes_ = bytes;
  // Without this attribute, a copy from the host returns once it is staged, and a NIC or another
  // process may not see the bytes yet.
  constexpr unsigned kOn = 1;
  const cuda::api::CUresult set =
      calls.cuPointerSetAttribute(&kOn, cuda::api::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
  // As in the library: an old driver without this attribute is accepted.
  absl::Status status = set == cuda::api::CUDA_ERROR_NOT_SUPPORTED
                            ? absl::OkStatus()
                            : (*driver)->Error(set, "cuPointerSetAttribute(SYNC_MEMOPS)");
  if (status.ok()) status = memory.Zero(0, bytes);
  if (!status.ok()) return status;
  return memory;
}

GpuMemory::GpuMemory(GpuMemory&& other) noexcept { *this = std::move(other); }

GpuMemory& GpuMemory::operator=(GpuMemory&& other) noexcept {
  std::swap(driver_, other.driver_);
  std::swap(device_, other.device_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

GpuMemory::~GpuMemory() {
  if (driver_ == nullptr) return;
  const cuda::ContextScope scope(*driver_, device_);
  // An error would help nobody: the end of the process frees the memory.
  if (scope.status().ok()) (void)driver_->calls().cuMemFree_v2(base_);
}

MemorySpan GpuMemory::span() const {
  return {.data = reinterpret_cast<void*>(base_),  // NOLINT(performance-no-int-to-ptr)
          .bytes = bytes_,
          .kind = MemoryKind::kCuda,
          .device_id = device_};
}

absl::Status GpuMemory::Write(uint64_t offset, std::span<const std::byte> from) const {
  const cuda::ContextScope scope(*driver_, device_);
  if (!scope.status().ok()) return OfThisHost(scope.status());
  return OfThisHost(driver_->Error(
      driver_->calls().cuMemcpyHtoD_v2(base_ + offset, from.data(), from.size()), "cuMemcpyHtoD"));
}

absl::Status GpuMemory::Read(uint64_t offset, std::span<std::byte> to) const {
  const cuda::ContextScope scope(*driver_, device_);
  if (!scope.status().ok()) return OfThisHost(scope.status());
  return OfThisHost(driver_->Error(
      driver_->calls().cuMemcpyDtoH_v2(to.data(), base_ + offset, to.size()), "cuMemcpyDtoH"));
}

absl::Status GpuMemory::Zero(uint64_t offset, uint64_t bytes) const {
  const cuda::ContextScope scope(*driver_, device_);
  if (!scope.status().ok()) return OfThisHost(scope.status());
  return OfThisHost(
      driver_->Error(driver_->calls().cuMemsetD8_v2(base_ + offset, 0, bytes), "cuMemsetD8"));
}

}  // namespace kvxfer::cli
