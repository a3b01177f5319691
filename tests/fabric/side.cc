#include "tests/fabric/side.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace kvxfer::testing {
namespace {

constexpr uint32_t kVersion = FI_VERSION(1, 17);
constexpr uint64_t kNoOp = 0;

void Must(ssize_t result, const char* call) {
  if (result >= 0) return;
  std::fprintf(stderr, "%s: %s (%zd)\n", call, fi_strerror(static_cast<int>(-result)), result);
  std::abort();
}

}  // namespace

struct Side::Context {
  fi_context2 provider{};  // first: it is what libfabric gets
  uint64_t op = kNoOp;
  bool receive = false;
};

void CloseFid::Close(fid* f) { Must(fi_close(f), "fi_close"); }

std::string Provider() {
  const char* const name = std::getenv("KVXFER_FABRIC_PROVIDER");
  return name == nullptr ? "efa" : name;
}

bool IsFake() { return std::getenv("FAKE_FABRIC") != nullptr; }

Info Hints() {
  Info hints(fi_allocinfo());
  hints->caps = FI_MSG | FI_RMA;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode =
      FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT | FI_MR_RAW;
  hints->domain_attr->threading = FI_THREAD_SAFE;
  hints->fabric_attr->prov_name = strdup(Provider().c_str());
  return hints;
}

int GetInfo(const fi_info& hints, Info* info) {
  fi_info* found = nullptr;
  const bool sockets = Provider().starts_with("tcp");
  const int result = fi_getinfo(kVersion, sockets ? "127.0.0.1" : nullptr, nullptr,
                                sockets ? FI_SOURCE : 0, &hints, &found);
  info->reset(found);
  return result;
}

Side::Side(fi_wait_obj wait) {
  Must(GetInfo(*Hints(), &info_), "fi_getinfo");
  fid_fabric* fabric = nullptr;
  Must(fi_fabric(info_->fabric_attr, &fabric, nullptr), "fi_fabric");
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  Must(fi_domain(fabric, info_.get(), &domain, nullptr), "fi_domain");
  domain_.reset(domain);
  fi_cq_attr cq_attr = {};
  cq_attr.size = 4096;
  cq_attr.format = FI_CQ_FORMAT_DATA;
  cq_attr.wait_obj = wait;
  fid_cq* cq = nullptr;
  Must(fi_cq_open(domain, &cq_attr, &cq, nullptr), "fi_cq_open");
  cq_.reset(cq);
  fi_av_attr av_attr = {};
  av_attr.type = FI_AV_TABLE;
  fid_av* av = nullptr;
  Must(fi_av_open(domain, &av_attr, &av, nullptr), "fi_av_open");
  av_.reset(av);
  endpoint_ = NewEndpoint();
}

Side::~Side() {
  for (const auto& [raw, key] : imported_) fi_mr_unmap_key(domain_.get(), key);
}

Fid<fid_ep> Side::NewEndpoint() {
  fid_ep* endpoint = nullptr;
  Must(fi_endpoint(domain_.get(), info_.get(), &endpoint, nullptr), "fi_endpoint");
  Must(fi_ep_bind(endpoint, &av_->fid, 0), "fi_ep_bind of the address vector");
  Must(fi_ep_bind(endpoint, &cq_->fid, FI_TRANSMIT | FI_RECV), "fi_ep_bind of the queue");
  Must(fi_enable(endpoint), "fi_enable");
  return Fid<fid_ep>(endpoint);
}

std::string Side::NameOf(fid_ep* endpoint) {
  std::string name(256, '\0');
  size_t bytes = name.size();
  Must(fi_getname(&endpoint->fid, name.data(), &bytes), "fi_getname");
  name.resize(bytes);
  return name;
}

fi_addr_t Side::Insert(const std::string& name) {
  fi_addr_t address = FI_ADDR_UNSPEC;
  const int inserted = fi_av_insert(av_.get(), name.data(), 1, &address, 0, nullptr);
  Must(inserted == 1 ? 0 : -FI_EINVAL, "fi_av_insert");
  return address;
}

uint64_t Side::Import(const RemoteMemory& remote) {
  if (remote.raw_size == 0) return remote.key;
  std::string raw(reinterpret_cast<const char*>(remote.raw), remote.raw_size);
  uint64_t& key = imported_[raw];
  if (key == 0) {
    Must(fi_mr_map_raw(domain_.get(), remote.base, reinterpret_cast<uint8_t*>(raw.data()),
                       raw.size(), &key, 0),
         "fi_mr_map_raw");
  }
  return key;
}

int Side::Register(void* base, size_t bytes, uint64_t access, uint64_t wanted_key,
                   Fid<fid_mr>* out) {
  const iovec iov = {base, bytes};
  fi_mr_attr attr = {};
  attr.mr_iov = &iov;
  attr.iov_count = 1;
  attr.access = access;
  attr.requested_key = wanted_key != 0 ? wanted_key : next_key_++;
  fid_mr* region = nullptr;
  const int result = fi_mr_regattr(domain_.get(), &attr, 0, &region);
  if (result == 0) out->reset(region);
  return result;
}

