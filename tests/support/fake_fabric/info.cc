// fi_getinfo and what goes with it: one fi_info for each device of the configuration that has what
// the hints ask for. Plain malloc: fi_freeinfo frees what applications put into hints too.
#include <rdma/fabric.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/support/fake_fabric/config.h"
#include "tests/support/fake_fabric/wire.h"

namespace fake_fabric {
namespace {

constexpr uint64_t kTransmitCaps = FI_MSG | FI_RMA | FI_READ | FI_WRITE | FI_SEND;
constexpr uint64_t kReceiveCaps =
    FI_MSG | FI_RMA | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE | FI_SOURCE;
constexpr uint64_t kDomainCaps = FI_LOCAL_COMM | FI_REMOTE_COMM;
constexpr uint64_t kOpFlags =
    FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;

template <typename T>
T* Zeroed() {
  return static_cast<T*>(std::calloc(1, sizeof(T)));
}

template <typename T>
T* Copy(const T* from) {
  T* const to = Zeroed<T>();
  if (from != nullptr) *to = *from;
  return to;
}

void* CopyBytes(const void* from, size_t bytes) {
  if (from == nullptr || bytes == 0) return nullptr;
  void* const to = std::malloc(bytes);
  std::memcpy(to, from, bytes);
  return to;
}

char* CopyString(const char* from) { return from == nullptr ? nullptr : strdup(from); }

int CloseNic(fid* f) {
  auto* const nic = reinterpret_cast<fid_nic*>(f);
  if (nic->device_attr != nullptr) std::free(nic->device_attr->name);
  if (nic->link_attr != nullptr) {
    std::free(nic->link_attr->address);
    std::free(nic->link_attr->network_type);
  }
  std::free(nic->device_attr);
  std::free(nic->bus_attr);
  std::free(nic->link_attr);
  std::free(nic);
  return 0;
}

fi_ops nic_ops = {
    .size = sizeof(fi_ops),
    .close = &CloseNic,
    .bind = nullptr,
    .control = nullptr,
    .ops_open = nullptr,
    .tostr = nullptr,
    .ops_set = nullptr,
};

fid_nic* NewNic() {
  auto* const nic = Zeroed<fid_nic>();
  nic->fid.fclass = FI_CLASS_NIC;
  nic->fid.ops = &nic_ops;
  nic->device_attr = Zeroed<fi_device_attr>();
  nic->bus_attr = Zeroed<fi_bus_attr>();
  nic->link_attr = Zeroed<fi_link_attr>();
  return nic;
}

fid_nic* CopyNic(const fid_nic* from) {
  fid_nic* const to = NewNic();
  if (from->device_attr != nullptr) to->device_attr->name = CopyString(from->device_attr->name);
  if (from->bus_attr != nullptr) *to->bus_attr = *from->bus_attr;
  if (from->link_attr != nullptr) {
    *to->link_attr = *from->link_attr;
    to->link_attr->address = CopyString(from->link_attr->address);
    to->link_attr->network_type = CopyString(from->link_attr->network_type);
  }
  return to;
}

uint64_t MessageOrder(const Config& config) {
  if (config.order == Order::kNone) return 0;
  if (config.order == Order::kMessages) return FI_ORDER_SAS;
  return FI_ORDER_SAS | FI_ORDER_SAW | FI_ORDER_WAS | FI_ORDER_WAW | FI_ORDER_RMA_WAW;
}

void FillEndpoint(const Config& config, fi_info* info) {
  info->caps = kTransmitCaps | kReceiveCaps | kDomainCaps | (config.hmem ? FI_HMEM : 0);
  info->mode = config.context2 ? FI_CONTEXT2 : 0;
  info->addr_format = FI_ADDR_EFA;
  *info->tx_attr = {.caps = kTransmitCaps,
                    .mode = info->mode,
                    .op_flags = FI_COMPLETION | FI_TRANSMIT_COMPLETE,
                    .msg_order = MessageOrder(config),
                    .comp_order = FI_ORDER_NONE,
                    .inject_size = config.inject_size,
                    .size = config.tx_size,
                    .iov_limit = config.iov_limit,
                    .rma_iov_limit = config.rma_iov_limit,
                    .tclass = 0};
  *info->rx_attr = {.caps = kReceiveCaps,
                    .mode = info->mode,
                    .op_flags = FI_COMPLETION,
                    .msg_order = MessageOrder(config),
                    .comp_order = FI_ORDER_NONE,
                    .total_buffered_recv = 0,
                    .size = config.rx_size,
                    .iov_limit = config.iov_limit};
  info->ep_attr->type = FI_EP_RDM;
  info->ep_attr->protocol = FI_PROTO_EFA;
  info->ep_attr->protocol_version = 4;
  info->ep_attr->max_msg_size = config.max_msg_size;
  info->ep_attr->tx_ctx_cnt = info->ep_attr->rx_ctx_cnt = 1;
  if (config.order == Order::kAll) info->ep_attr->max_order_waw_size = config.max_msg_size;
}

void FillDomain(const Config& config, const std::string& name, fi_info* info) {
  fi_domain_attr& domain = *info->domain_attr;
  domain.name = strdup(name.c_str());
  domain.threading = config.thread_safe ? FI_THREAD_SAFE : FI_THREAD_DOMAIN;
  const fi_progress progress =
      config.progress == Progress::kAuto ? FI_PROGRESS_AUTO : FI_PROGRESS_MANUAL;
  domain.control_progress = domain.data_progress = progress;
  domain.resource_mgmt = FI_RM_ENABLED;
  domain.av_type = FI_AV_UNSPEC;
  domain.mr_mode = config.mr_mode;
  domain.mr_key_size = config.mr_key_size;
  domain.cq_data_size = config.cq_data_size;
  domain.cq_cnt = domain.ep_cnt = config.max_endpoints;
  domain.tx_ctx_cnt = domain.rx_ctx_cnt = config.max_endpoints;
  domain.max_ep_tx_ctx = domain.max_ep_rx_ctx = 1;
  domain.mr_iov_limit = 1;
  domain.mr_cnt = config.max_regions;
  domain.caps = kDomainCaps;
}

fi_info* NewInfo(const Config& config, size_t device) {
  fi_info* const info = fi_dupinfo(nullptr);
  FillEndpoint(config, info);
  const std::string name = config.device + std::to_string(device) + "-rdm";
  FillDomain(config, name, info);
  info->fabric_attr->name = strdup(config.fabric.c_str());
  info->fabric_attr->prov_name = strdup(config.provider.c_str());
  info->fabric_attr->prov_version = FI_VERSION(117, 0);
  info->fabric_attr->api_version = fi_version();
  info->nic = NewNic();
  info->nic->device_attr->name = strdup((config.device + std::to_string(device)).c_str());
  info->nic->bus_attr->bus_type = FI_BUS_PCI;
  info->nic->bus_attr->attr.pci = {.domain_id = 0,
                                   .bus_id = static_cast<uint8_t>(0x10 + device),
                                   .device_id = 0,
                                   .function_id = 0};
  info->nic->link_attr->mtu = config.mtu;
  info->nic->link_attr->speed = 100'000'000'000;
  info->nic->link_attr->state = FI_LINK_UP;
  info->nic->link_attr->network_type = strdup("Ethernet");
  return info;
}

bool Named(const char* wanted, const char* have) {
  return wanted == nullptr || std::strcmp(wanted, have) == 0;
}

bool DomainFits(const fi_domain_attr& want, const fi_domain_attr& have) {
  // All of the bits that the provider needs must be there; more do not matter.
  return Named(want.name, have.name) && (have.mr_mode & ~want.mr_mode) == 0 &&
         (want.threading == FI_THREAD_UNSPEC || want.threading == have.threading ||
          have.threading == FI_THREAD_SAFE) &&
         want.mr_key_size <= have.mr_key_size && want.cq_data_size <= have.cq_data_size &&
         (want.data_progress == FI_PROGRESS_UNSPEC || want.data_progress == have.data_progress ||
          have.data_progress == FI_PROGRESS_AUTO) &&
         (want.caps & ~have.caps) == 0;
}

bool EndpointFits(const fi_info& want, const fi_info& have) {
  if (want.ep_attr != nullptr &&
      ((want.ep_attr->type != FI_EP_UNSPEC && want.ep_attr->type != FI_EP_RDM) ||
       want.ep_attr->max_msg_size > have.ep_attr->max_msg_size)) {
    return false;
  }
  if (want.tx_attr != nullptr) {
    const fi_tx_attr& tx = *want.tx_attr;
    if ((tx.msg_order & ~have.tx_attr->msg_order) != 0 || (tx.op_flags & ~kOpFlags) != 0 ||
        tx.comp_order != FI_ORDER_NONE || tx.inject_size > have.tx_attr->inject_size ||
        tx.size > have.tx_attr->size || tx.iov_limit > have.tx_attr->iov_limit ||
        tx.rma_iov_limit > have.tx_attr->rma_iov_limit || (tx.caps & ~have.tx_attr->caps) != 0) {
      return false;
    }
  }
  if (want.rx_attr != nullptr) {
    const fi_rx_attr& rx = *want.rx_attr;
    if ((rx.msg_order & ~have.rx_attr->msg_order) != 0 || rx.size > have.rx_attr->size ||
        rx.iov_limit > have.rx_attr->iov_limit || rx.comp_order != FI_ORDER_NONE ||
        (rx.caps & ~have.rx_attr->caps) != 0) {
      return false;
    }
  }
  return true;
}

bool Fits(const fi_info& want, const fi_info& have) {
  if ((want.caps & ~have.caps) != 0 || (have.mode & ~want.mode) != 0) return false;
  if (want.addr_format != FI_FORMAT_UNSPEC && want.addr_format != have.addr_format) return false;
  if (want.fabric_attr != nullptr &&
      (!Named(want.fabric_attr->name, have.fabric_attr->name) ||
       !Named(want.fabric_attr->prov_name, have.fabric_attr->prov_name))) {
    return false;
  }
  return (want.domain_attr == nullptr || DomainFits(*want.domain_attr, *have.domain_attr)) &&
         EndpointFits(want, have);
}

// What the answer takes over from the hints: what is used, of what may be.
void Narrow(const fi_info& want, fi_info* info) {
  if (want.caps != 0) {
    // As efa: who asks for other hosts alone gets nothing that is of this one.
    const bool remote = (want.caps & kDomainCaps) == FI_REMOTE_COMM;
    info->caps = want.caps | (remote ? FI_REMOTE_COMM : kDomainCaps);
    info->tx_attr->caps &= info->caps;
    info->rx_attr->caps &= info->caps;
  }
  if (want.tx_attr != nullptr) {
    if (want.tx_attr->op_flags != 0) info->tx_attr->op_flags = want.tx_attr->op_flags;
    if (want.tx_attr->size != 0) info->tx_attr->size = want.tx_attr->size;
  }
  if (want.rx_attr != nullptr && want.rx_attr->size != 0) {
    info->rx_attr->size = want.rx_attr->size;
  }
  if (want.domain_attr == nullptr) return;
  if (want.domain_attr->av_type != FI_AV_UNSPEC) {
    info->domain_attr->av_type = want.domain_attr->av_type;
  }
  if (want.domain_attr->threading != FI_THREAD_UNSPEC) {
    info->domain_attr->threading = want.domain_attr->threading;
  }
  if (want.domain_attr->data_progress != FI_PROGRESS_UNSPEC) {
    info->domain_attr->data_progress = want.domain_attr->data_progress;
  }
}

}  // namespace
}  // namespace fake_fabric

