#include "tests/support/null_device.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/ibv.h"

// Counted by name (benchmarks/micro/callgrind), so each of these is one function to be called.
#if defined(__clang__)
#define KVXFER_ONE_FUNCTION __attribute__((noinline))
#else
#define KVXFER_ONE_FUNCTION __attribute__((noipa))
#endif

namespace kvxfer::testing {
namespace {

constexpr uint32_t kWord = 8;

struct NullChannel : ibv_comp_channel {
  NullChannel() : ibv_comp_channel{} {}
  std::deque<ibv_cq*> events;
};

struct NullCq : ibv_cq {
  NullCq() : ibv_cq{} {}
  std::vector<ibv_wc> entries;  // from `taken` on
  size_t taken = 0;
  bool armed = false;
};

struct NullQp : ibv_qp {
  NullQp() : ibv_qp{} {}
  uint32_t peer = 0;
};

struct Wire {
  std::mutex mutex;
  std::map<uint32_t, NullQp*> queue_pairs;
  uint32_t last_number = 0;
  uint32_t last_key = 0;
  DeviceCounts counts;
};

Wire& TheWire() {
  static Wire wire;
  return wire;
}

// With the wire's lock.
void Push(NullCq& cq, const ibv_wc& entry) {
  cq.entries.push_back(entry);
  if (!std::exchange(cq.armed, false)) return;
  auto* channel = static_cast<NullChannel*>(cq.channel);
  channel->events.push_back(&cq);
  ::eventfd_write(channel->fd, 1);
}

// A word goes from here to there, or back; blocks of more are left where they are.
void MoveWord(const ibv_send_wr& request) {
  if (request.num_sge != 1 || request.sg_list[0].length != kWord) return;
  auto* here = reinterpret_cast<std::byte*>(request.sg_list[0].addr);
  auto* there = reinterpret_cast<std::byte*>(request.wr.rdma.remote_addr);
  if (request.opcode == IBV_WR_RDMA_READ) std::swap(here, there);
  std::memcpy(there, here, kWord);
}

class NullDevice final : public verbs::Ibv {
 public:
  explicit NullDevice(std::string name) : name_(std::move(name)) {}

  // --- devices and ports ---
  int ListDevices(std::vector<std::string>& names) override {
    names.push_back(name_);
    return 0;
  }
  ibv_context* Open(const std::string&) override {
    auto* context = new ibv_context{};
    context->async_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return context;
  }
  int Close(ibv_context* context) override {
    ::close(context->async_fd);
    delete context;
    return 0;
  }
  int QueryDevice(ibv_context*, ibv_device_attr* attr) override {
    *attr = {};
    attr->max_cqe = 1 << 20;
    attr->max_qp_wr = 1 << 14;
    attr->max_sge = 16;
    attr->max_srq_wr = 1 << 14;
    attr->max_qp_rd_atom = attr->max_qp_init_rd_atom = 16;
    attr->phys_port_cnt = 1;
    return 0;
  }
  int QueryPort(ibv_context*, uint8_t, ibv_port_attr* attr) override {
    *attr = {};
    attr->state = IBV_PORT_ACTIVE;
    attr->active_mtu = attr->max_mtu = IBV_MTU_4096;
    attr->gid_tbl_len = attr->pkey_tbl_len = 1;
    attr->active_width = 2;
    attr->active_speed = 128;
    attr->link_layer = IBV_LINK_LAYER_ETHERNET;
    return 0;
  }
  int QueryGid(ibv_context*, uint8_t port, uint32_t, ibv_gid_entry* entry) override {
    *entry = {};
    entry->port_num = port;
    entry->gid_type = IBV_GID_TYPE_ROCE_V2;
    entry->gid.raw[10] = entry->gid.raw[11] = 0xff;
    entry->gid.raw[12] = 10;
    return 0;
  }
  int QueryPkey(ibv_context*, uint8_t, int, uint16_t* pkey) override {
    *pkey = 0xffff;
    return 0;
  }

  // --- memory ---
  ibv_pd* AllocPd(ibv_context* context) override {
    auto* pd = new ibv_pd{};
    pd->context = context;
    return pd;
  }
  int DeallocPd(ibv_pd* pd) override {
    delete pd;
    return 0;
  }
  ibv_mr* RegMr(ibv_pd*, void*, size_t, int) override {
    auto* mr = new ibv_mr{};
    const std::lock_guard lock(wire_.mutex);
    mr->lkey = mr->rkey = ++wire_.last_key;
    return mr;
  }
  int DeregMr(ibv_mr* mr) override {
    delete mr;
    return 0;
  }

  // --- queues ---
  ibv_comp_channel* CreateChannel(ibv_context*) override {
    auto* channel = new NullChannel;
    channel->fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return channel;
  }
  int DestroyChannel(ibv_comp_channel* channel) override {
    ::close(channel->fd);
    delete static_cast<NullChannel*>(channel);
    return 0;
  }
  ibv_cq* CreateCq(ibv_context*, int cqe, void*, ibv_comp_channel* channel) override {
    auto* cq = new NullCq;
    cq->cqe = cqe;
    cq->channel = channel;
    return cq;
  }
  int DestroyCq(ibv_cq* cq) override {
    delete static_cast<NullCq*>(cq);
    return 0;
  }
  ibv_srq* CreateSrq(ibv_pd*, ibv_srq_init_attr*) override { return new ibv_srq{}; }
  int ArmSrqLimit(ibv_srq*, uint32_t) override { return 0; }
  int DestroySrq(ibv_srq* srq) override {
    delete srq;
    return 0;
  }
  ibv_qp* CreateQp(ibv_pd*, ibv_qp_init_attr* attr) override {
    auto* qp = new NullQp;
    qp->send_cq = attr->send_cq;
    qp->recv_cq = attr->recv_cq;
    const std::lock_guard lock(wire_.mutex);
    qp->qp_num = ++wire_.last_number;
    wire_.queue_pairs[qp->qp_num] = qp;
    return qp;
  }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override {
    if ((mask & IBV_QP_DEST_QPN) != 0) static_cast<NullQp*>(qp)->peer = attr->dest_qp_num;
    return 0;
  }
  int DestroyQp(ibv_qp* qp) override {
    const std::lock_guard lock(wire_.mutex);
    wire_.queue_pairs.erase(qp->qp_num);
    delete static_cast<NullQp*>(qp);
    return 0;
  }

