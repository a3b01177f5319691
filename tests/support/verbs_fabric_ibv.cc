// The calls of the seam, as a VerbsFabric answers them.
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <type_traits>
#include <utility>

#include "tests/support/verbs_fabric_gpu.h"
#include "tests/support/verbs_fabric_objects.h"

namespace kvxfer::testing {
namespace {

// A device pins what it registers: every page is somewhere from then on. Without an effect where
// the kernel cannot do it (before Linux 5.14), or where no memory is.
void Populate(void* address, size_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(address) & ~uintptr_t{4095};
  const uintptr_t to = reinterpret_cast<uintptr_t>(address) + bytes;
  (void)::madvise(reinterpret_cast<void*>(from), to - from, MADV_POPULATE_WRITE);
}

}  // namespace

class FabricIbv final : public verbs::Ibv {
 public:
  FabricIbv(VerbsFabric* fabric, std::string host) : f_(*fabric), host_(std::move(host)) {}

  bool keeps_order() const override {
    std::lock_guard lock(f_.mutex_);
    return !f_.random_.has_value();
  }
  int ListDevices(std::vector<std::string>& names) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kListDevices)) return error;
    for (const FabricDevice& device : f_.devices_) {
      if (device.host.empty() || device.host == host_) names.push_back(device.name);
    }
    return 0;
  }
  ibv_context* Open(const std::string& name) override {
    std::lock_guard lock(f_.mutex_);
    if (Fails(Call::kOpen)) return nullptr;
    const int index = f_.Find(name);
    if (index < 0) {
      errno = ENODEV;
      return nullptr;
    }
    auto* context = new VerbsFabric::Context;
    context->index = index;
    context->async_fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    f_.contexts_.push_back(context);
    f_.objects_[context] = Free<VerbsFabric::Context>;
    return context;
  }
  int Close(ibv_context* context) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kClose)) return error;
    auto* mine = static_cast<VerbsFabric::Context*>(context);
    if (mine->children > 0) return EBUSY;
    std::erase(f_.contexts_, mine);
    f_.objects_.erase(mine);
    Free<VerbsFabric::Context>(mine);
    return 0;
  }
  int QueryDevice(ibv_context* context, ibv_device_attr* attr) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kQueryDevice)) return error;
    const FabricDevice& device = Device(context);
    *attr = {};
    attr->max_cqe = device.max_cqe;
    attr->max_qp_wr = device.max_qp_wr;
    attr->max_sge = device.max_sge;
    attr->max_sge_rd = device.max_sge_rd;
    attr->max_srq_wr = device.max_srq_wr;
    attr->max_qp_rd_atom = 16;
    attr->max_qp_init_rd_atom = 16;
    attr->max_mr_size = UINT64_MAX;
    attr->phys_port_cnt = static_cast<uint8_t>(device.ports.size());
    return 0;
  }
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kQueryPort)) return error;
    if (port < 1 || port > Device(context).ports.size()) return EINVAL;
    const FabricPort& of = Device(context).ports[port - 1u];
    *attr = {};
    attr->state = of.state;
    attr->max_mtu = IBV_MTU_4096;
    attr->active_mtu = of.mtu;
    attr->gid_tbl_len = 16;
    attr->max_msg_sz = 1u << 30;
    attr->pkey_tbl_len = static_cast<uint16_t>(of.pkeys.size());
    attr->lid = of.lid;
    attr->active_width = 2;   // 4x
    attr->active_speed = 32;  // EDR
    attr->link_layer = of.link_layer;
    return 0;
  }
  int QueryGid(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kQueryGid)) return error;
    for (const FabricGid& gid : Device(context).ports[port - 1u].gids) {
      if (gid.index != index) continue;
      *entry = {};
      entry->gid = gid.gid;
      entry->gid_index = index;
      entry->port_num = port;
      entry->gid_type = gid.type;
      return 0;
    }
    return ENODATA;
  }
  int QueryPkey(ibv_context* context, uint8_t port, int index, uint16_t* pkey) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kQueryPkey)) return error;
    const auto& pkeys = Device(context).ports[port - 1u].pkeys;
    if (index < 0 || static_cast<size_t>(index) >= pkeys.size()) return EINVAL;
    *pkey = pkeys[static_cast<size_t>(index)];
    return 0;
  }

  ibv_pd* AllocPd(ibv_context* context) override {
    std::lock_guard lock(f_.mutex_);
    if (Fails(Call::kAllocPd)) return nullptr;
    auto* pd = new VerbsFabric::Pd;
    Made(pd, context);
    return pd;
  }
  int DeallocPd(ibv_pd* pd) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kDeallocPd)) return error;
    auto* mine = static_cast<VerbsFabric::Pd*>(pd);
    return mine->children > 0 ? EBUSY : Gone(mine);
  }
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    std::unique_lock lock(f_.mutex_);
    if (Fails(Call::kRegMr)) return nullptr;
    if (const Duration time = f_.registration_time_; time > Duration{}) {
      lock.unlock();
      std::this_thread::sleep_for(time);
      lock.lock();
    }
    uint64_t gpu_at = 0;
    const int error = FindGpuMemory(reinterpret_cast<uint64_t>(address), bytes, &gpu_at);
    if (error != 0 || (gpu_at != 0 && bytes > f_.most_gpu_bytes_)) {
      errno = error == 0 ? EFAULT : error;
      return nullptr;
    }
    if (gpu_at == 0) Populate(address, bytes);
    return MakeMr(pd, address, bytes, access, gpu_at);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                      int access) override {
    std::lock_guard lock(f_.mutex_);
    if (Fails(Call::kRegDmabufMr)) return nullptr;
    uint64_t gpu_at = 0;
    errno = FindDmabuf(fd, offset, bytes, &gpu_at);
    if (errno == 0 && ((offset ^ iova) % 4096 != 0 || bytes > f_.most_gpu_bytes_)) errno = EINVAL;
    if (errno != 0) return nullptr;
    return MakeMr(pd, reinterpret_cast<void*>(iova), bytes, access, gpu_at);
  }
  int DeregMr(ibv_mr* mr) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kDeregMr)) return error;
    auto* mine = static_cast<VerbsFabric::Mr*>(mr);
    f_.mrs_.erase(mine->rkey);
    --static_cast<VerbsFabric::Pd*>(mine->pd)->children;
    return Gone(mine);
  }

  ibv_comp_channel* CreateChannel(ibv_context* context) override {
    std::lock_guard lock(f_.mutex_);
    if (Fails(Call::kCreateChannel)) return nullptr;
    auto* channel = new VerbsFabric::Channel;
    Made(channel, context);
    channel->fd = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return channel;
  }
  int DestroyChannel(ibv_comp_channel* channel) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kDestroyChannel)) return error;
    if (static_cast<VerbsFabric::Channel*>(channel)->users > 0) return EBUSY;
    return Gone(static_cast<VerbsFabric::Channel*>(channel));
  }
  ibv_cq* CreateCq(ibv_context* context, int cqe, void* cookie,
                   ibv_comp_channel* channel) override {
    std::lock_guard lock(f_.mutex_);
    if (Fails(Call::kCreateCq)) return nullptr;
    if (cqe > Device(context).max_cqe) {
      errno = EINVAL;
      return nullptr;
    }
    auto* cq = new VerbsFabric::Cq;
    Made(cq, context);
    cq->cqe = cqe;
    cq->cq_context = cookie;
    cq->channel = channel;
    if (channel != nullptr) ++static_cast<VerbsFabric::Channel*>(channel)->users;
    return cq;
  }
  int DestroyCq(ibv_cq* cq) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kDestroyCq)) return error;
    auto* mine = static_cast<VerbsFabric::Cq*>(cq);
    if (mine->users > 0) return EBUSY;
    if (mine->channel != nullptr) {
      auto* channel = static_cast<VerbsFabric::Channel*>(mine->channel);
      std::erase(channel->events, cq);
      --channel->users;
    }
    std::erase_if(f_.delayed_, [&](const auto& delayed) { return delayed.cq == mine; });
    return Gone(mine);
  }
  ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) override {
    std::lock_guard lock(f_.mutex_);
    if (Fails(Call::kCreateSrq)) return nullptr;
    auto* srq = new VerbsFabric::Srq;
    Made(srq, pd->context);
    srq->pd = pd;
    srq->most = attr->attr.max_wr;
    ++static_cast<VerbsFabric::Pd*>(pd)->children;
    return srq;
  }
  int ArmSrqLimit(ibv_srq* srq, uint32_t limit) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kArmSrqLimit)) return error;
    static_cast<VerbsFabric::Srq*>(srq)->limit = limit;
    f_.CheckLimit(*static_cast<VerbsFabric::Srq*>(srq));
    return 0;
  }
  int DestroySrq(ibv_srq* srq) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kDestroySrq)) return error;
    auto* mine = static_cast<VerbsFabric::Srq*>(srq);
    if (mine->users > 0) return EBUSY;
    --static_cast<VerbsFabric::Pd*>(mine->pd)->children;
    return Gone(mine);
  }
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) override {
    std::lock_guard lock(f_.mutex_);
    if (Fails(Call::kCreateQp)) return nullptr;
    const FabricDevice& device = Device(pd->context);
    if (attr->cap.max_send_wr > static_cast<uint32_t>(device.max_qp_wr) ||
        attr->cap.max_send_sge > static_cast<uint32_t>(device.max_sge) ||
        attr->cap.max_inline_data > device.max_inline ||
        attr->cap.max_recv_wr > static_cast<uint32_t>(device.max_qp_wr) ||
        (attr->srq == nullptr) != (attr->cap.max_recv_wr > 0)) {
      errno = EINVAL;
      return nullptr;
    }
    auto* qp = new VerbsFabric::Qp;
    Made(qp, pd->context);
    qp->pd = pd;
    qp->send_cq = attr->send_cq;
    qp->recv_cq = attr->recv_cq;
    qp->srq = attr->srq;
    qp->qp_context = attr->qp_context;
    qp->qp_num = ++f_.next_number_;
    qp->state = IBV_QPS_RESET;
    qp->max_send = attr->cap.max_send_wr;
    qp->max_receives = attr->cap.max_recv_wr;
    qp->max_inline = attr->cap.max_inline_data;
    qp->max_sge = static_cast<int>(attr->cap.max_send_sge);
    qp->all_signalled = attr->sq_sig_all != 0;
    f_.qps_[qp->qp_num] = qp;
    ++static_cast<VerbsFabric::Pd*>(pd)->children;
    ++static_cast<VerbsFabric::Cq*>(qp->send_cq)->users;
    ++static_cast<VerbsFabric::Cq*>(qp->recv_cq)->users;
    if (qp->srq != nullptr) ++static_cast<VerbsFabric::Srq*>(qp->srq)->users;
    return qp;
  }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override {
    if (attr->qp_state == IBV_QPS_RTR) {
      if (const int error = LookUp(attr->ah_attr)) return error;
    }
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kModifyQp)) return error;
    auto* mine = static_cast<VerbsFabric::Qp*>(qp);
    if (attr->qp_state == IBV_QPS_ERR) {
      f_.SetError(*mine);
      f_.wake_.notify_all();
      return 0;
    }
    ibv_qp_attr& kept = mine->attr;
    switch (attr->qp_state) {
      case IBV_QPS_INIT: {
        if (mine->state != IBV_QPS_RESET) return EINVAL;
        const auto& port = Device(qp->context).ports[attr->port_num - 1u];
        if (attr->pkey_index >= port.pkeys.size()) return EINVAL;
        kept.port_num = attr->port_num;
        kept.qp_access_flags = attr->qp_access_flags;
        break;
      }
      case IBV_QPS_RTR:
        if (mine->state != IBV_QPS_INIT) return EINVAL;
        if (!HasGid(mine, attr->ah_attr)) return EINVAL;
        kept.ah_attr = attr->ah_attr;
        kept.dest_qp_num = attr->dest_qp_num;
        kept.rq_psn = attr->rq_psn;
        kept.path_mtu = attr->path_mtu;
        break;
      case IBV_QPS_RTS:
        if (mine->state != IBV_QPS_RTR) return EINVAL;
        kept.sq_psn = attr->sq_psn;
        kept.rnr_retry = attr->rnr_retry;
        break;
      default:
        return EINVAL;
    }
    if ((mask & IBV_QP_STATE) == 0) return EINVAL;
    mine->state = attr->qp_state;
    return 0;
  }
  int DestroyQp(ibv_qp* qp) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kDestroyQp)) return error;
    if (Device(qp->context).refuses_destroy) return EBUSY;
    auto* mine = static_cast<VerbsFabric::Qp*>(qp);
    f_.qps_.erase(mine->qp_num);
    for (auto* context : f_.contexts_) {
      std::erase_if(context->events,
                    [&](const ibv_async_event& event) { return event.element.qp == qp; });
    }
    --static_cast<VerbsFabric::Pd*>(mine->pd)->children;
    --static_cast<VerbsFabric::Cq*>(mine->send_cq)->users;
    --static_cast<VerbsFabric::Cq*>(mine->recv_cq)->users;
    if (mine->srq != nullptr) --static_cast<VerbsFabric::Srq*>(mine->srq)->users;
    return Gone(mine);
  }

  int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) override {
    std::lock_guard lock(f_.mutex_);
    *bad = first;
    if (const int error = f_.Enter(Call::kPostSend)) return error;
    auto* mine = static_cast<VerbsFabric::Qp*>(qp);
    if (mine->state != IBV_QPS_RTS && mine->state != IBV_QPS_ERR) return EINVAL;
    ++f_.doorbells_;
    for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
      *bad = wr;
      if (mine->requests.size() >= mine->max_send) return ENOMEM;
      if (wr->num_sge > mine->max_sge) return EINVAL;
      if (wr->opcode == IBV_WR_RDMA_READ && wr->num_sge > Device(qp->context).max_sge_rd) {
        return EINVAL;
      }
      VerbsFabric::Wqe wqe;
      wqe.wr = *wr;
      wqe.sges.assign(wr->sg_list, wr->sg_list + wr->num_sge);
      for (const ibv_sge& sge : wqe.sges) wqe.bytes += sge.length;
      if ((wr->send_flags & IBV_SEND_INLINE) != 0) {
        if (wqe.bytes > mine->max_inline) return ENOMEM;
        for (const ibv_sge& sge : wqe.sges) {
          const auto* from = reinterpret_cast<const std::byte*>(sge.addr);
          wqe.inlined.insert(wqe.inlined.end(), from, from + sge.length);
        }
      }
      ++f_.requests_;
      mine->requests.push_back(std::move(wqe));
    }
    if (mine->state == IBV_QPS_ERR) f_.SetError(*mine);
    *bad = nullptr;
    f_.wake_.notify_all();
    return 0;
  }
  int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) override {
    std::lock_guard lock(f_.mutex_);
    *bad = first;
    if (const int error = f_.Enter(Call::kPostRecv)) return error;
    auto* mine = static_cast<VerbsFabric::Qp*>(qp);
    if (mine->state == IBV_QPS_RESET) return EINVAL;
    for (ibv_recv_wr* wr = first; wr != nullptr; wr = wr->next) {
      *bad = wr;
      if (mine->receives.size() >= mine->max_receives) return ENOMEM;
      if (wr->num_sge != 1) return EINVAL;
      mine->receives.push_back({.id = wr->wr_id, .sge = wr->sg_list[0]});
    }
    if (mine->state == IBV_QPS_ERR) f_.SetError(*mine);
    *bad = nullptr;
    f_.wake_.notify_all();
    return 0;
  }
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad) override {
    std::lock_guard lock(f_.mutex_);
    *bad = first;
    if (const int error = f_.Enter(Call::kPostSrqRecv)) return error;
    auto* mine = static_cast<VerbsFabric::Srq*>(srq);
    for (ibv_recv_wr* wr = first; wr != nullptr; wr = wr->next) {
      *bad = wr;
      if (mine->receives.size() >= mine->most) return ENOMEM;
      mine->receives.push_back(wr->wr_id);
    }
    return 0;
  }
  int PollCq(ibv_cq* cq, int count, ibv_wc* out) override {
    std::lock_guard lock(f_.mutex_);
    if (f_.Enter(Call::kPollCq) != 0) return -1;
    auto& entries = static_cast<VerbsFabric::Cq*>(cq)->entries;
    int n = 0;
    for (; n < count && !entries.empty(); ++n) {
      out[n] = entries.front();
      entries.pop_front();
    }
    return n;
  }
  int ReqNotify(ibv_cq* cq) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kReqNotify)) return error;
    static_cast<VerbsFabric::Cq*>(cq)->armed = true;
    return 0;
  }
  int NextCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kNextCqEvent)) return error;
    auto* mine = static_cast<VerbsFabric::Channel*>(channel);
    if (mine->events.empty()) {
      eventfd_t count = 0;
      ::eventfd_read(mine->fd, &count);
      return EAGAIN;
    }
    *cq = mine->events.front();
    mine->events.pop_front();
    return 0;
  }
  int NextAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    std::lock_guard lock(f_.mutex_);
    if (const int error = f_.Enter(Call::kNextAsyncEvent)) return error;
    auto* mine = static_cast<VerbsFabric::Context*>(context);
    if (mine->events.empty()) {
      eventfd_t count = 0;
      ::eventfd_read(mine->async_fd, &count);
      return EAGAIN;
    }
    *event = mine->events.front();
    mine->events.pop_front();
    return 0;
  }

 private:
  bool Fails(Call call) {
    errno = f_.Enter(call);
    return errno != 0;
  }
  const FabricDevice& Device(const ibv_context* context) const {
    const auto* mine = static_cast<const VerbsFabric::Context*>(context);
    return f_.devices_[static_cast<size_t>(mine->index)];
  }
  // `gpu_at`: where it is in GPU memory; 0: it is the host's.
  ibv_mr* MakeMr(ibv_pd* pd, void* address, size_t bytes, int access, uint64_t gpu_at) {
    auto* mr = new VerbsFabric::Mr;
    Made(mr, pd->context);
    mr->pd = pd;
    mr->addr = address;
    mr->length = bytes;
    mr->access = access;
    mr->gpu = gpu_at != 0;
    mr->gpu_at = gpu_at;
    f_.next_key_ += 0x101;
    mr->lkey = mr->rkey = f_.next_key_;
    f_.mrs_[mr->rkey] = mr;
    ++static_cast<VerbsFabric::Pd*>(pd)->children;
    return mr;
  }
  // Blocks as the kernel does, without anything of the fabric.
  int LookUp(const ibv_ah_attr& address) {
    Duration time{};
    int error = 0;
    {
      std::lock_guard lock(f_.mutex_);
      const FabricPort* const owner = f_.OwnerOf(address.grh.dgid);
      if (owner == nullptr || owner->look_up == Duration{}) return 0;
      time = owner->look_up;
      error = owner->look_up_error;
      ++f_.look_ups_;
    }
    std::this_thread::sleep_for(time);
    std::lock_guard lock(f_.mutex_);
    --f_.look_ups_;
    return error;
  }
  bool HasGid(const VerbsFabric::Qp* qp, const ibv_ah_attr& attr) const {
    if (attr.is_global == 0) return true;
    return std::ranges::any_of(
        Device(qp->context).ports[qp->attr.port_num - 1u].gids,
        [&](const FabricGid& gid) { return gid.index == attr.grh.sgid_index; });
  }
  template <typename T>
  static void Free(void* object) {
    auto* mine = static_cast<T*>(object);
    if constexpr (std::is_same_v<T, VerbsFabric::Context>) ::close(mine->async_fd);
    if constexpr (std::is_same_v<T, VerbsFabric::Channel>) ::close(mine->fd);
    delete mine;
  }
  template <typename T>
  void Made(T* object, ibv_context* context) {
    object->context = context;
    ++static_cast<VerbsFabric::Context*>(context)->children;
    f_.objects_[object] = Free<T>;
  }
  template <typename T>
  int Gone(T* object) {
    --static_cast<VerbsFabric::Context*>(object->context)->children;
    f_.objects_.erase(object);
    Free<T>(object);
    return 0;
  }

  VerbsFabric& f_;
  const std::string host_;
};

std::unique_ptr<verbs::Ibv> VerbsFabric::MakeIbv(std::string host) {
  return std::make_unique<FabricIbv>(this, std::move(host));
}

}  // namespace kvxfer::testing
