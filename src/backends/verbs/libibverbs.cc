// The implementation of Ibv by libibverbs. The library is loaded when the first backend is made, so
// that one binary runs with and without rdma-core. The data path goes straight to the provider,
// through the inline functions of the header.

#include <dlfcn.h>
#include <endian.h>
#include <fcntl.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/ibv.h"

// These are macros for inline functions that need the library at link time.
#undef ibv_query_port
#undef ibv_reg_mr

namespace kvxfer::verbs {
namespace {

struct Functions {
  decltype(&::ibv_fork_init) fork_init;
  decltype(&::ibv_get_device_list) get_device_list;
  decltype(&::ibv_free_device_list) free_device_list;
  decltype(&::ibv_get_device_name) get_device_name;
  decltype(&::ibv_open_device) open_device;
  decltype(&::ibv_close_device) close_device;
  decltype(&::ibv_query_device) query_device;
  decltype(&::ibv_query_port) query_port;
  decltype(&::_ibv_query_gid_ex) query_gid_ex;
  decltype(&::ibv_query_pkey) query_pkey;
  decltype(&::ibv_alloc_pd) alloc_pd;
  decltype(&::ibv_dealloc_pd) dealloc_pd;
  decltype(&::ibv_reg_mr) reg_mr;
  decltype(&::ibv_dereg_mr) dereg_mr;
  decltype(&::ibv_reg_dmabuf_mr) reg_dmabuf_mr;  // null: rdma-core is older than 34
  decltype(&::ibv_create_comp_channel) create_comp_channel;
  decltype(&::ibv_destroy_comp_channel) destroy_comp_channel;
  decltype(&::ibv_create_cq) create_cq;
  decltype(&::ibv_destroy_cq) destroy_cq;
  decltype(&::ibv_create_srq) create_srq;
  decltype(&::ibv_modify_srq) modify_srq;
  decltype(&::ibv_destroy_srq) destroy_srq;
  decltype(&::ibv_create_qp) create_qp;
  decltype(&::ibv_modify_qp) modify_qp;
  decltype(&::ibv_destroy_qp) destroy_qp;
  decltype(&::ibv_get_cq_event) get_cq_event;
  decltype(&::ibv_ack_cq_events) ack_cq_events;
  decltype(&::ibv_get_async_event) get_async_event;
  decltype(&::ibv_ack_async_event) ack_async_event;
};

// False: the library lacks a function; `name` is the one.
bool Find(void* library, Functions& f, const char*& name) {
  f.reg_dmabuf_mr =
      reinterpret_cast<decltype(f.reg_dmabuf_mr)>(::dlsym(library, "ibv_reg_dmabuf_mr"));
  const auto find = [&](const char* symbol, auto& out) {
    name = symbol;
    out = reinterpret_cast<std::decay_t<decltype(out)>>(::dlsym(library, symbol));
    return out != nullptr;
  };
  return find("ibv_fork_init", f.fork_init) && find("ibv_get_device_list", f.get_device_list) &&
         find("ibv_free_device_list", f.free_device_list) &&
         find("ibv_get_device_name", f.get_device_name) && find("ibv_open_device", f.open_device) &&
         find("ibv_close_device", f.close_device) && find("ibv_query_device", f.query_device) &&
         find("ibv_query_port", f.query_port) && find("_ibv_query_gid_ex", f.query_gid_ex) &&
         find("ibv_query_pkey", f.query_pkey) && find("ibv_alloc_pd", f.alloc_pd) &&
         find("ibv_dealloc_pd", f.dealloc_pd) && find("ibv_reg_mr", f.reg_mr) &&
         find("ibv_dereg_mr", f.dereg_mr) &&
         find("ibv_create_comp_channel", f.create_comp_channel) &&
         find("ibv_destroy_comp_channel", f.destroy_comp_channel) &&
         find("ibv_create_cq", f.create_cq) && find("ibv_destroy_cq", f.destroy_cq) &&
         find("ibv_create_srq", f.create_srq) && find("ibv_modify_srq", f.modify_srq) &&
         find("ibv_destroy_srq", f.destroy_srq) && find("ibv_create_qp", f.create_qp) &&
         find("ibv_modify_qp", f.modify_qp) && find("ibv_destroy_qp", f.destroy_qp) &&
         find("ibv_get_cq_event", f.get_cq_event) && find("ibv_ack_cq_events", f.ack_cq_events) &&
         find("ibv_get_async_event", f.get_async_event) &&
         find("ibv_ack_async_event", f.ack_async_event);
}

void SetNonBlocking(int fd) { ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK); }

class Libibverbs final : public Ibv {
 public:
  explicit Libibverbs(const Functions& functions) : f_(functions) {}

