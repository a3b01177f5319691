// Endpoints, and the calls that post to them.
#include <algorithm>

#include "tests/support/fake_fabric/domain.h"

namespace fake_fabric {
namespace {

int CloseEndpoint(fid* f) {
  auto* const endpoint = From<Endpoint>(f);
  Domain* const domain = endpoint->domain;
  const Domain::Hold hold(domain);
  domain->RemoveEndpoint(endpoint);
  domain->Withdraw(endpoint);
  if (endpoint->transmit != nullptr) --endpoint->transmit->users;
  if (endpoint->receive != nullptr) --endpoint->receive->users;
  if (endpoint->av != nullptr) --endpoint->av->users;
  --domain->users;
  delete endpoint;
  return 0;
}

int BindCq(Endpoint* endpoint, Cq* cq, uint64_t flags) {
  if ((flags & FI_SELECTIVE_COMPLETION) != 0) {
    if (!endpoint->domain->config().selective) return -FI_ENOSYS;
    endpoint->selective = true;
  }
  if ((flags & (FI_TRANSMIT | FI_RECV)) == 0) return -FI_EINVAL;
  if ((flags & FI_TRANSMIT) != 0) {
    if (endpoint->transmit != nullptr) return -FI_EINVAL;
    endpoint->transmit = cq;
    ++cq->users;
  }
  if ((flags & FI_RECV) != 0) {
    if (endpoint->receive != nullptr) return -FI_EINVAL;
    endpoint->receive = cq;
    ++cq->users;
  }
  return 0;
}

int BindEndpoint(fid* f, fid* to, uint64_t flags) {
  auto* const endpoint = From<Endpoint>(f);
  const Domain::Hold hold(endpoint->domain);
  if (endpoint->enabled) return -FI_EOPBADSTATE;
  if (to->fclass == FI_CLASS_CQ) return BindCq(endpoint, From<Cq>(to), flags);
  if (to->fclass == FI_CLASS_EQ) return 0;
  if (to->fclass != FI_CLASS_AV || endpoint->av != nullptr) return -FI_EINVAL;
  endpoint->av = From<Av>(to);
  ++endpoint->av->users;
  return 0;
}

int ControlEndpoint(fid* f, int command, void* /*arg*/) {
  auto* const endpoint = From<Endpoint>(f);
  const Domain::Hold hold(endpoint->domain);
  if (command != FI_ENABLE) return -FI_ENOSYS;
  if (endpoint->transmit == nullptr || endpoint->receive == nullptr) return -FI_ENOCQ;
  if (endpoint->av == nullptr) return -FI_ENOAV;
  if (endpoint->enabled) return -FI_EOPBADSTATE;
  endpoint->enabled = true;
  endpoint->domain->AddEndpoint(endpoint);
  return 0;
}

fi_ops fid_ops = {
    .size = sizeof(fi_ops),
    .close = &CloseEndpoint,
    .bind = &BindEndpoint,
    .control = &ControlEndpoint,
    .ops_open = &NotThere,
    .tostr = &NotThere,
    .ops_set = &NotThere,
};

// Of receives only: what was sent does not come back.
ssize_t Cancel(fid_t f, void* context) {
  auto* const endpoint = From<Endpoint>(f);
  const Domain::Hold hold(endpoint->domain);
  const auto found = std::find_if(endpoint->receives.begin(), endpoint->receives.end(),
                                  [&](const Receive& r) { return r.context == context; });
  if (found == endpoint->receives.end()) return -FI_ENOENT;
  endpoint->receives.erase(found);
  endpoint->receive->Push({.context = context, .flags = FI_MSG | FI_RECV, .error = FI_ECANCELED});
  return 0;
}

int SetOption(fid_t f, int level, int option, const void* value, size_t bytes) {
  if (level != FI_OPT_ENDPOINT) return -FI_ENOPROTOOPT;
  auto* const endpoint = From<Endpoint>(f);
  const Domain::Hold hold(endpoint->domain);
  if (option != FI_OPT_FI_HMEM_P2P) return 0;
  int how = 0;
  if (bytes != sizeof(how)) return -FI_EINVAL;
  if (endpoint->enabled) return -FI_EOPBADSTATE;
  std::memcpy(&how, value, sizeof(how));
  const Config& config = endpoint->domain->config();
  if (how == FI_HMEM_P2P_REQUIRED && !(config.hmem && config.p2p)) return -FI_EOPNOTSUPP;
  endpoint->device_only = how == FI_HMEM_P2P_REQUIRED;
  return 0;
}

fi_ops_ep endpoint_ops = {
    .size = sizeof(fi_ops_ep),
    .cancel = &Cancel,
    .getopt = &NotThere,
    .setopt = &SetOption,
    .tx_ctx = &NotThere,
    .rx_ctx = &NotThere,
    .rx_size_left = &NotThere,
    .tx_size_left = &NotThere,
};

int GetName(fid_t f, void* out, size_t* bytes) {
  const auto* const endpoint = From<Endpoint>(f);
  const Domain::Hold hold(endpoint->domain);
  if (!endpoint->enabled) return -FI_EOPBADSTATE;
  const size_t space = *bytes;
  *bytes = sizeof(Address);
  if (space < sizeof(Address) || out == nullptr) return -FI_ETOOSMALL;
  std::memcpy(out, &endpoint->address, sizeof(Address));
  return 0;
}

fi_ops_cm cm_ops = {
    .size = sizeof(fi_ops_cm),
    .setname = &NotThere,
    .getname = &GetName,
    .getpeer = &NotThere,
    .connect = &NotThere,
    .listen = &NotThere,
    .accept = &NotThere,
    .reject = &NotThere,
    .shutdown = &NotThere,
    .join = &NotThere,
};

ssize_t Post(fid_ep* f, const Posting& posting, bool takes_flags) {
  auto* const endpoint = static_cast<Endpoint*>(f);
  const Domain::Hold hold(endpoint->domain);
  Posting complete = posting;
  if (!takes_flags) complete.flags |= endpoint->default_flags & ~FI_INJECT;
  return endpoint->domain->Post(endpoint, complete);
}

// One remote piece that is as long as the local ones.
ssize_t PostRma(fid_ep* f, Kind kind, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
                uint64_t address, uint64_t key, void* context, const uint64_t* data,
                bool injected = false) {
  fi_rma_iov remote = {.addr = address, .len = 0, .key = key};
  for (size_t i = 0; i < count; ++i) remote.len += iov[i].iov_len;
  return Post(f,
              {.kind = kind,
               .iov = iov,
               .desc = desc,
               .count = count,
               .peer = peer,
               .remote = &remote,
               .remote_count = 1,
               .has_data = data != nullptr,
               .data = data != nullptr ? *data : 0,
               .context = context,
               .injected = injected},
              false);
}

ssize_t ReadV(fid_ep* f, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
              uint64_t address, uint64_t key, void* context) {
  return PostRma(f, Kind::kRead, iov, desc, count, peer, address, key, context, nullptr);
}

ssize_t Read(fid_ep* f, void* buffer, size_t bytes, void* desc, fi_addr_t peer, uint64_t address,
             uint64_t key, void* context) {
  const iovec iov = {buffer, bytes};
  return ReadV(f, &iov, &desc, 1, peer, address, key, context);
}

ssize_t WriteV(fid_ep* f, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
               uint64_t address, uint64_t key, void* context) {
  return PostRma(f, Kind::kWrite, iov, desc, count, peer, address, key, context, nullptr);
}

ssize_t Write(fid_ep* f, const void* buffer, size_t bytes, void* desc, fi_addr_t peer,
              uint64_t address, uint64_t key, void* context) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return WriteV(f, &iov, &desc, 1, peer, address, key, context);
}

ssize_t WriteData(fid_ep* f, const void* buffer, size_t bytes, void* desc, uint64_t data,
                  fi_addr_t peer, uint64_t address, uint64_t key, void* context) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return PostRma(f, Kind::kWrite, &iov, &desc, 1, peer, address, key, context, &data);
}

