// Domain: GPU memory (FI_HMEM).

#include <string_view>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/domain.h"
#include "src/backends/libfabric/provider.h"
#include "src/core/base/strings.h"

namespace kvxfer::libfabric {
namespace {

constexpr char kDmabufNeeds[] =
    "the GPU driver's open kernel modules 515 or newer, Linux 5.12 or newer, libfabric 1.20 or "
    "newer";

cuda::PeerMemory PeerMemoryOf(const fi_info& info) {
  const bool efa = std::string_view(info.fabric_attr->prov_name).starts_with("efa");
  return efa ? cuda::PeerMemory::kEfa : cuda::PeerMemory::kInfiniband;
}

// What to do about a registration that failed.
std::string Remedy(cuda::PeerMemory kind, int rc) {
  const std::string module(cuda::NameOf(kind));
  if (rc == -FI_ENOMEM || rc == -FI_EAGAIN) {
    return "the GPU's BAR1 is full (nvidia-smi -q -d MEMORY shows it: register less), or the limit "
           "of locked memory is too low (ulimit -l; in a pod the capability IPC_LOCK)";
  }
  if (!cuda::IsLoaded(kind, Sysfs())) {
#ifdef FI_MR_DMABUF
    const std::string dmabuf =
        absl::StrCat("as dmabuf the provider did not take it (", kDmabufNeeds, ")");
#else
    const std::string dmabuf =
        "this kvxfer was built with a libfabric older than 1.20, so it asks for no dmabuf itself "
        "(efa of newer ones does)";
#endif
    return absl::StrCat("the module ", module, " is not loaded (modprobe ", module, "), and ",
                        dmabuf);
  }
  return absl::StrCat(
      "likely, in this order: the GPU's BAR1 is full (nvidia-smi -q -d MEMORY: register less, or "
      "switch on resizable BAR); it is of several allocations side by side (register each, or set "
      "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False); ",
      module, " does not fit the NIC's driver (dmesg)");
}

}  // namespace

absl::Status Domain::ProbeGpus() {
  // An endpoint that is never enabled, only to find out whether it accepts the option.
  fid_ep* endpoint = nullptr;
  if (const int rc = fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr); rc != 0) {
    return FiError(Name() + ": fi_endpoint", rc);
  }
  const FiPtr<fid_ep> probe(endpoint);
  const int rc = KeepToTheDevice(endpoint);
  if (rc == 0) return absl::OkStatus();
  info_->caps &= ~FI_HMEM;
  gpus_reached_ = absl::FailedPreconditionError(absl::StrCat(
      Name(), ": GPU memory cannot be registered: its device does not reach it (", fi_strerror(-rc),
      "); modprobe ", ToAbsl(cuda::NameOf(PeerMemoryOf(*info_))), ", or a dmabuf: ", kDmabufNeeds));
  return absl::OkStatus();
}

int Domain::RegisterDmabuf([[maybe_unused]] const cuda::DirectSpan& span,
                           [[maybe_unused]] fi_mr_attr attr, [[maybe_unused]] fid_mr** mr) const {
#ifdef FI_MR_DMABUF
  if (FI_VERSION_LT(fi_version(), FI_VERSION(1, 20)) || !cuda::ExportsDmabuf(span)) {
    return -FI_ENOSYS;
  }
  const absl::StatusOr<cuda::Dmabuf> exported =
      cuda::ExportDmabuf(span, span.span.base, span.span.bytes);
  // Not fatal: registering by address may still work.
  if (!exported.ok()) return -FI_ENOSYS;
  const fi_mr_dmabuf dmabuf{
      .fd = exported->fd.get(),
      .offset = exported->offset,
      .len = span.span.bytes,
      // The address of the dmabuf's first byte.
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
  if (!gpus_reached_.ok()) return gpus_reached_;
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
  // By address: through the module for peer memory, or as a dmabuf that newer efa providers make.
  const int rc = fi_mr_regattr(domain_.get(), &attr, 0, &mr);
  if (rc == 0) return FiPtr<fid_mr>(mr);
  const absl::Status error =
      FiError(absl::StrCat(Name(), ": fi_mr_regattr of ", span.ToString()), rc);
  return absl::UnavailableError(
      absl::StrCat(error.message(), "; ", Remedy(PeerMemoryOf(*info_), rc)));
}

}  // namespace kvxfer::libfabric
