// Completion queues, address vectors and event queues.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "tests/support/fake_fabric/domain.h"

namespace fake_fabric {
namespace {

int CloseCq(fid* f) {
  auto* const cq = From<Cq>(f);
  const Domain::Hold hold(cq->domain);
  if (cq->users > 0) return -FI_EBUSY;
  if (cq->event >= 0) close(cq->event);
  --cq->domain->users;
  delete cq;
  return 0;
}

int ControlCq(fid* f, int command, void* arg) {
  const auto* const cq = From<Cq>(f);
  if (command != FI_GETWAIT || cq->event < 0) return -FI_ENOSYS;
  *static_cast<int*>(arg) = cq->event;
  return 0;
}

fi_ops cq_fid_ops = {
    .size = sizeof(fi_ops),
    .close = &CloseCq,
    .bind = &NotThere,
    .control = &ControlCq,
    .ops_open = &NotThere,
    .tostr = &NotThere,
    .ops_set = &NotThere,
};

size_t EntryBytes(fi_cq_format format) {
  switch (format) {
    case FI_CQ_FORMAT_MSG:
      return sizeof(fi_cq_msg_entry);
    case FI_CQ_FORMAT_DATA:
      return sizeof(fi_cq_data_entry);
    case FI_CQ_FORMAT_TAGGED:
      return sizeof(fi_cq_tagged_entry);
    default:
      return sizeof(fi_cq_entry);
  }
}

// Each format is the beginning of the next.
void Store(const Completion& completion, fi_cq_format format, size_t index, void* out) {
  fi_cq_tagged_entry entry = {};
  entry.op_context = completion.context;
  entry.flags = completion.flags;
  entry.len = completion.bytes;
  entry.buf = completion.buffer;
  entry.data = completion.data;
  const size_t bytes = EntryBytes(format);
  std::memcpy(static_cast<std::byte*>(out) + index * bytes, &entry, bytes);
}

void GiveBack(const Completion& completion) {
  if (completion.space != nullptr) --*completion.space;
}

ssize_t ReadFrom(fid_cq* f, void* buffer, size_t count, fi_addr_t* source) {
  auto* const cq = static_cast<Cq*>(f);
  Domain* const domain = cq->domain;
  const Domain::Hold hold(domain);
  domain->Progress();
  if (!cq->failed.empty() && (cq->ready.empty() || domain->Chance(0.5))) return -FI_EAVAIL;
  if (cq->ready.empty()) {
    eventfd_t ignored = 0;
    if (cq->event >= 0) eventfd_read(cq->event, &ignored);
    return -FI_EAGAIN;
  }
  size_t done = 0;
  for (; done < count && !cq->ready.empty(); ++done) {
    const size_t window = std::min(cq->ready.size(), domain->config().window);
    const size_t chosen =
        domain->config().order == Order::kNone ? domain->Below(window) : size_t{0};
    const auto at = cq->ready.begin() + static_cast<ptrdiff_t>(chosen);
    Store(*at, cq->format, done, buffer);
    if (source != nullptr) source[done] = at->source;
    GiveBack(*at);
    cq->ready.erase(at);
  }
  return static_cast<ssize_t>(done);
}

ssize_t Read(fid_cq* f, void* buffer, size_t count) { return ReadFrom(f, buffer, count, nullptr); }

ssize_t ReadError(fid_cq* f, fi_cq_err_entry* out, uint64_t /*flags*/) {
  auto* const cq = static_cast<Cq*>(f);
  const Domain::Hold hold(cq->domain);
  if (cq->failed.empty()) return -FI_EAGAIN;
  const Completion completion = cq->failed.front();
  cq->failed.pop_front();
  GiveBack(completion);
  // err_data and its size are the caller's: room for what the provider has to say.
  out->op_context = completion.context;
  out->flags = completion.flags;
  out->len = completion.bytes;
  out->buf = completion.buffer;
  out->data = completion.data;
  out->tag = 0;
  out->olen = completion.left_out;
  out->err = completion.error;
  out->prov_errno = completion.error;
  out->err_data_size = 0;
  return 1;
}

const char* ErrorText(fid_cq* /*cq*/, int error, const void* /*data*/, char* buffer, size_t space) {
  const char* const text = fi_strerror(error);
  if (buffer != nullptr && space > 0) {
    std::strncpy(buffer, text, space - 1);
    buffer[space - 1] = '\0';
  }
  return text;
}

fi_ops_cq cq_ops = {
    .size = sizeof(fi_ops_cq),
    .read = &Read,
    .readfrom = &ReadFrom,
    .readerr = &ReadError,
    .sread = &NotThere,
    .sreadfrom = &NotThere,
    .signal = &NotThere,
    .strerror = &ErrorText,
};

int CloseAv(fid* f) {
  auto* const av = From<Av>(f);
  const Domain::Hold hold(av->domain);
  if (av->users > 0) return -FI_EBUSY;
  --av->domain->users;
  delete av;
  return 0;
}

int Insert(fid_av* f, const void* addresses, size_t count, fi_addr_t* out, uint64_t flags,
           void* /*context*/) {
  auto* const av = static_cast<Av*>(f);
  if (flags != 0) return -FI_EINVAL;
  const Domain::Hold hold(av->domain);
  int good = 0;
  for (size_t i = 0; i < count; ++i) {
    Address address;
    std::memcpy(&address, static_cast<const std::byte*>(addresses) + i * sizeof(address),
                sizeof(address));
    if (out != nullptr) out[i] = address.node == 0 ? FI_ADDR_NOTAVAIL : av->entries.size();
    if (address.node == 0) continue;
    av->indices[address] = av->entries.size();
    av->entries.push_back(address);
    ++good;
  }
  return good;
}

int Remove(fid_av* f, fi_addr_t* addresses, size_t count, uint64_t /*flags*/) {
  auto* const av = static_cast<Av*>(f);
  const Domain::Hold hold(av->domain);
  for (size_t i = 0; i < count; ++i) {
    if (av->Find(addresses[i]) == nullptr) return -FI_EINVAL;
    av->indices.erase(av->entries[addresses[i]]);
    av->entries[addresses[i]] = Address{};
  }
  return 0;
}

int LookUp(fid_av* f, fi_addr_t address, void* out, size_t* bytes) {
  auto* const av = static_cast<Av*>(f);
  const Domain::Hold hold(av->domain);
  const Address* const found = av->Find(address);
  if (found == nullptr) return -FI_EINVAL;
  std::memcpy(out, found, std::min(*bytes, sizeof(*found)));
  *bytes = sizeof(*found);
  return 0;
}

const char* AddressText(fid_av* /*av*/, const void* address, char* buffer, size_t* bytes) {
  Address a;
  std::memcpy(&a, address, sizeof(a));
  const int needed = std::snprintf(buffer, *bytes, "fi_addr_fake://%016llx:%u:%08x",
                                   static_cast<unsigned long long>(a.node), a.qpn, a.qkey);
  *bytes = static_cast<size_t>(needed) + 1;
  return buffer;
}

fi_ops av_fid_ops = {
    .size = sizeof(fi_ops),
    .close = &CloseAv,
    .bind = &NotThere,
    .control = &NotThere,
    .ops_open = &NotThere,
    .tostr = &NotThere,
    .ops_set = &NotThere,
};

fi_ops_av av_ops = {
    .size = sizeof(fi_ops_av),
    .insert = &Insert,
    .insertsvc = &NotThere,
    .insertsym = &NotThere,
    .remove = &Remove,
    .lookup = &LookUp,
    .straddr = &AddressText,
    .av_set = &NotThere,
};

int CloseEq(fid* f) {
  auto* const eq = From<Eq>(f);
  --eq->fabric->users;
  delete eq;
  return 0;
}

// Nothing here is announced by an event.
ssize_t ReadEq(fid_eq*, uint32_t*, void*, size_t, uint64_t) { return -FI_EAGAIN; }
ssize_t ReadEqError(fid_eq*, fi_eq_err_entry*, uint64_t) { return -FI_EAGAIN; }

fi_ops eq_fid_ops = {
    .size = sizeof(fi_ops),
    .close = &CloseEq,
    .bind = &NotThere,
    .control = &NotThere,
    .ops_open = &NotThere,
    .tostr = &NotThere,
    .ops_set = &NotThere,
};

fi_ops_eq eq_ops = {
    .size = sizeof(fi_ops_eq),
    .read = &ReadEq,
    .readerr = &ReadEqError,
    .write = &NotThere,
    .sread = &NotThere,
    .strerror = nullptr,
};

}  // namespace

void Cq::Push(Completion completion) {
  (completion.error == 0 ? ready : failed).push_back(std::move(completion));
  Signal();
}

void Cq::Signal() const {
  if (event >= 0) eventfd_write(event, 1);
}

const Address* Av::Find(fi_addr_t address) const {
  const bool known = address < entries.size() && entries[address].node != 0;
  return known ? &entries[address] : nullptr;
}

fi_addr_t Av::IndexOf(const Address& address) const {
  const auto found = indices.find(address);
  return found == indices.end() ? FI_ADDR_NOTAVAIL : found->second;
}

int OpenCq(fid_domain* f, fi_cq_attr* attr, fid_cq** out, void* context) {
  auto* const domain = static_cast<Domain*>(f);
  const bool wait = attr->wait_obj == FI_WAIT_FD || attr->wait_obj == FI_WAIT_UNSPEC;
  if (attr->wait_obj != FI_WAIT_NONE && (!wait || !domain->config().wait_fd)) return -FI_ENOSYS;
  auto cq = std::make_unique<Cq>();
  cq->fid.fclass = FI_CLASS_CQ;
  cq->fid.context = context;
  cq->fid.ops = &cq_fid_ops;
  cq->ops = &cq_ops;
  cq->domain = domain;
  cq->format = attr->format == FI_CQ_FORMAT_UNSPEC ? FI_CQ_FORMAT_CONTEXT : attr->format;
  if (wait) {
    cq->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (cq->event < 0) return -FI_EMFILE;
  }
  const Domain::Hold hold(domain);
  ++domain->users;
  *out = cq.release();
  return 0;
}

int OpenAv(fid_domain* f, fi_av_attr* attr, fid_av** out, void* context) {
  auto* const domain = static_cast<Domain*>(f);
  if ((attr->flags & FI_EVENT) != 0) return -FI_ENOSYS;
  auto av = std::make_unique<Av>();
  av->fid.fclass = FI_CLASS_AV;
  av->fid.context = context;
  av->fid.ops = &av_fid_ops;
  av->ops = &av_ops;
  av->domain = domain;
  attr->type = attr->type == FI_AV_UNSPEC ? FI_AV_TABLE : attr->type;
  const Domain::Hold hold(domain);
  ++domain->users;
  *out = av.release();
  return 0;
}

int OpenEq(fid_fabric* f, fi_eq_attr* attr, fid_eq** out, void* context) {
  if (attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC) return -FI_ENOSYS;
  auto* const eq = new Eq{};
  eq->fid.fclass = FI_CLASS_EQ;
  eq->fid.context = context;
  eq->fid.ops = &eq_fid_ops;
  eq->ops = &eq_ops;
  eq->fabric = static_cast<Fabric*>(f);
  ++eq->fabric->users;
  *out = eq;
  return 0;
}

// 0: who sleeps on the descriptors now is woken by the next thing that happens.
int TryWait(fid_fabric* /*fabric*/, fid** fids, int count) {
  for (int i = 0; i < count; ++i) {
    if (fids[i]->fclass != FI_CLASS_CQ) continue;
    auto* const cq = From<Cq>(fids[i]);
    const Domain::Hold hold(cq->domain);
    if (cq->event < 0) return -FI_EINVAL;
    eventfd_t ignored = 0;
    eventfd_read(cq->event, &ignored);
    const bool automatic = cq->domain->config().progress == Progress::kAuto;
    if (!cq->ready.empty() || !cq->failed.empty() || (!automatic && cq->domain->HasWork())) {
      return -FI_EAGAIN;
    }
  }
  return 0;
}

}  // namespace fake_fabric
