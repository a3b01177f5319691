// Memory registration, with whatever FI_MR_* bits the configuration has.
#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/fake_fabric/domain.h"
#include "tests/support/fake_fabric/gpu.h"

namespace fake_fabric {
namespace {

constexpr uint64_t kAccess =
    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;

bool Allocated(uint64_t base, uint64_t bytes) {
  const auto page = static_cast<uint64_t>(getpagesize());
  const uint64_t first = base / page * page;
  std::vector<unsigned char> resident((base + bytes - first + page - 1) / page);
  return mincore(reinterpret_cast<void*>(first), base + bytes - first, resident.data()) == 0;
}

int CloseRegion(fid* f) {
  auto* const region = From<Region>(f);
  Domain* const domain = region->domain;
  const Domain::Hold hold(domain);
  domain->RemoveRegion(region);
  --domain->users;
  delete region;
  return 0;
}

int BindRegion(fid* f, fid* to, uint64_t /*flags*/) {
  auto* const region = From<Region>(f);
  const Domain::Hold hold(region->domain);
  if ((region->domain->config().mr_mode & FI_MR_ENDPOINT) == 0 || to->fclass != FI_CLASS_EP ||
      region->endpoint != nullptr) {
    return -FI_EINVAL;
  }
  region->endpoint = From<Endpoint>(to);
  return 0;
}

int TellRawKey(const Region& region, const struct fi_mr_raw_attr& attr) {
  const uint64_t raw[2] = {region.remote_key, region.check};
  const bool is_raw = (region.domain->config().mr_mode & FI_MR_RAW) != 0;
  const size_t size = is_raw ? sizeof(raw) : sizeof(region.key);
  const size_t space = *attr.key_size;
  *attr.key_size = size;
  if (space < size || attr.raw_key == nullptr) return -FI_ETOOSMALL;
  if (attr.base_addr != nullptr) *attr.base_addr = region.base;
  if (is_raw) {
    std::memcpy(attr.raw_key, raw, size);
  } else {
    std::memcpy(attr.raw_key, &region.key, size);
  }
  return 0;
}

int ControlRegion(fid* f, int command, void* arg) {
  auto* const region = From<Region>(f);
  const Domain::Hold hold(region->domain);
  const int mode = region->domain->config().mr_mode;
  if (command == FI_ENABLE) {
    if ((mode & FI_MR_ENDPOINT) != 0) {
      if (region->endpoint == nullptr) return -FI_EINVAL;
      if (!region->endpoint->enabled) return -FI_EOPBADSTATE;
      region->enabled = true;
      region->key = (mode & FI_MR_RAW) != 0 ? FI_KEY_NOTAVAIL : region->remote_key;
    }
    return 0;
  }
  if (command == FI_GET_RAW_MR) {
    // Before it is enabled it has no key.
    if (!region->enabled) return -FI_EOPBADSTATE;
    return TellRawKey(*region, *static_cast<struct fi_mr_raw_attr*>(arg));
  }
  return -FI_ENOSYS;
}

fi_ops fid_ops = {
    .size = sizeof(fi_ops),
    .close = &CloseRegion,
    .bind = &BindRegion,
    .control = &ControlRegion,
    .ops_open = &NotThere,
    .tostr = &NotThere,
    .ops_set = &NotThere,
};

int RegisterAttr(fid* f, const fi_mr_attr* attr, uint64_t /*flags*/, fid_mr** out) {
  auto* const domain = From<Domain>(f);
  if (attr->iov_count != 1 || attr->offset != 0) return -FI_EINVAL;
  if (attr->access == 0 || (attr->access & ~kAccess) != 0) return -FI_EINVAL;
  LookForGpus();
  const auto base = reinterpret_cast<uint64_t>(attr->mr_iov[0].iov_base);
  if (attr->iface == FI_HMEM_CUDA && domain->config().hmem) {
    const int error = IsGpuMemory(base) ? CheckGpuMemory(base, attr->mr_iov[0].iov_len) : FI_EINVAL;
    if (error != 0) return -error;
  } else if (attr->iface != FI_HMEM_SYSTEM) {
    return -FI_ENOSYS;
  } else if (IsGpuMemory(base)) {
    return -FI_EFAULT;
  }
  auto region = std::make_unique<Region>();
  region->fid.fclass = FI_CLASS_MR;
  region->fid.context = attr->context;
  region->fid.ops = &fid_ops;
  region->domain = domain;
  region->base = base;
  region->bytes = attr->mr_iov[0].iov_len;
  region->access = attr->access;
  region->mem_desc = region.get();
  if (!region->ticket.valid()) return -FI_ENOMEM;
  const Domain::Hold hold(domain);
  if ((domain->config().mr_mode & FI_MR_ALLOCATED) != 0 &&
      !Allocated(region->base, region->bytes)) {
    return -FI_EFAULT;
  }
  const int error = domain->AddRegion(region.get(), attr->requested_key);
  if (error != 0) return error;
  ++domain->users;
  *out = region.release();
  return 0;
}

int RegisterVector(fid* f, const iovec* iov, size_t count, uint64_t access, uint64_t offset,
                   uint64_t requested_key, uint64_t flags, fid_mr** out, void* context) {
  fi_mr_attr attr = {};
  attr.mr_iov = iov;
  attr.iov_count = count;
  attr.access = access;
  attr.offset = offset;
  attr.requested_key = requested_key;
  attr.context = context;
  return RegisterAttr(f, &attr, flags, out);
}

int Register(fid* f, const void* buffer, size_t bytes, uint64_t access, uint64_t offset,
             uint64_t requested_key, uint64_t flags, fid_mr** out, void* context) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return RegisterVector(f, &iov, 1, access, offset, requested_key, flags, out, context);
}

}  // namespace