ssize_t InjectWrite(fid_ep* f, const void* buffer, size_t bytes, fi_addr_t peer, uint64_t address,
                    uint64_t key) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return PostRma(f, Kind::kWrite, &iov, nullptr, 1, peer, address, key, nullptr, nullptr, true);
}

ssize_t InjectWriteData(fid_ep* f, const void* buffer, size_t bytes, uint64_t data, fi_addr_t peer,
                        uint64_t address, uint64_t key) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return PostRma(f, Kind::kWrite, &iov, nullptr, 1, peer, address, key, nullptr, &data, true);
}

ssize_t PostRmaMessage(fid_ep* f, Kind kind, const fi_msg_rma* message, uint64_t flags) {
  return Post(f,
              {.kind = kind,
               .iov = message->msg_iov,
               .desc = message->desc,
               .count = message->iov_count,
               .peer = message->addr,
               .remote = message->rma_iov,
               .remote_count = message->rma_iov_count,
               .has_data = (flags & FI_REMOTE_CQ_DATA) != 0,
               .data = message->data,
               .context = message->context,
               .flags = flags},
              true);
}

ssize_t ReadMessage(fid_ep* f, const fi_msg_rma* message, uint64_t flags) {
  return PostRmaMessage(f, Kind::kRead, message, flags);
}

ssize_t WriteMessage(fid_ep* f, const fi_msg_rma* message, uint64_t flags) {
  return PostRmaMessage(f, Kind::kWrite, message, flags);
}

ssize_t PostSend(fid_ep* f, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
                 void* context, const uint64_t* data, bool injected) {
  return Post(f,
              {.kind = Kind::kSend,
               .iov = iov,
               .desc = desc,
               .count = count,
               .peer = peer,
               .has_data = data != nullptr,
               .data = data != nullptr ? *data : 0,
               .context = context,
               .injected = injected},
              false);
}

ssize_t SendV(fid_ep* f, const iovec* iov, void** desc, size_t count, fi_addr_t peer,
              void* context) {
  return PostSend(f, iov, desc, count, peer, context, nullptr, false);
}

