// Finding a provider, and refusing those that do not fit.

#include "src/backends/libfabric/provider.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "src/core/base/strings.h"

namespace kvxfer::libfabric {
namespace {

// The version of libfabric's interface to ask for. With 1.18 efa's device writes and reads by
// itself if it can.
constexpr uint32_t kWrittenFor = FI_VERSION(1, 18);

// For GPU memory: FI_MR_DMABUF came with 1.20.
#ifdef FI_MR_DMABUF
constexpr uint32_t kWrittenForGpus = FI_VERSION(1, 20);
#else
constexpr uint32_t kWrittenForGpus = kWrittenFor;
#endif

// The version this backend was written for, or that of an older library.
uint32_t Version(bool gpu_memory) {
  return std::min<uint32_t>(fi_version(), gpu_memory ? kWrittenForGpus : kWrittenFor);
}

bool GoesByHosts(std::string_view provider) {
  constexpr std::array<std::string_view, 4> kPrefixes = {"tcp", "net", "verbs", "sockets"};
  return std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return provider.starts_with(prefix); });
}

// True: CPUs move the provider's bytes, also into GPU memory, on the default stream, one piece
// after the other. The agent's own staging is faster.
bool MovesByCpu(std::string_view provider) {
  constexpr std::array<std::string_view, 5> kPrefixes = {"tcp", "net", "udp", "sockets", "shm"};
  return std::ranges::any_of(kPrefixes,
                             [&](std::string_view prefix) { return provider.starts_with(prefix); });
}

// `data_bytes`: size of an immediate.
InfoPtr Hints(const std::string& provider, const std::string& domain, size_t data_bytes,
              bool gpu_memory) {
  InfoPtr hints(fi_allocinfo());
  if (hints == nullptr) return hints;
  hints->caps = FI_RMA;
  // Without FI_LOCAL_COMM efa (1.17 to 2.1) uses the device within a host too. Through shared
  // memory a peer's process would write into this one's, and nothing could stop it.
  if (provider == "efa") hints->caps |= FI_REMOTE_COMM;
  if (gpu_memory) hints->caps |= FI_HMEM;
  // End::Slot provides the context that these modes demand.
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->tx_attr->op_flags = FI_COMPLETION | FI_DELIVERY_COMPLETE;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  if (gpu_memory) hints->domain_attr->mr_mode |= FI_MR_HMEM;
  // Only Poll makes progress.
  hints->domain_attr->control_progress = FI_PROGRESS_MANUAL;
  hints->domain_attr->data_progress = FI_PROGRESS_MANUAL;
  // Registrations are made on any thread, also while the driver makes progress. A lock of ours
  // would make the driver wait for as long as a device pins memory.
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->domain_attr->cq_data_size = data_bytes;
  // Copies, because fi_freeinfo frees them.
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  if (!domain.empty()) hints->domain_attr->name = strdup(domain.c_str());
  return hints;
}

// `host`: the address to be reached at, if the provider uses host addresses.
int Ask(const fi_info* hints, const std::string& host, InfoPtr* found) {
  const bool by_host = GoesByHosts(hints->fabric_attr->prov_name) && !host.empty();
  fi_info* info = nullptr;
  const bool gpu_memory = (hints->caps & FI_HMEM) != 0;
  const int rc = fi_getinfo(Version(gpu_memory), by_host ? host.c_str() : nullptr, nullptr,
                            by_host ? FI_SOURCE : 0, hints, &info);
  found->reset(info);
  return rc;
}

// Why a provider that exists does not fit.
std::string WhatIsWrong(const std::string& provider, const std::string& host) {
  const InfoPtr hints(fi_allocinfo());
  if (hints == nullptr) return "no memory";
  // Allows every mode, so that the provider shows which one it demands.
  hints->mode = ~uint64_t{0};
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY |
                                FI_MR_RAW | FI_MR_ENDPOINT | FI_MR_MMU_NOTIFY | FI_MR_RMA_EVENT;
  hints->fabric_attr->prov_name = strdup(provider.c_str());
  InfoPtr info;
  if (Ask(hints.get(), host, &info) != 0) {
    return "there is none here that has reliable datagrams; fi_info shows what there is, and "
           "`libfabric.provider` (KVXFER_LIBFABRIC_PROVIDER) takes another";
  }
  const int mode = info->domain_attr->mr_mode;
  constexpr std::string_view kElse = "; take another provider, or the backend ucx, verbs or tcp";
  if ((mode & FI_MR_ENDPOINT) != 0) {
    return absl::StrCat(
        "its registrations are for one endpoint each (FI_MR_ENDPOINT), and kvxfer "
        "registers for all",
        ToAbsl(kElse));
  }
  if ((mode & FI_MR_RAW) != 0) {
    return absl::StrCat("its keys are longer than 8 bytes (FI_MR_RAW), which kvxfer does not carry",
                        ToAbsl(kElse));
  }
  if (info->domain_attr->threading != FI_THREAD_SAFE) {
    return absl::StrCat("it may not be called by several threads at once (FI_THREAD_SAFE)",
                        ToAbsl(kElse));
  }
  return absl::StrCat(
      "it has no remote writes that complete when they are delivered (FI_RMA, "
      "FI_DELIVERY_COMPLETE)",
      ToAbsl(kElse));
}

