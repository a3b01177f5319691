#include "src/backends/libfabric/domain.h"

#include <rdma/fi_eq.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/core/log.h"
#include "src/core/random.h"
#include "src/core/strings.h"

namespace kvxfer::libfabric {
namespace {

// Taken where no provider was named: those that are fabrics, and have no backend of their own.
constexpr std::array<const char*, 1> kFabrics = {"efa"};

// What this backend was written against, if the library is as new.
uint32_t Version() { return std::min<uint32_t>(fi_version(), FI_VERSION(1, 18)); }

bool GoesByHosts(std::string_view provider) {
  constexpr std::array<std::string_view, 4> kPrefixes = {"tcp", "net", "verbs", "sockets"};
  return std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return provider.starts_with(prefix); });
}

InfoPtr Hints(const std::string& provider, const std::string& domain) {
  InfoPtr hints(fi_allocinfo());
  if (hints == nullptr) return hints;
  hints->caps = FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->cq_data_size = sizeof(uint32_t);
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  if (!domain.empty()) hints->domain_attr->name = strdup(domain.c_str());
  return hints;
}

absl::StatusOr<InfoPtr> Find(const std::string& provider, const std::string& domain,
                             const std::string& host) {
  const InfoPtr hints = Hints(provider, domain);
  if (hints == nullptr) return absl::ResourceExhaustedError("libfabric: fi_allocinfo");
  const bool by_host = GoesByHosts(provider) && !host.empty();
  fi_info* found = nullptr;
  const int rc = fi_getinfo(Version(), by_host ? host.c_str() : nullptr, nullptr,
                            by_host ? FI_SOURCE : 0, hints.get(), &found);
  if (rc == 0) return InfoPtr(found);
  return absl::UnavailableError(
      absl::StrCat("libfabric: provider ", provider, domain.empty() ? "" : ", domain ", domain,
                   by_host ? " at " : "", by_host ? host : "",
                   ": there is none with writes that carry an immediate (", fi_strerror(-rc),
                   "); fi_info shows what there is"));
}

// Closing an endpoint is what makes a link quiet: it has to be possible at any time, and where one
// process writes into another's memory by itself, it stops nothing.
absl::Status CheckClosing(std::string_view provider) {
  if (provider.find("ofi_rxm") != std::string_view::npos) {
    return absl::FailedPreconditionError(absl::StrCat(
        "libfabric: the provider ", ToAbsl(provider),
        " crashes when an endpoint is closed while its peer writes (seen with 1.17); use net, or "
        "the backends verbs and tcp"));
  }
  if (provider != "shm") return absl::OkStatus();
  fi_param* params = nullptr;
  int count = 0;
  bool disabled = false;
  if (fi_getparams(&params, &count) == 0) {
    for (int i = 0; i < count; ++i) {
      if (std::string_view(params[i].name) != "FI_SHM_DISABLE_CMA") continue;
      const std::string_view value = params[i].value == nullptr ? "" : params[i].value;
      disabled = value == "1" || value == "on" || value == "true" || value == "yes";
    }
    fi_freeparams(params);
  }
  if (disabled) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "libfabric: with the provider shm a peer's process writes into this one's memory, and "
      "nothing stops it; set FI_SHM_DISABLE_CMA=1 for both, or use the backend shm");
}

}  // namespace

absl::StatusOr<std::vector<std::unique_ptr<Domain>>> Domain::OpenAll(
    const LibfabricOptions& options, const std::string& host) {
  std::string provider = options.provider;
  for (const char* fabric : kFabrics) {
    if (provider.empty() && Find(fabric, "", host).ok()) provider = fabric;
  }
  if (provider.empty()) {
    return absl::UnimplementedError(
        "libfabric has no fabric here (efa); name another provider by "
        "`libfabric.provider` (KVXFER_LIBFABRIC_PROVIDER)");
  }
  if (absl::Status status = CheckClosing(provider); !status.ok()) return status;
  std::vector<std::string> names = options.domains;
  if (names.empty()) names.emplace_back();
  if (names.size() > kMaxDomains) {
    return absl::InvalidArgumentError(
        absl::StrCat("`libfabric.domains` has ", names.size(), "; at most ", kMaxDomains));
  }
  std::vector<std::unique_ptr<Domain>> out;
  for (const std::string& name : names) {
    absl::StatusOr<InfoPtr> info = Find(provider, name, host);
    if (!info.ok()) return info.status();
    absl::StatusOr<std::unique_ptr<Domain>> domain = Open(info->get());
    if (!domain.ok()) return domain.status();
    out.push_back(*std::move(domain));
  }
  return out;
}

