#include "src/backends/verbs/gpu_memory.h"

#include <cerrno>
#include <utility>

#include "src/backends/verbs/errors.h"

namespace kvxfer::verbs {
namespace {

void* PointerAt(uint64_t address) { return reinterpret_cast<void*>(address); }

// One registration of [base, base + bytes), which `dmabuf` exports. Null: `why` says what happened
// in each way.
ibv_mr* RegisterPart(Device& device, const GpuMemory& memory, uint64_t base, uint64_t bytes,
                     const absl::StatusOr<cuda::Dmabuf>& dmabuf, int access, GpuRefusal& why) {
  why = {.no_dmabuf = dmabuf.status(), .peer_memory = memory.peer_memory};
  if (dmabuf.ok()) {
    ibv_mr* const mr = device.RegisterDmabuf(dmabuf->fd.get(), dmabuf->offset, base, bytes, access);
    if (mr != nullptr) return mr;
    why.dmabuf_error = errno;
  }
  if (memory.peer_memory) {
    ibv_mr* const mr = device.Register(PointerAt(base), bytes, access);
    if (mr != nullptr) return mr;
    why.peer_memory_error = errno;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<GpuMemory> ExamineGpuMemory(const MemorySpan& span, const Sysfs& sysfs,
                                           bool in_parts) {
  absl::StatusOr<cuda::DirectSpan> examined = cuda::ExamineDirect(span);
  if (!examined.ok()) return examined.status();
  const cuda::DeviceSpan& whole = examined->span;
  absl::StatusOr<cuda::Dmabuf> dmabuf = cuda::ExportDmabuf(*examined, whole.base, whole.bytes);
  return GpuMemory{.span = *std::move(examined),
                   .whole = std::move(dmabuf),
                   .peer_memory = cuda::IsLoaded(cuda::PeerMemory::kInfiniband, sysfs),
                   .in_parts = in_parts};
}

absl::StatusOr<std::vector<ibv_mr*>> RegisterGpuMemory(Device& device, const GpuMemory& memory,
                                                       int access) {
  const cuda::DeviceSpan& span = memory.span.span;
  GpuRefusal why;
  ibv_mr* const one =
      RegisterPart(device, memory, span.base, span.bytes, memory.whole, access, why);
  if (one != nullptr) return std::vector<ibv_mr*>{one};
  if (span.parts.size() == 1 || !memory.in_parts) {
    return GpuRegistrationError(device.name(), memory.span.ToString(), why);
  }
  std::vector<ibv_mr*> out;
  for (const cuda::Allocation& part : span.parts) {
    const auto dmabuf = cuda::ExportDmabuf(memory.span, part.base, part.bytes);
    ibv_mr* const mr = RegisterPart(device, memory, part.base, part.bytes, dmabuf, access, why);
    if (mr != nullptr) {
      out.push_back(mr);
      continue;
    }
    for (ibv_mr* const made : out) device.ibv().DeregMr(made);
    return GpuRegistrationError(device.name(), memory.span.ToString(), why);
  }
  return out;
}

}  // namespace kvxfer::verbs