// True: the parameter `name` of libfabric is set to true.
bool IsSet(std::string_view name) {
  fi_param* params = nullptr;
  int count = 0;
  if (fi_getparams(&params, &count) != 0) return false;
  constexpr std::array<std::string_view, 4> kTrue = {"1", "on", "true", "yes"};
  bool is = false;
  for (int i = 0; i < count; ++i) {
    if (params[i].name != name || params[i].value == nullptr) continue;
    is = std::ranges::find(kTrue, params[i].value) != kTrue.end();
  }
  fi_freeparams(params);
  return is;
}

}  // namespace

absl::StatusOr<InfoPtr> FindProvider(const std::string& provider, const std::string& domain,
                                     const std::string& host, bool gpu_memory) {
  struct Wish {
    size_t data_bytes;
    bool gpu_memory;
  };
  constexpr size_t kPiggybacked = sizeof(uint32_t);
  int rc = 0;
  // Immediates matter most; without them they are sent over the control stream. GPU memory comes
  // second; without it the agent stages it.
  for (const Wish& wish :
       {Wish{kPiggybacked, true}, {kPiggybacked, false}, {0, true}, {0, false}}) {
    if (wish.gpu_memory && (!gpu_memory || MovesByCpu(provider))) continue;
    const InfoPtr hints = Hints(provider, domain, wish.data_bytes, wish.gpu_memory);
    if (hints == nullptr) return absl::ResourceExhaustedError("libfabric: fi_allocinfo");
    InfoPtr found;
    rc = Ask(hints.get(), host, &found);
    if (rc != 0) continue;
    // Some providers claim capabilities that they were not asked for.
    if (!wish.gpu_memory) found->caps &= ~FI_HMEM;
    // An endpoint has one peer, and some providers pin memory for the most that could ever be in
    // flight.
    found->tx_attr->size = std::min<size_t>(found->tx_attr->size, kMaxFlights);
    found->rx_attr->size = std::min<size_t>(found->rx_attr->size, kMaxFlights + kMaxUnheard);
    return found;
  }
  return absl::UnavailableError(absl::StrCat("libfabric: provider ", provider,
                                             domain.empty() ? "" : ", domain ", domain, " (",
                                             fi_strerror(-rc), "): ", WhatIsWrong(provider, host)));
}

int KeepToTheDevice(fid_ep* endpoint) {
  const int required = FI_HMEM_P2P_REQUIRED;
  const int rc =
      fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_FI_HMEM_P2P, &required, sizeof(required));
#if FI_MAJOR_VERSION > 1 || FI_MINOR_VERSION >= 18
  // For bytes that the provider receives into its own buffers first: the device then copies them
  // into GPU memory. The result is ignored, because only some providers know the option.
  const bool permitted = false;
  if (rc == 0) {
    (void)fi_setopt(&endpoint->fid, FI_OPT_ENDPOINT, FI_OPT_CUDA_API_PERMITTED, &permitted,
                    sizeof(permitted));
  }
#endif
  return rc;
}

absl::Status CheckClosing(std::string_view provider) {
  if (provider.find("ofi_rxm") != std::string_view::npos) {
    return absl::FailedPreconditionError(absl::StrCat(
        "libfabric: the provider ", ToAbsl(provider),
        " crashes when an endpoint is closed while its peer writes (seen with 1.17); use net, or "
        "the backends verbs and tcp"));
  }
  if (provider != "shm" || IsSet("FI_SHM_DISABLE_CMA")) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "libfabric: with the provider shm a peer's process writes into this one's memory, and "
      "nothing stops it; set FI_SHM_DISABLE_CMA=1 for both, or use the backend shm");
}

absl::Status CheckReach(std::string_view provider, bool same_host) {
  if (provider == "shm" && !same_host) {
    return absl::UnavailableError("the libfabric provider shm reaches processes of one host only");
  }
  return absl::OkStatus();
}

}  // namespace kvxfer::libfabric