  // --- the way of the data ---
  int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) override;
  // It passes no messages: agents over it have AgentOptions::control on tcp.
  int PostRecv(ibv_qp*, ibv_recv_wr*, ibv_recv_wr**) override { return EOPNOTSUPP; }
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad) override;
  int PollCq(ibv_cq* cq, int count, ibv_wc* out) override;
  int ReqNotify(ibv_cq* cq) override;
  int NextCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override;
  int NextAsyncEvent(ibv_context* context, ibv_async_event* event) override;

 private:
  const std::string name_;
  Wire& wire_ = TheWire();
};

KVXFER_ONE_FUNCTION int NullDevice::PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr**) {
  const std::lock_guard lock(wire_.mutex);
  DeviceCounts& counts = wire_.counts;
  ++counts.doorbells;
  for (const ibv_send_wr* request = first; request != nullptr; request = request->next) {
    ++counts.requests;
    counts.elements += static_cast<uint64_t>(request->num_sge);
    MoveWord(*request);
    ibv_wc entry{};
    if (request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
      const auto peer = wire_.queue_pairs.find(static_cast<NullQp*>(qp)->peer);
      if (peer == wire_.queue_pairs.end()) continue;
      entry.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
      entry.imm_data = request->imm_data;
      entry.qp_num = peer->first;
      entry.wc_flags = IBV_WC_WITH_IMM;
      ++counts.receive_entries;
      Push(*static_cast<NullCq*>(peer->second->recv_cq), entry);
    }
    if ((request->send_flags & IBV_SEND_SIGNALED) == 0) continue;
    entry = {};
    entry.wr_id = request->wr_id;
    entry.qp_num = qp->qp_num;
    ++counts.send_entries;
    Push(*static_cast<NullCq*>(qp->send_cq), entry);
  }
  return 0;
}

KVXFER_ONE_FUNCTION int NullDevice::PostSrqRecv(ibv_srq*, ibv_recv_wr* first, ibv_recv_wr**) {
  const std::lock_guard lock(wire_.mutex);
  ++wire_.counts.receive_doorbells;
  for (; first != nullptr; first = first->next) ++wire_.counts.receives_posted;
  return 0;
}

KVXFER_ONE_FUNCTION int NullDevice::PollCq(ibv_cq* cq, int count, ibv_wc* out) {
  const std::lock_guard lock(wire_.mutex);
  auto* queue = static_cast<NullCq*>(cq);
  const size_t some = std::min(static_cast<size_t>(count), queue->entries.size() - queue->taken);
  std::copy_n(queue->entries.begin() + static_cast<std::ptrdiff_t>(queue->taken), some, out);
  queue->taken += some;
  if (queue->taken == queue->entries.size()) {
    queue->entries.clear();
    queue->taken = 0;
  }
  return static_cast<int>(some);
}

KVXFER_ONE_FUNCTION int NullDevice::ReqNotify(ibv_cq* cq) {
  const std::lock_guard lock(wire_.mutex);
  static_cast<NullCq*>(cq)->armed = true;
  return 0;
}

KVXFER_ONE_FUNCTION int NullDevice::NextCqEvent(ibv_comp_channel* channel, ibv_cq** cq) {
  const std::lock_guard lock(wire_.mutex);
  auto& events = static_cast<NullChannel*>(channel)->events;
  if (events.empty()) {
    eventfd_t count = 0;
    ::eventfd_read(channel->fd, &count);
    return EAGAIN;
  }
  *cq = events.front();
  events.pop_front();
  return 0;
}

KVXFER_ONE_FUNCTION int NullDevice::NextAsyncEvent(ibv_context*, ibv_async_event*) {
  return EAGAIN;
}

}  // namespace

DeviceCounts DeviceCounts::operator-(const DeviceCounts& before) const {
  return {.doorbells = doorbells - before.doorbells,
          .requests = requests - before.requests,
          .elements = elements - before.elements,
          .send_entries = send_entries - before.send_entries,
          .receive_entries = receive_entries - before.receive_entries,
          .receives_posted = receives_posted - before.receives_posted,
          .receive_doorbells = receive_doorbells - before.receive_doorbells};
}

DeviceCounts CountsOfNullDevices() {
  Wire& wire = TheWire();
  const std::lock_guard lock(wire.mutex);
  return wire.counts;
}

absl::StatusOr<std::unique_ptr<Backend>> MakeNullVerbs(std::string_view,
                                                       const BackendContext& context) {
  return verbs::VerbsBackend::Create(context,
                                     std::make_unique<NullDevice>("null_" + context.options.name));
}

}  // namespace kvxfer::testing