absl::StatusOr<std::unique_ptr<Domain>> Domain::Open(fi_info* info) {
  std::unique_ptr<Domain> out(new Domain);
  out->info_.reset(fi_dupinfo(info));
  fid_fabric* fabric = nullptr;
  if (const int rc = fi_fabric(info->fabric_attr, &fabric, nullptr); rc != 0) {
    return FiError("libfabric: fi_fabric", rc);
  }
  out->fabric_.reset(fabric);
  fi_eq_attr events_attr{};
  events_attr.wait_obj = FI_WAIT_NONE;
  fid_eq* events = nullptr;
  // Where a provider has none it tells nothing.
  if (fi_eq_open(fabric, &events_attr, &events, nullptr) == 0) out->events_.reset(events);
  fid_domain* domain = nullptr;
  if (const int rc = fi_domain(fabric, info, &domain, nullptr); rc != 0) {
    return FiError(out->Name() + ": fi_domain", rc);
  }
  out->domain_.reset(domain);
  absl::StatusOr<FiPtr<fid_mr>> scratch = out->Register(
      {.data = out->scratch_.data(), .bytes = out->scratch_.size()}, Access::kReadWrite);
  if (!scratch.ok()) return scratch.status();
  out->scratch_mr_ = *std::move(scratch);
  return out;
}

std::string Domain::Name() const {
  return absl::StrCat(info_->fabric_attr->prov_name, ":", info_->domain_attr->name);
}

size_t Domain::max_runs() const {
  return std::min(info_->tx_attr->iov_limit, info_->tx_attr->rma_iov_limit);
}

uint64_t Domain::sink() const {
  return virtual_addresses() ? reinterpret_cast<uint64_t>(scratch_.data()) + kSinkOffset
                             : kSinkOffset;
}

absl::StatusOr<FiPtr<fid_mr>> Domain::Register(const MemorySpan& span, Access access) const {
  uint64_t flags = FI_READ | FI_WRITE;
  if (Allows(access, Access::kRemoteRead)) flags |= FI_REMOTE_READ;
  if (Allows(access, Access::kRemoteWrite)) flags |= FI_REMOTE_WRITE;
  const size_t key_bytes = info_->domain_attr->mr_key_size;
  uint64_t key = RandomNonZero64();
  if (key_bytes < sizeof(key)) key &= (uint64_t{1} << (8 * key_bytes)) - 1;
  fid_mr* mr = nullptr;
  if (const int rc =
          fi_mr_reg(domain_.get(), span.data, span.bytes, flags, 0, key, 0, &mr, nullptr);
      rc != 0) {
    return FiError(absl::StrCat(Name(), ": fi_mr_reg of ", span.bytes, " bytes"), rc);
  }
  return FiPtr<fid_mr>(mr);
}

void Domain::ReadEvents() const {
  if (events_ == nullptr) return;
  fi_eq_entry entry{};
  uint32_t event = 0;
  while (fi_eq_read(events_.get(), &event, &entry, sizeof(entry), 0) == -FI_EAVAIL) {
    fi_eq_err_entry error{};
    if (fi_eq_readerr(events_.get(), &error, 0) <= 0) return;
    Log(LogLevel::kWarning, "libfabric: {}: {}", Name(), fi_strerror(error.err));
  }
}

}  // namespace kvxfer::libfabric
