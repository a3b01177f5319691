#include "tests/support/verbs_fabric.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/support/verbs_fabric_objects.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kChunk = 128 * 1024;
constexpr size_t kWindow = 16;
constexpr Duration kNotReadyTimer = std::chrono::milliseconds(1);

ibv_gid LinkLocal(uint8_t subnet, uint8_t host) {
  ibv_gid gid{};
  gid.raw[0] = 0xfe;
  gid.raw[1] = 0x80;
  gid.raw[14] = subnet;
  gid.raw[15] = host;
  return gid;
}

ibv_gid Mapped(uint8_t subnet, uint8_t host) {
  ibv_gid gid{};
  gid.raw[10] = gid.raw[11] = 0xff;
  gid.raw[12] = 10;
  gid.raw[13] = 77;
  gid.raw[14] = subnet;
  gid.raw[15] = host;
  return gid;
}

}  // namespace

FabricPort RocePort(uint8_t subnet, uint8_t host) {
  FabricPort port;
  port.gids = {{0, IBV_GID_TYPE_ROCE_V1, LinkLocal(subnet, host)},
               {1, IBV_GID_TYPE_ROCE_V2, LinkLocal(subnet, host)},
               {4, IBV_GID_TYPE_ROCE_V1, Mapped(subnet, host)},
               {5, IBV_GID_TYPE_ROCE_V2, Mapped(subnet, host)}};
  return port;
}

FabricPort InfinibandPort(uint16_t lid, uint64_t subnet_prefix) {
  FabricPort port;
  port.link_layer = IBV_LINK_LAYER_INFINIBAND;
  port.lid = lid;
  ibv_gid gid{};
  gid.global.subnet_prefix = htobe64(subnet_prefix);
  gid.global.interface_id = htobe64(0x0002c90300000000 + lid);
  port.gids = {{0, IBV_GID_TYPE_IB, gid}};
  return port;
}

VerbsFabric::VerbsFabric(std::vector<FabricDevice> devices) : devices_(std::move(devices)) {
  thread_ = std::thread([this] { Run(); });
}

VerbsFabric::~VerbsFabric() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  thread_.join();
  // What a device would not destroy.
  for (const auto& [object, free] : objects_) free(object);
}

int VerbsFabric::Find(const std::string& device) const {
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (devices_[i].name == device) return static_cast<int>(i);
  }
  return -1;
}

FabricPort& VerbsFabric::Port(int device, uint8_t port) {
  return devices_[static_cast<size_t>(device)].ports[port - 1u];
}

size_t VerbsFabric::Any(size_t size) {
  return random_ ? (*random_)() % std::min(size, kWindow) : 0;
}

const FabricPort* VerbsFabric::OwnerOf(const ibv_gid& gid) const {
  for (const FabricDevice& device : devices_) {
    for (const FabricPort& port : device.ports) {
      const auto is = [&](const FabricGid& own) {
        return std::memcmp(&own.gid, &gid, sizeof(gid)) == 0;
      };
      if (std::ranges::any_of(port.gids, is)) return &port;
    }
  }
  return nullptr;
}

int VerbsFabric::Enter(Call call) {
  const uint64_t number = ++calls_[static_cast<size_t>(call)];
  const auto it = std::ranges::find_if(
      planned_, [&](const Planned& p) { return p.call == call && p.at == number; });
  if (it == planned_.end()) return 0;
  const int error = it->error;
  planned_.erase(it);
  return error;
}

// --- the hardware --------------------------------------------------------------------------------

void VerbsFabric::Run() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    const Time now = Now();
    DeliverDelayed(now);
    GiveBackReceives(now);
    bool moved = false;
    bool waits = !delayed_.empty() || receives_kept_.has_value();
    if (!held_) {
      for (auto& [number, qp] : qps_) {
        const Step step = Progress(*qp, now);
        moved = moved || step == Step::kMoved;
        waits = waits || step == Step::kWaits;
      }
    }
    if (moved) {
      // Others are to get the lock between two chunks.
      lock.unlock();
      std::this_thread::yield();
      lock.lock();
    } else if (waits) {
      wake_.wait_for(lock, std::chrono::microseconds(500));
    } else {
      wake_.wait(lock);
    }
  }
}

