// The verbs calls that the backend makes, as a thin interface. The implementation is libibverbs, or
// in tests a device in memory whose every call can be made to fail.
//
// Calls take and return what libibverbs does: null and errno, or 0 and an errno value. Everything
// that was created through one Ibv is destroyed through it, before it.
// Thread-safety: as libibverbs, any thread. The backend makes all calls on the driver's thread,
// with these exceptions: RegMr, RegDmabufMr and DeregMr of regions, and CreateQp and the ModifyQp
// calls that make and connect a queue pair, which the threads of SetupQueue call. DestroyQp is
// called by the driver only, so that the queue pair that an event refers to exists while the event
// is handled.

#ifndef KVXFER_BACKENDS_VERBS_IBV_H_
#define KVXFER_BACKENDS_VERBS_IBV_H_

#include <infiniband/verbs.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace kvxfer::verbs {

class Ibv {
 public:
  virtual ~Ibv() = default;

  // Whether a queue pair executes and completes its requests in the order of posting. Reliable
  // connections do; SRD does neither.
  virtual bool keeps_order() const { return true; }

  // --- devices and ports ---
  // The names of the devices. If they cannot be listed: an errno value and no names.
  virtual int ListDevices(std::vector<std::string>& names) = 0;
  virtual ibv_context* Open(const std::string& name) = 0;
  virtual int Close(ibv_context* context) = 0;
  virtual int QueryDevice(ibv_context* context, ibv_device_attr* attr) = 0;
  virtual int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) = 0;
  // ENODATA: there is no such entry.
  virtual int QueryGid(ibv_context* context, uint8_t port, uint32_t index,
                       ibv_gid_entry* entry) = 0;
  // `pkey` is in host byte order.
  virtual int QueryPkey(ibv_context* context, uint8_t port, int index, uint16_t* pkey) = 0;

  // --- memory ---
  virtual ibv_pd* AllocPd(ibv_context* context) = 0;
  virtual int DeallocPd(ibv_pd* pd) = 0;
  virtual ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) = 0;
  // Registers the bytes of a dmabuf from `offset` on, which peers and work requests address from
  // `iova` on; both have the same offset in a page. `fd` may be closed afterwards. EOPNOTSUPP: the
  // library, the kernel or the device's driver cannot do it.
  virtual ibv_mr* RegDmabufMr(ibv_pd* /*pd*/, uint64_t /*offset*/, size_t /*bytes*/,
                              uint64_t /*iova*/, int /*fd*/, int /*access*/) {
    errno = EOPNOTSUPP;
    return nullptr;
  }
  virtual int DeregMr(ibv_mr* mr) = 0;

  // --- queues ---
  virtual ibv_comp_channel* CreateChannel(ibv_context* context) = 0;
  virtual int DestroyChannel(ibv_comp_channel* channel) = 0;
  virtual ibv_cq* CreateCq(ibv_context* context, int cqe, void* cookie,
                           ibv_comp_channel* channel) = 0;
  virtual int DestroyCq(ibv_cq* cq) = 0;
  virtual ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) = 0;
  virtual int ArmSrqLimit(ibv_srq* srq, uint32_t limit) = 0;
  virtual int DestroySrq(ibv_srq* srq) = 0;
  virtual ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) = 0;
  virtual int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) = 0;
  virtual int DestroyQp(ibv_qp* qp) = 0;

  // --- the data path ---
  virtual int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) = 0;
  // For a queue pair with receives of its own.
  virtual int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) = 0;
  virtual int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad) = 0;
  virtual int PollCq(ibv_cq* cq, int count, ibv_wc* out) = 0;
  virtual int ReqNotify(ibv_cq* cq) = 0;
  // Both channels are non-blocking; EAGAIN: there is no event. The call acknowledges the event that
  // it returns.
  virtual int NextCqEvent(ibv_comp_channel* channel, ibv_cq** cq) = 0;
  virtual int NextAsyncEvent(ibv_context* context, ibv_async_event* event) = 0;
};

// libibverbs, loaded at run time. Unavailable, with what to do: it is not installed.
absl::StatusOr<std::unique_ptr<Ibv>> LoadLibibverbs();

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_IBV_H_
