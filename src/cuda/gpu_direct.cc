#include "src/cuda/gpu_direct.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::cuda {
namespace {

// Why no NIC can be given this allocation, and what to do. Empty: it can.
std::string_view WhyNot(const Allocation& part) {
  if (part.kind == AllocationKind::kManaged) {
    return "is managed memory (cudaMallocManaged), which moves between GPU and host while a NIC "
           "would write to where it was; allocate it with cudaMalloc";
  }
  if (part.gpu_direct) return {};
  switch (part.kind) {
    case AllocationKind::kPool:
      return "is of a memory pool (cudaMallocAsync), which this driver gives to no NIC; allocate "
             "it with cudaMalloc";
    case AllocationKind::kVirtual:
      return "was made by cuMemCreate without allocFlags.gpuDirectRDMACapable; set it (PyTorch's "
             "expandable_segments do, where it is new enough), or set PYTORCH_CUDA_ALLOC_CONF="
             "expandable_segments:False";
    default:
      return "is of a kind that the driver gives to no NIC (CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_"
             "RDMA_CAPABLE); allocate it with cudaMalloc";
  }
}

uint64_t PageBytes() { return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }

}  // namespace

std::string DirectSpan::ToString() const {
  return absl::StrCat(span.bytes, " bytes at 0x", absl::Hex(span.base), " of GPU ", device->ordinal,
                      " (", device->name, ")");
}

absl::StatusOr<DirectSpan> ExamineDirect(const MemorySpan& span) {
  absl::StatusOr<DeviceSpan> examined = Examine(span);
  if (!examined.ok()) return examined.status();
  absl::StatusOr<const Driver*> driver = Driver::Get();
  if (!driver.ok()) return driver.status();
  absl::StatusOr<const Device*> device = (*driver)->device(examined->device);
  if (!device.ok()) return device.status();
  DirectSpan out{.driver = *driver, .device = *device, .span = *std::move(examined)};
  if (!out.device->gpu_direct) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU memory cannot be given to NICs: ", out.ToString(),
        ": this GPU takes no part in GPUDirect RDMA (data centre and workstation GPUs do)"));
  }
  for (const Allocation& part : out.span.parts) {
    const std::string_view why = WhyNot(part);
    if (why.empty()) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("GPU memory cannot be given to NICs: what lies at 0x", absl::Hex(part.base),
                     " of ", out.ToString(), " ", ToAbsl(why)));
  }
  // Otherwise synchronous copies of the application may return before they are over at the device,
  // and a NIC could read stale bytes.
  if (absl::Status status = SetSyncMemops(*out.driver, out.span); !status.ok()) return status;
  return out;
}

bool ExportsDmabuf(const DirectSpan& span) {
  return span.device->dmabuf && span.driver->calls().cuMemGetHandleForAddressRange != nullptr;
}

absl::StatusOr<Dmabuf> ExportDmabuf(const DirectSpan& span, uint64_t base, uint64_t bytes) {
  if (!ExportsDmabuf(span)) {
    return absl::UnimplementedError(
        "the GPU's driver exports no dmabuf (needs its open kernel modules, 515 or newer, and "
        "Linux 5.12 or newer)");
  }
  const ContextScope context(*span.driver, span.device->ordinal);
  if (!context.status().ok()) return context.status();
  // The CUDA driver exports whole pages only.
  const uint64_t page = PageBytes();
  const uint64_t from = base / page * page;
  const uint64_t to = (base + bytes + page - 1) / page * page;
  int fd = -1;
  const api::CUresult result = span.driver->calls().cuMemGetHandleForAddressRange(
      &fd, from, to - from, api::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (absl::Status status = span.driver->Error(result, "cuMemGetHandleForAddressRange");
      !status.ok()) {
    return status;
  }
  return Dmabuf{.fd = OwnFd(fd), .offset = base - from};
}

std::string_view NameOf(PeerMemory kind) {
  return kind == PeerMemory::kEfa ? "efa-nv-peermem" : "nvidia-peermem";
}

bool IsLoaded(PeerMemory kind, const Sysfs& host) {
  if (kind == PeerMemory::kEfa) return host.Exists("/sys/module/efa_nv_peermem");
  // nv_peer_mem is its name from before it came with the NVIDIA driver.
  return host.Exists("/sys/module/nvidia_peermem") || host.Exists("/sys/module/nv_peer_mem");
}

}  // namespace kvxfer::cuda