bool VerbsFabric::Reachable(const Qp& qp, Qp*& remote) {
  const auto it = qps_.find(qp.attr.dest_qp_num);
  if (it == qps_.end()) return false;
  remote = it->second;
  if (remote->state != IBV_QPS_RTR && remote->state != IBV_QPS_RTS) return false;
  if (remote->attr.dest_qp_num != qp.qp_num || remote->attr.rq_psn != qp.attr.sq_psn) return false;
  const FabricPort& from = Port(static_cast<Context*>(qp.context)->index, qp.attr.port_num);
  const FabricPort& to = Port(static_cast<Context*>(remote->context)->index, remote->attr.port_num);
  if (from.state != IBV_PORT_ACTIVE || to.state != IBV_PORT_ACTIVE) return false;
  if (from.network != to.network || from.link_layer != to.link_layer) return false;
  if (qp.attr.ah_attr.is_global != 0) {
    return std::ranges::any_of(to.gids, [&](const FabricGid& entry) {
      return std::memcmp(&entry.gid, &qp.attr.ah_attr.grh.dgid, sizeof(ibv_gid)) == 0;
    });
  }
  return qp.attr.ah_attr.dlid == to.lid;
}

bool VerbsFabric::CheckLocal(const Qp& qp, const Wqe& wqe) {
  if (!wqe.inlined.empty()) return true;
  return std::ranges::all_of(wqe.sges, [&](const ibv_sge& sge) { return IsRegistered(qp, sge); });
}

bool VerbsFabric::IsRegistered(const Qp& qp, const ibv_sge& sge) const {
  const auto it = mrs_.find(sge.lkey);
  if (it == mrs_.end() || it->second->pd != qp.pd) return false;
  const auto base = reinterpret_cast<uint64_t>(it->second->addr);
  return sge.addr >= base && sge.length <= it->second->length &&
         sge.addr - base <= it->second->length - sge.length;
}

VerbsFabric::Mr* VerbsFabric::CheckRemote(const Qp& remote, const Wqe& wqe, int access) {
  const auto it = mrs_.find(wqe.wr.wr.rdma.rkey);
  if (it == mrs_.end() || it->second->pd != remote.pd || (it->second->access & access) == 0) {
    return nullptr;
  }
  const auto base = reinterpret_cast<uint64_t>(it->second->addr);
  const uint64_t at = wqe.wr.wr.rdma.remote_addr;
  const bool inside =
      at >= base && wqe.bytes <= it->second->length && at - base <= it->second->length - wqe.bytes;
  return inside ? it->second : nullptr;
}

VerbsFabric::Place VerbsFabric::Find(uint32_t key, uint64_t address) const {
  const auto it = mrs_.find(key);
  if (it == mrs_.end() || !it->second->gpu) return {.at = address};
  const uint64_t offset = address - reinterpret_cast<uint64_t>(it->second->addr);
  return {.at = it->second->gpu_at + offset, .gpu = true};
}

bool VerbsFabric::Copy(const Wqe& wqe, uint64_t from, uint64_t bytes) {
  Place remote = Find(wqe.wr.wr.rdma.rkey, wqe.wr.wr.rdma.remote_addr);
  remote.at += from;
  if (!wqe.inlined.empty()) {
    return Move(remote, {.at = reinterpret_cast<uint64_t>(wqe.inlined.data()) + from}, bytes);
  }
  for (const ibv_sge& sge : wqe.sges) {
    if (bytes == 0) return true;
    if (from >= sge.length) {
      from -= sge.length;
      continue;
    }
    const uint64_t part = std::min<uint64_t>(bytes, sge.length - from);
    Place local = Find(sge.lkey, sge.addr);
    local.at += from;
    const bool read = wqe.wr.opcode == IBV_WR_RDMA_READ;
    if (!(read ? Move(local, remote, part) : Move(remote, local, part))) return false;
    remote.at += part;
    bytes -= part;
    from = 0;
  }
  return true;
}