  int ListDevices(std::vector<std::string>& names) override {
    int count = 0;
    ibv_device** const list = f_.get_device_list(&count);
    if (list == nullptr) return errno;
    for (int i = 0; i < count; ++i) names.emplace_back(f_.get_device_name(list[i]));
    f_.free_device_list(list);
    return 0;
  }
  ibv_context* Open(const std::string& name) override {
    int count = 0;
    ibv_device** const list = f_.get_device_list(&count);
    if (list == nullptr) return nullptr;
    ibv_context* context = nullptr;
    int error = ENODEV;
    for (int i = 0; i < count && context == nullptr; ++i) {
      // ibv_open_device may fail without setting errno.
      if (name != f_.get_device_name(list[i])) continue;
      errno = 0;
      context = f_.open_device(list[i]);
      error = errno == 0 ? ENODEV : errno;
    }
    f_.free_device_list(list);
    if (context != nullptr) SetNonBlocking(context->async_fd);
    errno = error;
    return context;
  }
  int Close(ibv_context* context) override { return f_.close_device(context); }
  int QueryDevice(ibv_context* context, ibv_device_attr* attr) override {
    return f_.query_device(context, attr);
  }
  // As in the header's inline function: older providers fill fewer fields.
  int QueryPort(ibv_context* context, uint8_t port, ibv_port_attr* attr) override {
    std::memset(attr, 0, sizeof(*attr));
    verbs_context* const extended = verbs_get_ctx_op(context, query_port);
    if (extended != nullptr) return extended->query_port(context, port, attr, sizeof(*attr));
    return f_.query_port(context, port, reinterpret_cast<_compat_ibv_port_attr*>(attr));
  }
  int QueryGid(ibv_context* context, uint8_t port, uint32_t index, ibv_gid_entry* entry) override {
    return f_.query_gid_ex(context, port, index, entry, 0, sizeof(*entry));
  }
  int QueryPkey(ibv_context* context, uint8_t port, int index, uint16_t* pkey) override {
    __be16 raw = 0;
    errno = 0;
    if (f_.query_pkey(context, port, index, &raw) != 0) return errno == 0 ? EINVAL : errno;
    *pkey = be16toh(raw);
    return 0;
  }

  ibv_pd* AllocPd(ibv_context* context) override { return f_.alloc_pd(context); }
  int DeallocPd(ibv_pd* pd) override { return f_.dealloc_pd(pd); }
  ibv_mr* RegMr(ibv_pd* pd, void* address, size_t bytes, int access) override {
    return f_.reg_mr(pd, address, bytes, access);
  }
  ibv_mr* RegDmabufMr(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                      int access) override {
    if (f_.reg_dmabuf_mr == nullptr) {
      return Ibv::RegDmabufMr(pd, offset, bytes, iova, fd, access);
    }
    return f_.reg_dmabuf_mr(pd, offset, bytes, iova, fd, access);
  }
  int DeregMr(ibv_mr* mr) override { return f_.dereg_mr(mr); }

  ibv_comp_channel* CreateChannel(ibv_context* context) override {
    ibv_comp_channel* const channel = f_.create_comp_channel(context);
    if (channel != nullptr) SetNonBlocking(channel->fd);
    return channel;
  }
  int DestroyChannel(ibv_comp_channel* channel) override {
    return f_.destroy_comp_channel(channel);
  }
  ibv_cq* CreateCq(ibv_context* context, int cqe, void* cookie,
                   ibv_comp_channel* channel) override {
    return f_.create_cq(context, cqe, cookie, channel, 0);
  }
  int DestroyCq(ibv_cq* cq) override { return f_.destroy_cq(cq); }
  ibv_srq* CreateSrq(ibv_pd* pd, ibv_srq_init_attr* attr) override {
    return f_.create_srq(pd, attr);
  }
  int ArmSrqLimit(ibv_srq* srq, uint32_t limit) override {
    ibv_srq_attr attr{};
    attr.srq_limit = limit;
    return f_.modify_srq(srq, &attr, IBV_SRQ_LIMIT);
  }
  int DestroySrq(ibv_srq* srq) override { return f_.destroy_srq(srq); }
  ibv_qp* CreateQp(ibv_pd* pd, ibv_qp_init_attr* attr) override { return f_.create_qp(pd, attr); }
  int ModifyQp(ibv_qp* qp, ibv_qp_attr* attr, int mask) override {
    return f_.modify_qp(qp, attr, mask);
  }
  int DestroyQp(ibv_qp* qp) override { return f_.destroy_qp(qp); }

  int PostSend(ibv_qp* qp, ibv_send_wr* first, ibv_send_wr** bad) override {
    return ibv_post_send(qp, first, bad);
  }
  int PostRecv(ibv_qp* qp, ibv_recv_wr* first, ibv_recv_wr** bad) override {
    return ibv_post_recv(qp, first, bad);
  }
  int PostSrqRecv(ibv_srq* srq, ibv_recv_wr* first, ibv_recv_wr** bad) override {
    return ibv_post_srq_recv(srq, first, bad);
  }
  int PollCq(ibv_cq* cq, int count, ibv_wc* out) override { return ibv_poll_cq(cq, count, out); }
  int ReqNotify(ibv_cq* cq) override { return ibv_req_notify_cq(cq, 0); }
  int NextCqEvent(ibv_comp_channel* channel, ibv_cq** cq) override {
    void* cookie = nullptr;
    errno = 0;
    if (f_.get_cq_event(channel, cq, &cookie) != 0) return errno == 0 ? EAGAIN : errno;
    f_.ack_cq_events(*cq, 1);
    return 0;
  }
  int NextAsyncEvent(ibv_context* context, ibv_async_event* event) override {
    errno = 0;
    if (f_.get_async_event(context, event) != 0) return errno == 0 ? EAGAIN : errno;
    f_.ack_async_event(event);
    return 0;
  }

 private:
  const Functions f_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Ibv>> LoadLibibverbs() {
  // Never unloaded: providers leave threads and handlers behind.
  void* const library = ::dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = ::dlerror();
    return absl::UnavailableError(
        absl::StrCat("libibverbs is not to be had (", why == nullptr ? "no reason told" : why,
                     "); install libibverbs1 and ibverbs-providers (rdma-core)"));
  }
  Functions functions;
  const char* name = nullptr;
  if (!Find(library, functions, name)) {
    return absl::UnavailableError(
        absl::StrCat("libibverbs has no ", name, ": install rdma-core 34 or newer"));
  }
  // On kernels before 5.12, after a fork the parent could write to other pages than its device
  // uses. The call fails if somebody has registered memory before; then it was that code's task to
  // call it.
  functions.fork_init();
  return std::make_unique<Libibverbs>(functions);
}

}  // namespace kvxfer::verbs
