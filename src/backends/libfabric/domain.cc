// Domain: opening domains, and registering host memory.

#include "src/backends/libfabric/domain.h"

#include <rdma/fi_eq.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/libfabric/provider.h"
#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"

namespace kvxfer::libfabric {
namespace {

// The provider if none is named: a fabric that has no backend of its own.
constexpr char kFabric[] = "efa";

// What to do about a registration that failed.
std::string_view RegistrationRemedy(int rc) {
  switch (-rc) {
    case FI_EFAULT:
      return "; it has to be mapped, all of it: was it freed, or is it memory of a GPU that was "
             "registered as the host's?";
    case FI_ENOMEM:
    case FI_EAGAIN:
      return "; the limit of locked memory may be too low (ulimit -l; in a pod the capability "
             "IPC_LOCK)";
    default:
      return {};
  }
}

}  // namespace

uint64_t FlagsOf(Access access) {
  uint64_t flags = FI_READ | FI_WRITE;
  if (Allows(access, Access::kRemoteRead)) flags |= FI_REMOTE_READ;
  if (Allows(access, Access::kRemoteWrite)) flags |= FI_REMOTE_WRITE;
  return flags;
}

absl::StatusOr<std::vector<std::unique_ptr<Domain>>> Domain::OpenAll(
    const LibfabricOptions& options, const std::string& host) {
  const std::string provider = options.provider.empty() ? std::string(kFabric) : options.provider;
  if (absl::Status status = CheckClosing(provider); !status.ok()) return status;
  std::vector<std::string> names = options.domains;
  if (names.empty()) names.emplace_back();
  if (names.size() > kMaxDomains) {
    return absl::InvalidArgumentError(
        absl::StrCat("`libfabric.domains` has ", names.size(), "; at most ", kMaxDomains));
  }
  // Asking providers for GPU memory would initialise CUDA in the process.
  const bool gpus = cuda::Driver::IfInUse() != nullptr;
  std::vector<std::unique_ptr<Domain>> out;
  for (const std::string& name : names) {
    absl::StatusOr<InfoPtr> info = FindProvider(provider, name, host, gpus);
    if (!info.ok()) return info.status();
    absl::StatusOr<std::unique_ptr<Domain>> domain = Open(info->get(), gpus);
    if (!domain.ok()) return domain.status();
    out.push_back(*std::move(domain));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<Domain>> Domain::Open(fi_info* info, bool asked_for_gpus) {
  std::unique_ptr<Domain> out(new Domain(asked_for_gpus));
  out->info_.reset(fi_dupinfo(info));
  fid_fabric* fabric = nullptr;
  if (const int rc = fi_fabric(info->fabric_attr, &fabric, nullptr); rc != 0) {
    return FiError("libfabric: fi_fabric", rc);
  }
  out->fabric_.reset(fabric);
  fi_eq_attr events_attr{};
  events_attr.wait_obj = FI_WAIT_NONE;
  fid_eq* events = nullptr;
  // Not every provider has event queues; one without reports nothing.
  if (fi_eq_open(fabric, &events_attr, &events, nullptr) == 0) out->events_.reset(events);
  fid_domain* domain = nullptr;
  if (const int rc = fi_domain(fabric, info, &domain, nullptr); rc != 0) {
    return FiError(out->Name() + ": fi_domain", rc);
  }
  out->domain_.reset(domain);
  if (TakesGpuMemory(*info)) {
    if (absl::Status status = out->ProbeGpus(); !status.ok()) return status;
  }
  absl::StatusOr<FiPtr<fid_mr>> scratch = out->Register(
      {.data = out->scratch_.data(), .bytes = out->scratch_.size()}, Access::kReadWrite);
  if (!scratch.ok()) return scratch.status();
  out->scratch_mr_ = *std::move(scratch);
  return out;
}

std::string Domain::Name() const {
  return absl::StrCat(info_->fabric_attr->prov_name, ":", info_->domain_attr->name);
}

size_t Domain::max_pieces() const {
  // efa (1.18 to 2.1) emulates a write by messages if it has an immediate and more than one run.
  if (std::string_view(info_->fabric_attr->prov_name).starts_with("efa")) return 1;
  return std::min(info_->tx_attr->iov_limit, info_->tx_attr->rma_iov_limit);
}

uint64_t Domain::sink() const {
  return virtual_addresses() ? reinterpret_cast<uint64_t>(scratch_.data()) + kSinkOffset
                             : kSinkOffset;
}

absl::StatusOr<FiPtr<fid_mr>> Domain::Register(const MemorySpan& span, Access access) const {
  fid_mr* mr = nullptr;
  if (const int rc = fi_mr_reg(domain_.get(), span.data, span.bytes, FlagsOf(access), 0, NewKey(),
                               0, &mr, nullptr);
      rc != 0) {
    const absl::Status error =
        FiError(absl::StrCat(Name(), ": fi_mr_reg of ", span.bytes, " bytes"), rc);
    return absl::UnavailableError(absl::StrCat(error.message(), ToAbsl(RegistrationRemedy(rc))));
  }
  return FiPtr<fid_mr>(mr);
}

uint64_t Domain::NewKey() const {
  const size_t key_bytes = info_->domain_attr->mr_key_size;
  // Ignored by providers that choose keys themselves (FI_MR_PROV_KEY).
  const uint64_t key = RandomNonZero64();
  return key_bytes < sizeof(key) ? key & ((uint64_t{1} << (8 * key_bytes)) - 1) : key;
}

void Domain::ReadEvents() const {
  if (events_ == nullptr) return;
  fi_eq_entry entry{};
  uint32_t event = 0;
  while (fi_eq_read(events_.get(), &event, &entry, sizeof(entry), 0) == -FI_EAVAIL) {
    fi_eq_err_entry error{};
    if (fi_eq_readerr(events_.get(), &error, 0) <= 0) return;
    Log(LogLevel::kWarning, "libfabric: domain {} reports: {}", Name(), fi_strerror(error.err));
  }
}

}  // namespace kvxfer::libfabric