using fake_fabric::Config;

extern "C" {

uint32_t fi_version(void) {
  return FI_VERSION(FI_MAJOR_VERSION, fake_fabric::ReadConfig().api_minor);
}

int fi_getinfo(uint32_t version, const char* /*node*/, const char* /*service*/, uint64_t /*flags*/,
               const struct fi_info* hints, struct fi_info** info) {
  const Config config = fake_fabric::ReadConfig();
  *info = nullptr;
  if (FI_VERSION_LT(FI_VERSION(FI_MAJOR_VERSION, config.api_minor), version)) return -FI_ENOSYS;
  fi_info** end = info;
  for (size_t i = 0; i < config.devices; ++i) {
    fi_info* const candidate = fake_fabric::NewInfo(config, i);
    if (hints != nullptr && !fake_fabric::Fits(*hints, *candidate)) {
      fi_freeinfo(candidate);
      continue;
    }
    if (hints != nullptr) fake_fabric::Narrow(*hints, candidate);
    candidate->fabric_attr->api_version = version;
    *end = candidate;
    end = &candidate->next;
  }
  return *info == nullptr ? -FI_ENODATA : 0;
}

void fi_freeinfo(struct fi_info* info) {
  while (info != nullptr) {
    fi_info* const next = info->next;
    std::free(info->src_addr);
    std::free(info->dest_addr);
    std::free(info->tx_attr);
    std::free(info->rx_attr);
    if (info->ep_attr != nullptr) std::free(info->ep_attr->auth_key);
    std::free(info->ep_attr);
    if (info->domain_attr != nullptr) {
      std::free(info->domain_attr->auth_key);
      std::free(info->domain_attr->name);
    }
    std::free(info->domain_attr);
    if (info->fabric_attr != nullptr) {
      std::free(info->fabric_attr->name);
      std::free(info->fabric_attr->prov_name);
    }
    std::free(info->fabric_attr);
    if (info->nic != nullptr) fi_close(&info->nic->fid);
    std::free(info);
    info = next;
  }
}

struct fi_info* fi_dupinfo(const struct fi_info* info) {
  using fake_fabric::Copy;
  using fake_fabric::CopyString;
  fi_info* const copy = Copy(info);
  copy->next = nullptr;
  copy->src_addr = info ? fake_fabric::CopyBytes(info->src_addr, info->src_addrlen) : nullptr;
  copy->dest_addr = info ? fake_fabric::CopyBytes(info->dest_addr, info->dest_addrlen) : nullptr;
  copy->tx_attr = Copy(info ? info->tx_attr : nullptr);
  copy->rx_attr = Copy(info ? info->rx_attr : nullptr);
  copy->ep_attr = Copy(info ? info->ep_attr : nullptr);
  copy->ep_attr->auth_key = static_cast<uint8_t*>(
      fake_fabric::CopyBytes(copy->ep_attr->auth_key, copy->ep_attr->auth_key_size));
  copy->domain_attr = Copy(info ? info->domain_attr : nullptr);
  copy->domain_attr->auth_key = static_cast<uint8_t*>(
      fake_fabric::CopyBytes(copy->domain_attr->auth_key, copy->domain_attr->auth_key_size));
  copy->domain_attr->name = CopyString(copy->domain_attr->name);
  copy->fabric_attr = Copy(info ? info->fabric_attr : nullptr);
  copy->fabric_attr->name = CopyString(copy->fabric_attr->name);
  copy->fabric_attr->prov_name = CopyString(copy->fabric_attr->prov_name);
  copy->nic = info && info->nic ? fake_fabric::CopyNic(info->nic) : nullptr;
  return copy;
}

const char* fi_strerror(int errnum) {
  switch (errnum) {
    case FI_EAVAIL:
      return "Error available";
    case FI_ETRUNC:
      return "Truncation error";
    case FI_ENOKEY:
      return "Required key not available";
    case FI_EOPBADSTATE:
      return "Operation not permitted in current state";
    case FI_ETOOSMALL:
      return "Provided buffer is too small";
    default:
      return errnum < FI_ERRNO_OFFSET ? std::strerror(errnum) : "Unspecified error";
  }
}

char* fi_tostr_r(char* buf, size_t len, const void* data, enum fi_type datatype) {
  if (len == 0) return nullptr;
  std::snprintf(buf, len, "fake fabric, type %d at %p", static_cast<int>(datatype), data);
  return buf;
}

char* fi_tostr(const void* data, enum fi_type datatype) {
  static thread_local char text[64];
  return fi_tostr_r(text, sizeof(text), data, datatype);
}

// Its settings are FAKE_FABRIC's, and no parameters.
int fi_getparams(struct fi_param** params, int* count) {
  *params = nullptr;
  *count = 0;
  return 0;
}

void fi_freeparams(struct fi_param* /*params*/) {}

}  // extern "C"