fi_ops_mr region_ops = {
    .size = sizeof(fi_ops_mr),
    .reg = &Register,
    .regv = &RegisterVector,
    .regattr = &RegisterAttr,
};

int Domain::AddRegion(Region* region, uint64_t wanted_key) {
  if (regions_.size() >= config_.max_regions) return -FI_ENOMEM;
  if ((config_.mr_mode & (FI_MR_PROV_KEY | FI_MR_RAW)) == 0) {
    if (regions_.contains(wanted_key)) return -FI_ENOKEY;
    region->remote_key = wanted_key;
  } else {
    const uint64_t mask =
        config_.mr_key_size >= 8 ? UINT64_MAX : (uint64_t{1} << (8 * config_.mr_key_size)) - 1;
    do {
      region->remote_key = TrulyRandom() & mask;
    } while (regions_.contains(region->remote_key));
  }
  if ((config_.mr_mode & FI_MR_RAW) != 0) region->check = TrulyRandom();
  region->enabled = (config_.mr_mode & FI_MR_ENDPOINT) == 0;
  const bool has_key = region->enabled && (config_.mr_mode & FI_MR_RAW) == 0;
  region->key = has_key ? region->remote_key : FI_KEY_NOTAVAIL;
  regions_[region->remote_key] = region;
  descriptors_.insert(region->mem_desc);
  return 0;
}

void Domain::RemoveRegion(Region* region) {
  regions_.erase(region->remote_key);
  descriptors_.erase(region->mem_desc);
}

bool Domain::Covers(const void* desc, const iovec& iov, uint64_t access) const {
  if (!descriptors_.contains(desc)) return false;
  const auto* const region = static_cast<const Region*>(desc);
  const auto address = reinterpret_cast<uint64_t>(iov.iov_base);
  return (region->access & access) != 0 && address >= region->base &&
         iov.iov_len <= region->bytes && address - region->base <= region->bytes - iov.iov_len;
}

}  // namespace fake_fabric
