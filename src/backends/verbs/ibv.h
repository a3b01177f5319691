// The verbs calls that the backend makes, as a thin layer: behind it is libibverbs, or in tests a
// device in memory whose every call can be made to fail.
//
// Calls take and return what those of libibverbs do: null and errno, or 0 and an errno value.
// Everything made through one Ibv is destroyed through it, before it.
// Thread-safety: as libibverbs: from any thread. The backend makes all calls from its owner's
// thread, except RegMr, RegDmabufMr and DeregMr of regions, and CreateQp and those ModifyQp that
// make and connect a queue pair, which are made by the threads of SetupQueue. DestroyQp is the
// owner's alone, so that the queue pair that an event names is there while the event is looked at.

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

  // Whether the requests of a queue pair are executed, and completed, in the order of posting. So
  // it is with reliable connections; SRD does neither.
  virtual bool keeps_order() const { return true; }

  // --- devices and ports ---
  // Names of the devices; an errno value, and none, where they cannot be listed.
  virtual int ListDevices(std::vector<std::string>& names) = 0;
  virtual ibv_context* Open(const std::string& name) = 0;
  virtual int Close(ibv_context* context) = 0;
  virtual int QueryDevice(ibv_context* context, ibv_device_attr* attr) = 0;
  virtual int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) = 0;
  // ENODATA: there is no such entry.
  virtual int QueryGid(ibv_context* context, uint8_t port, uint32_t index,
                       ibv_gid_entry* entry) = 0;
  // In host order.
  virtual int QueryPkey(ibv_context* context, uint8_t port, int index, uint16_t* pkey) = 0;

  // --- memory ---
  virtual ibv_pd* AllocPd(ibv_context* context) = 0;
  virtual int DeallocPd(ibv_pd* pd) = 0;
  virtual ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) = 0;
  // Of a dmabuf: its bytes from `offset` on, which peers and work requests name from `iova` on; the
  // two have the same place in a page. `fd` may be closed afterwards. EOPNOTSUPP: the library, the
  // kernel or the device's driver cannot do it.
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

  // --- the way of the data ---
  virtual int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) = 0;
  virtual int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad) = 0;
  virtual int PollCq(ibv_cq* cq, int count, ibv_wc* out) = 0;
  virtual int ReqNotify(ibv_cq* cq) = 0;
  // Both channels are non-blocking: EAGAIN where there is nothing. Each event got is acknowledged
  // by the call itself.
  virtual int NextCqEvent(ibv_comp_channel* channel, ibv_cq** cq) = 0;
  virtual int NextAsyncEvent(ibv_context* context, ibv_async_event* event) = 0;
};

// libibverbs, loaded at run time. Unavailable, with the remedy, where it is not installed.
absl::StatusOr<std::unique_ptr<Ibv>> LoadLibibverbs();

}  // namespace kvxfer::verbs

#endif  // KVXFER_BACKENDS_VERBS_IBV_H_