VerbsFabric::Step VerbsFabric::Progress(Qp& qp, Time now) {
  if (qp.requests.empty() || qp.state != IBV_QPS_RTS) return Step::kIdle;
  if (qp.requests.front().untouched()) {
    std::swap(qp.requests.front(), qp.requests[Any(qp.requests.size())]);
  }
  Wqe& wqe = qp.requests.front();
  if (wqe.retry_at > now) return Step::kWaits;
  if (wqe.over) return End(qp, wqe.outcome, now);
  Qp* remote = nullptr;
  if (wqe.waits_ack || !Reachable(qp, remote)) {
    if (wqe.give_up == Time{}) wqe.give_up = now + retry_time_;
    if (now < wqe.give_up) return Step::kWaits;
    Finish(qp, IBV_WC_RETRY_EXC_ERR);
    return Step::kMoved;
  }
  wqe.give_up = Time{};
  if (!CheckLocal(qp, wqe)) {
    Finish(qp, IBV_WC_LOC_PROT_ERR);
    return Step::kMoved;
  }
  if (wqe.wr.opcode == IBV_WR_SEND) return Send(qp, *remote, now);
  const bool read = wqe.wr.opcode == IBV_WR_RDMA_READ;
  const int access = read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if (fail_writes_ > 0 && !read && wqe.bytes >= fail_writes_from_) {
    --fail_writes_;
    return End(qp, fail_writes_with_, now);
  }
  if (wqe.bytes > 0 && CheckRemote(*remote, wqe, access) == nullptr) {
    RaiseLocked(*static_cast<Context*>(remote->context),
                {.element = {.qp = remote}, .event_type = IBV_EVENT_QP_ACCESS_ERR});
    SetError(*remote);
    return End(qp, IBV_WC_REM_ACCESS_ERR, now);
  }
  const bool tells = wqe.wr.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  auto* srq = static_cast<Srq*>(remote->srq);
  if (tells && (srq == nullptr || srq->receives.empty())) return NotReady(qp, now);
  const uint64_t part = std::min(kChunk, wqe.bytes - wqe.done);
  if (part > 0 && !Copy(wqe, wqe.done, part)) return End(qp, IBV_WC_REM_OP_ERR, now);
  moved_[static_cast<const Context*>(qp.context)->index] += part;
  wqe.done += part;
  if (wqe.done < wqe.bytes) return Step::kMoved;
  if (tells) {
    ibv_wc wc{};
    wc.wr_id = srq->receives.front();
    wc.status = IBV_WC_SUCCESS;
    wc.opcode = IBV_WC_RECV_RDMA_WITH_IMM;
    wc.byte_len = static_cast<uint32_t>(wqe.bytes);
    wc.imm_data = wqe.wr.imm_data;
    wc.qp_num = remote->qp_num;
    wc.wc_flags = IBV_WC_WITH_IMM;
    srq->receives.pop_front();
    Enqueue(*static_cast<Cq*>(remote->recv_cq), wc);
    CheckLimit(*srq);
  }
  const bool signalled = qp.all_signalled || (wqe.wr.send_flags & IBV_SEND_SIGNALED) != 0;
  if (signalled && lose_acks_ > 0) {
    --lose_acks_;
    wqe.waits_ack = true;
    return Step::kWaits;
  }
  return End(qp, IBV_WC_SUCCESS, now);
}

// The first request of `qp` finds no receive.
VerbsFabric::Step VerbsFabric::NotReady(Qp& qp, Time now) {
  ++not_ready_;
  Wqe& wqe = qp.requests.front();
  constexpr uint8_t kForEver = 7;
  if (qp.attr.rnr_retry != kForEver && ++wqe.not_ready > qp.attr.rnr_retry) {
    return End(qp, IBV_WC_RNR_RETRY_EXC_ERR, now);
  }
  wqe.retry_at = now + kNotReadyTimer;
  return Step::kWaits;
}

VerbsFabric::Step VerbsFabric::Send(Qp& qp, Qp& remote, Time now) {
  Wqe& wqe = qp.requests.front();
  if (remote.receives.empty()) return NotReady(qp, now);
  const bool fails = fail_send_ > 0 && --fail_send_ == 0;
  if (fails && !fail_send_arrives_) return End(qp, fail_send_with_, now);
  const Receive receive = remote.receives.front();
  remote.receives.pop_front();
  ibv_wc wc{};
  wc.wr_id = receive.id;
  wc.opcode = IBV_WC_RECV;
  wc.byte_len = static_cast<uint32_t>(wqe.bytes);
  wc.qp_num = remote.qp_num;
  wc.status = wqe.bytes > receive.sge.length       ? IBV_WC_LOC_LEN_ERR
              : !IsRegistered(remote, receive.sge) ? IBV_WC_LOC_PROT_ERR
                                                   : IBV_WC_SUCCESS;
  uint64_t to = receive.sge.addr;
  const auto copy = [&](uint64_t from, uint64_t bytes) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    to += bytes;
  };
  if (wc.status == IBV_WC_SUCCESS && !wqe.inlined.empty()) {
    copy(reinterpret_cast<uint64_t>(wqe.inlined.data()), wqe.inlined.size());
  } else if (wc.status == IBV_WC_SUCCESS) {
    for (const ibv_sge& sge : wqe.sges) copy(sge.addr, sge.length);
  }
  Enqueue(*static_cast<Cq*>(remote.recv_cq), wc);
  if (wc.status != IBV_WC_SUCCESS) {
    SetError(remote);
    return End(qp, wc.status == IBV_WC_LOC_LEN_ERR ? IBV_WC_REM_INV_REQ_ERR : IBV_WC_REM_OP_ERR,
               now);
  }
  ++sends_;
  return End(qp, fails ? fail_send_with_ : IBV_WC_SUCCESS, now);
}

// The peer's device is through with the first request of `qp`.
VerbsFabric::Step VerbsFabric::End(Qp& qp, ibv_wc_status status, Time now) {
  Wqe& wqe = qp.requests.front();
  if (!std::exchange(wqe.over, true)) wqe.heard = now + ack_delay_;
  wqe.outcome = status;
  if (wqe.heard > now) return Step::kWaits;
  Finish(qp, status);
  return Step::kMoved;
}

