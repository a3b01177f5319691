#include "src/backends/cuda_ipc/regions.h"

#include <fcntl.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda_ipc {
namespace {

using cuda::AllocationKind;

std::string_view Remedy(AllocationKind kind) {
  switch (kind) {
    case AllocationKind::kPool:
      return "memory of cudaMallocAsync belongs to its pool; allocate the cache by cudaMalloc "
             "(PyTorch: not PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync)";
    case AllocationKind::kManaged:
      return "managed memory moves between host and GPU; allocate the cache by cudaMalloc";
    case AllocationKind::kVirtual:
      return "it was made by cuMemCreate without a kind of handle that another process takes; ask "
             "for CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR there (PyTorch: without "
             "expandable_segments, or with a version that makes them shareable)";
    case AllocationKind::kDevice:
      return "the driver makes no IPC handles for memory of this GPU (integrated GPUs, vGPU)";
  }
  return "";
}

// Tried by the call itself: some drivers deny by the attribute IS_LEGACY_CUDA_IPC_CAPABLE what the
// call does.
absl::Status GivesHandle(const cuda::Driver& driver, int device, const cuda::Allocation& part) {
  const cuda::ContextScope scope(driver, device);
  if (!scope.status().ok()) return scope.status();
  cuda::api::CUipcMemHandle handle{};
  return driver.Error(driver.calls().cuIpcGetMemHandle(&handle, part.allocation_base),
                      "cuIpcGetMemHandle");
}

// OK, or FailedPrecondition, with the fix: it cannot be given to another process.
absl::Status CheckShareable(const cuda::Driver& driver, int device, const cuda::Allocation& part) {
  std::string why;
  if (part.kind == AllocationKind::kDevice) {
    absl::Status gives = GivesHandle(driver, device, part);
    if (gives.ok()) return gives;
    why = absl::StrCat(gives.message(), "; ");
  } else if (part.kind == AllocationKind::kVirtual && (part.fd_handle || part.fabric_handle)) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("GPU memory at 0x", absl::Hex(part.base), " (", ToAbsl(ToString(part.kind)),
                   ") cannot be given to another process: ", why, ToAbsl(Remedy(part.kind))));
}

std::string UuidOf(const cuda::Driver& driver, int device) {
  const absl::StatusOr<const cuda::Device*> found = driver.device(device);
  return found.ok() ? (*found)->uuid : std::string();
}

}  // namespace

absl::StatusOr<cuda::DeviceSpan> ExamineShareable(const MemorySpan& span) {
  absl::StatusOr<const cuda::Driver*> driver = cuda::Driver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<cuda::DeviceSpan> found = cuda::Examine(span);
  if (!found.ok()) return found.status();
  for (const cuda::Allocation& part : found->parts) {
    const absl::Status can = CheckShareable(**driver, found->device, part);
    if (!can.ok()) return can;
  }
  if (absl::Status set = cuda::SetSyncMemops(**driver, *found); !set.ok()) return set;
  return found;
}

CudaIpcRegistration::CudaIpcRegistration(Owner* owner, uint64_t number, const LocalRegion& region,
                                         const cuda::Driver* driver, cuda::DeviceSpan span)
    : owner_(owner),
      number_(number),
      rkey_(region.rkey),
      access_(region.access),
      driver_(driver),
      device_uuid_(UuidOf(*driver, span.device)),
      watched_(std::move(span)) {
  key = Encode(RegionKey{.region = number_, .rkey = rkey_, .device = device_uuid_});
}

RegionPacket CudaIpcRegistration::Describe() const {
  const cuda::DeviceSpan& span = watched_.span();
  RegionPacket out{.region = number_,
                   .base = span.base,
                   .bytes = span.bytes,
                   .access = static_cast<uint32_t>(access_),
                   .parts = static_cast<uint32_t>(span.parts.size()),
                   .ordinal = span.device};
  device_uuid_.copy(out.device.data(), out.device.size());
  return out;
}

absl::StatusOr<PartPacket> CudaIpcRegistration::Export(size_t index, bool same_process,
                                                       net::Fd& file) const {
  const cuda::Allocation& part = watched_.span().parts[index];
  // If the memory was freed, other memory at the same address would be handed out in its name.
  absl::Status made = cuda::CheckAlive(
      *driver_, {.base = part.base, .bytes = part.bytes, .device = device(), .parts = {part}});
  if (!made.ok()) return made;
  PartPacket out{.region = number_,
                 .base = part.base,
                 .bytes = part.bytes,
                 .allocation_base = part.allocation_base,
                 .allocation_bytes = part.allocation_bytes,
                 .buffer_id = part.buffer_id,
                 .kind = static_cast<uint32_t>(part.kind)};
  if (same_process) return out;
  const cuda::ContextScope scope(*driver_, device());
  made = scope.status();
  if (made.ok()) {
    made =
        part.kind == AllocationKind::kDevice ? ExportLegacy(out) : ExportVirtual(part, out, file);
  }
  if (!made.ok()) return made;
  return out;
}

absl::Status CudaIpcRegistration::ExportLegacy(PartPacket& out) const {
  cuda::api::CUipcMemHandle handle{};
  const auto result = driver_->calls().cuIpcGetMemHandle(&handle, out.allocation_base);
  static_assert(sizeof(handle.reserved) == sizeof(out.handle));
  std::memcpy(out.handle.data(), handle.reserved, sizeof(out.handle));
  out.form = HandleForm::kLegacy;
  return driver_->Error(result, "cuIpcGetMemHandle");
}

// A descriptor is preferred to a fabric handle: it needs no right that the other process may lack
// (/dev/nvidia-caps-imex-channels).
absl::Status CudaIpcRegistration::ExportVirtual(const cuda::Allocation& part, PartPacket& out,
                                                net::Fd& file) const {
  const cuda::api::Calls& calls = driver_->calls();
  cuda::api::CUmemGenericAllocationHandle memory = 0;
  auto result = calls.cuMemRetainAllocationHandle(
      &memory, reinterpret_cast<void*>(static_cast<uintptr_t>(part.base)));
  if (result != cuda::api::CUDA_SUCCESS) {
    return driver_->Error(result, "cuMemRetainAllocationHandle");
  }
  if (part.fd_handle) {
    out.form = HandleForm::kFile;
    int fd = -1;
    // Not inside Fd::Open, which blocks fork(): the CUDA driver may block.
    result = calls.cuMemExportToShareableHandle(
        &fd, memory, cuda::api::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result == cuda::api::CUDA_SUCCESS) {
      file = net::Fd(fd);
      ::fcntl(fd, F_SETFD, FD_CLOEXEC);
    }
  } else {
    out.form = HandleForm::kFabric;
    static_assert(sizeof(cuda::api::CUmemFabricHandle) == sizeof(out.handle));
    result = calls.cuMemExportToShareableHandle(out.handle.data(), memory,
                                                cuda::api::CU_MEM_HANDLE_TYPE_FABRIC, 0);
  }
  calls.cuMemRelease(memory);
  return driver_->Error(result, "cuMemExportToShareableHandle");
}

}  // namespace kvxfer::cuda_ipc