ssize_t Send(fid_ep* f, const void* buffer, size_t bytes, void* desc, fi_addr_t peer,
             void* context) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return PostSend(f, &iov, &desc, 1, peer, context, nullptr, false);
}

ssize_t SendData(fid_ep* f, const void* buffer, size_t bytes, void* desc, uint64_t data,
                 fi_addr_t peer, void* context) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return PostSend(f, &iov, &desc, 1, peer, context, &data, false);
}

ssize_t InjectSend(fid_ep* f, const void* buffer, size_t bytes, fi_addr_t peer) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return PostSend(f, &iov, nullptr, 1, peer, nullptr, nullptr, true);
}

ssize_t InjectSendData(fid_ep* f, const void* buffer, size_t bytes, uint64_t data, fi_addr_t peer) {
  const iovec iov = {const_cast<void*>(buffer), bytes};
  return PostSend(f, &iov, nullptr, 1, peer, nullptr, &data, true);
}

ssize_t SendMessage(fid_ep* f, const fi_msg* message, uint64_t flags) {
  return Post(f,
              {.kind = Kind::kSend,
               .iov = message->msg_iov,
               .desc = message->desc,
               .count = message->iov_count,
               .peer = message->addr,
               .has_data = (flags & FI_REMOTE_CQ_DATA) != 0,
               .data = message->data,
               .context = message->context,
               .flags = flags},
              true);
}

ssize_t ReceiveV(fid_ep* f, const iovec* iov, void** desc, size_t count, fi_addr_t /*source*/,
                 void* context) {
  auto* const endpoint = static_cast<Endpoint*>(f);
  Domain* const domain = endpoint->domain;
  const Domain::Hold hold(domain);
  if (!endpoint->enabled) return -FI_EOPBADSTATE;
  if (count == 0 || count > domain->config().iov_limit) return -FI_EINVAL;
  if (endpoint->receives.size() >= endpoint->rx_size) return -FI_EAGAIN;
  if (domain->Chance(domain->config().eagain)) return -FI_EAGAIN;
  Receive receive = {.context = context, .count = count};
  for (size_t i = 0; i < count; ++i) {
    const bool bare = (domain->config().mr_mode & FI_MR_LOCAL) == 0 || iov[i].iov_len == 0;
    const void* const d = desc == nullptr ? nullptr : desc[i];
    if (!bare && !domain->Covers(d, iov[i], FI_RECV)) return -FI_EINVAL;
    receive.iov[i] = iov[i];
  }
  domain->WriteTo(context);
  endpoint->receives.push_back(receive);
  domain->ReceivePosted();
  return 0;
}

ssize_t ReceiveOne(fid_ep* f, void* buffer, size_t bytes, void* desc, fi_addr_t source,
                   void* context) {
  const iovec iov = {buffer, bytes};
  return ReceiveV(f, &iov, &desc, 1, source, context);
}

ssize_t ReceiveMessage(fid_ep* f, const fi_msg* message, uint64_t /*flags*/) {
  return ReceiveV(f, message->msg_iov, message->desc, message->iov_count, message->addr,
                  message->context);
}

fi_ops_rma rma_ops = {
    .size = sizeof(fi_ops_rma),
    .read = &Read,
    .readv = &ReadV,
    .readmsg = &ReadMessage,
    .write = &Write,
    .writev = &WriteV,
    .writemsg = &WriteMessage,
    .inject = &InjectWrite,
    .writedata = &WriteData,
    .injectdata = &InjectWriteData,
};

fi_ops_msg message_ops = {
    .size = sizeof(fi_ops_msg),
    .recv = &ReceiveOne,
    .recvv = &ReceiveV,
    .recvmsg = &ReceiveMessage,
    .send = &Send,
    .sendv = &SendV,
    .sendmsg = &SendMessage,
    .inject = &InjectSend,
    .senddata = &SendData,
    .injectdata = &InjectSendData,
};

}  // namespace

int OpenEndpoint(fid_domain* f, fi_info* info, fid_ep** out, void* context) {
  auto* const domain = static_cast<Domain*>(f);
  const Domain::Hold hold(domain);
  if (domain->endpoints() >= domain->config().max_endpoints) return -FI_ENOMEM;
  auto endpoint = std::make_unique<Endpoint>();
  endpoint->fid.fclass = FI_CLASS_EP;
  endpoint->fid.context = context;
  endpoint->fid.ops = &fid_ops;
  endpoint->ops = &endpoint_ops;
  endpoint->cm = &cm_ops;
  endpoint->msg = &message_ops;
  endpoint->rma = &rma_ops;
  endpoint->domain = domain;
  endpoint->default_flags = info->tx_attr->op_flags;
  endpoint->tx_size = std::min(info->tx_attr->size, domain->config().tx_size);
  endpoint->rx_size = std::min(info->rx_attr->size, domain->config().rx_size);
  endpoint->used = std::make_shared<size_t>(0);
  ++domain->users;
  *out = endpoint.release();
  return 0;
}

}  // namespace fake_fabric
