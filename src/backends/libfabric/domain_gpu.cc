// Memory of GPUs (FI_HMEM).

#include <string_view>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/domain.h"
#include "src/backends/libfabric/provider.h"
#include "src/core/strings.h"

namespace kvxfer::libfabric {
namespace {

// Of a registration that failed.
std::string Remedy(std::string_view provider, int rc) {
  const bool efa = provider.starts_with("efa");
  const cuda::PeerMemory kind = efa ? cuda::PeerMemory::kEfa : cuda::PeerMemory::kInfiniband;
  const std::string module(cuda::NameOf(kind));
  if (rc == -FI_ENOMEM || rc == -FI_EAGAIN) {
    return "the GPU's BAR1 is full (nvidia-smi -q -d MEMORY shows it: register less), or the limit "
           "of locked memory is too low (ulimit -l; in a pod the capability IPC_LOCK)";
  }
  if (!cuda::IsLoaded(kind, Sysfs())) {
    return absl::StrCat("the module ", module, " is not loaded (modprobe ", module,
                        "), and as dmabuf the provider did not take it (libfabric 1.20 or newer, "
                        "the GPU driver's open kernel modules 515 or newer, Linux 5.12 or newer)");
  }
  return absl::StrCat(
      "likely, in this order: the memory was freed; it is of several allocations "
      "side by side (register each, or set PYTORCH_CUDA_ALLOC_CONF="
      "expandable_segments:False); ",
      module, " does not fit the NIC's driver (dmesg)");
}

}  // namespace

int Domain::RegisterDmabuf([[maybe_unused]] const cuda::DirectSpan& span,
                           [[maybe_unused]] fi_mr_attr attr, [[maybe_unused]] fid_mr** mr) const {
#ifdef FI_MR_DMABUF
  if (FI_VERSION_LT(fi_version(), FI_VERSION(1, 20)) || !cuda::ExportsDmabuf(span)) {
    return -FI_ENOSYS;
  }
  const absl::StatusOr<cuda::Dmabuf> exported =
      cuda::ExportDmabuf(span, span.span.base, span.span.bytes);
  if (!exported.ok()) return -FI_ENOSYS;
  const fi_mr_dmabuf dmabuf{
      .fd = exported->fd.get(),
      .offset = exported->offset,
      .len = span.span.bytes,
      .base_addr = reinterpret_cast<void*>(span.span.base - exported->offset)};
  attr.dmabuf = &dmabuf;
  return fi_mr_regattr(domain_.get(), &attr, FI_MR_DMABUF, mr);
#else
  return -FI_ENOSYS;
#endif
}

absl::StatusOr<FiPtr<fid_mr>> Domain::RegisterGpu(const cuda::DirectSpan& span,
                                                  Access access) const {
  if (!asked_for_gpus_) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(),
        ": GPU memory cannot be registered: libfabric was not asked for it, since this "
        "process did not use CUDA when the agent was made; make it after that "
        "(torch.cuda.init())"));
  }
  if (!TakesGpuMemory(*info_)) {
    return absl::FailedPreconditionError(absl::StrCat(
        Name(),
        ": GPU memory cannot be registered: the provider does not give it to its devices "
        "(FI_HMEM; fi_info -c FI_HMEM shows those that do, with a libfabric that was built "
        "with CUDA)"));
  }
  const iovec whole{.iov_base = reinterpret_cast<void*>(span.span.base),
                    .iov_len = span.span.bytes};
  fi_mr_attr attr{};
  attr.mr_iov = &whole;
  attr.iov_count = 1;
  attr.access = FlagsOf(access);
  attr.requested_key = NewKey();
  attr.iface = FI_HMEM_CUDA;
  attr.device.cuda = span.device->ordinal;
  fid_mr* mr = nullptr;
  if (RegisterDmabuf(span, attr, &mr) == 0) return FiPtr<fid_mr>(mr);
  const int rc = fi_mr_regattr(domain_.get(), &attr, 0, &mr);
  if (rc == 0) return FiPtr<fid_mr>(mr);
  const absl::Status error =
      FiError(absl::StrCat(Name(), ": fi_mr_regattr of ", span.ToString()), rc);
  return absl::UnavailableError(
      absl::StrCat(error.message(), "; ", Remedy(info_->fabric_attr->prov_name, rc)));
}

}  // namespace kvxfer::libfabric