void Side::Enable(fid_mr* region) {
  if (!has(FI_MR_ENDPOINT)) return;
  Must(fi_mr_bind(region, &endpoint_->fid, 0), "fi_mr_bind");
  Must(fi_mr_enable(region), "fi_mr_enable");
}

RemoteMemory Side::Tell(fid_mr* region, const void* base) const {
  RemoteMemory remote;
  remote.base = has(FI_MR_VIRT_ADDR) ? reinterpret_cast<uint64_t>(base) : 0;
  remote.key = fi_mr_key(region);
  if (!has(FI_MR_RAW)) return remote;
  uint64_t raw_base = 0;
  size_t size = sizeof(remote.raw);
  Must(fi_mr_raw_attr(region, &raw_base, remote.raw, &size, 0), "fi_mr_raw_attr");
  remote.raw_size = size;
  return remote;
}

Memory::Memory(Side* side, size_t bytes, uint64_t access) : bytes_(bytes) {
  Must(side->Register(bytes_.data(), bytes, access, 0, &region_), "fi_mr_regattr");
  side->Enable(region_.get());
  remote_ = side->Tell(region_.get(), bytes_.data());
}

void* Side::NewContext(bool receive) {
  auto context = std::make_unique<Context>();
  context->op = next_op_++;
  context->receive = receive;
  void* const raw = context.get();
  contexts_[raw] = std::move(context);
  return raw;
}

ssize_t Side::Posted(ssize_t result, void* context) {
  if (result != 0) contexts_.erase(context);
  return result;
}

ssize_t Side::Post(fi_addr_t peer, Memory* local, const RemoteMemory& remote, const Write& write,
                   fid_ep* endpoint) {
  const iovec iov = {local->data() + write.from, write.bytes};
  const fi_rma_iov target = {
      .addr = remote.base + write.to, .len = write.bytes, .key = Import(remote)};
  void* desc = has(FI_MR_LOCAL) ? local->desc() : nullptr;
  fi_msg_rma message = {};
  message.msg_iov = &iov;
  message.desc = &desc;
  message.iov_count = 1;
  message.addr = peer;
  message.rma_iov = &target;
  message.rma_iov_count = 1;
  message.context = NewContext(false);
  message.data = write.data;
  const uint64_t flags =
      FI_COMPLETION | write.flags | (write.has_data ? FI_REMOTE_CQ_DATA : uint64_t{0});
  fid_ep* const from = endpoint != nullptr ? endpoint : endpoint_.get();
  return Posted(fi_writemsg(from, &message, flags), message.context);
}

ssize_t Side::PostRead(fi_addr_t peer, Memory* local, const RemoteMemory& remote, size_t from,
                       size_t to, size_t bytes) {
  void* const context = NewContext(false);
  return Posted(fi_read(endpoint_.get(), local->data() + to, bytes,
                        has(FI_MR_LOCAL) ? local->desc() : nullptr, peer, remote.base + from,
                        Import(remote), context),
                context);
}

ssize_t Side::PostSend(fi_addr_t peer, Memory* local, size_t from, size_t bytes) {
  void* const context = NewContext(false);
  return Posted(fi_send(endpoint_.get(), local->data() + from, bytes,
                        has(FI_MR_LOCAL) ? local->desc() : nullptr, peer, context),
                context);
}

ssize_t Side::PostReceive(Memory* local, size_t to, size_t bytes) {
  void* const context = NewContext(true);
  return Posted(fi_recv(endpoint_.get(), local->data() + to, bytes,
                        has(FI_MR_LOCAL) ? local->desc() : nullptr, FI_ADDR_UNSPEC, context),
                context);
}

void Side::End(void* context, int error, size_t bytes) {
  const auto found = contexts_.find(context);
  if (found == contexts_.end()) {
    // Told twice, or never posted.
    std::fprintf(stderr, "a completion of what is not outstanding\n");
    std::abort();
  }
  if (found->second->receive) received.push_back(error == 0 ? bytes : SIZE_MAX);
  ended.push_back({found->second->op, error});
  contexts_.erase(found);
}

void Side::Poll() {
  std::array<fi_cq_data_entry, 16> entries;
  const ssize_t got = fi_cq_read(cq_.get(), entries.data(), entries.size());
  if (got == -FI_EAVAIL) {
    fi_cq_err_entry error = {};
    if (fi_cq_readerr(cq_.get(), &error, 0) == 1) {
      // An arrival that failed has no context of ours.
      if (contexts_.contains(error.op_context)) End(error.op_context, error.err, 0);
    }
    return;
  }
  if (got == -FI_EAGAIN) return;
  Must(got, "fi_cq_read");
  for (ssize_t i = 0; i < got; ++i) {
    const fi_cq_data_entry& entry = entries[static_cast<size_t>(i)];
    if ((entry.flags & FI_REMOTE_WRITE) != 0) {
      if ((entry.flags & FI_REMOTE_CQ_DATA) != 0) arrived.push_back(entry.data);
    } else {
      End(entry.op_context, 0, entry.len);
    }
  }
}

}  // namespace kvxfer::testing