// The first request of `qp` is over.
void VerbsFabric::Finish(Qp& qp, ibv_wc_status status) {
  const Wqe wqe = std::move(qp.requests.front());
  qp.requests.pop_front();
  const bool signalled = qp.all_signalled || (wqe.wr.send_flags & IBV_SEND_SIGNALED) != 0;
  ibv_wc wc{};
  wc.wr_id = wqe.wr.wr_id;
  wc.status = status;
  wc.qp_num = qp.qp_num;
  wc.vendor_err = status == IBV_WC_SUCCESS ? 0 : 0x88;
  if (status == IBV_WC_SUCCESS && signalled && lose_completions_ > 0) {
    --lose_completions_;
    return;
  }
  if (signalled || status != IBV_WC_SUCCESS) {
    Push(*static_cast<Cq*>(qp.send_cq), wc, Now() + completion_delay_);
  }
  if (status != IBV_WC_SUCCESS) SetError(qp);
}

void VerbsFabric::SetError(Qp& qp) {
  if (const auto before = std::exchange(qp.state, IBV_QPS_ERR); before != IBV_QPS_ERR) {
    auto* srq = static_cast<Srq*>(qp.srq);
    if (srq != nullptr && receives_kept_ && before == IBV_QPS_RTR && !srq->receives.empty()) {
      qp.receive = srq->receives.front();
      srq->receives.pop_front();
    }
    qp.gives_back = Now() + receives_kept_.value_or(Duration{});
    qp.last_receive_due = srq != nullptr;
    GiveBackReceives(Now());
  }
  for (; !qp.receives.empty(); qp.receives.pop_front()) {
    ibv_wc wc{};
    wc.wr_id = qp.receives.front().id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.qp_num = qp.qp_num;
    Enqueue(*static_cast<Cq*>(qp.recv_cq), wc);
  }
  while (!qp.requests.empty()) {
    ibv_wc wc{};
    wc.wr_id = qp.requests.front().wr.wr_id;
    wc.status = IBV_WC_WR_FLUSH_ERR;
    wc.qp_num = qp.qp_num;
    wc.vendor_err = 0xf5;
    qp.requests.pop_front();
    Push(*static_cast<Cq*>(qp.send_cq), wc, Now() + completion_delay_);
  }
}

void VerbsFabric::GiveBackReceives(Time now) {
  for (auto& [number, qp] : qps_) {
    if (!qp->last_receive_due || qp->gives_back > now) continue;
    qp->last_receive_due = false;
    if (qp->receive) {
      ibv_wc wc{};
      wc.wr_id = *qp->receive;
      wc.status = IBV_WC_WR_FLUSH_ERR;
      wc.qp_num = number;
      qp->receive.reset();
      Enqueue(*static_cast<Cq*>(qp->recv_cq), wc);
    }
    RaiseLocked(*static_cast<Context*>(qp->context),
                {.element = {.qp = qp}, .event_type = IBV_EVENT_QP_LAST_WQE_REACHED});
  }
}

void VerbsFabric::Push(Cq& cq, const ibv_wc& wc, Time ready) {
  if (completion_delay_ == Duration{} && delayed_.empty()) return Enqueue(cq, wc);
  delayed_.push_back({ready, &cq, wc});
}

void VerbsFabric::DeliverDelayed(Time now) {
  while (!delayed_.empty() && delayed_.front().ready <= now) {
    const Delayed delayed = delayed_.front();
    delayed_.pop_front();
    Enqueue(*delayed.cq, delayed.wc);
  }
}

void VerbsFabric::Enqueue(Cq& cq, const ibv_wc& wc) {
  if (cq.entries.size() >= static_cast<size_t>(cq.cqe)) {
    ++overruns_;
    return;
  }
  ++completions_;
  cq.entries.insert(cq.entries.end() - static_cast<std::ptrdiff_t>(Any(cq.entries.size() + 1)), wc);
  if (!cq.armed || cq.channel == nullptr) return;
  cq.armed = false;
  auto* channel = static_cast<Channel*>(cq.channel);
  channel->events.push_back(&cq);
  ::eventfd_write(channel->fd, 1);
}

// Also of a limit that is armed when the queue is below it.
void VerbsFabric::CheckLimit(Srq& srq) {
  if (srq.limit == 0 || srq.receives.size() >= srq.limit) return;
  srq.limit = 0;
  RaiseLocked(*static_cast<Context*>(srq.context),
              {.element = {.srq = &srq}, .event_type = IBV_EVENT_SRQ_LIMIT_REACHED});
}

void VerbsFabric::RaiseLocked(Context& context, const ibv_async_event& event) {
  context.events.push_back(event);
  ::eventfd_write(context.async_fd, 1);
}

}  // namespace kvxfer::testing
