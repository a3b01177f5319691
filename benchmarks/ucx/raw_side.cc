// ucp_put_nbx, so many at once, then a flush and an active message that says it is over. Both sides
// poll, as UCX wants it.

#include <ucp/api/ucp.h>

#include "benchmarks/ucx/side.h"

namespace ucx_bench {
namespace {

void Require(ucs_status_t status, const char* what) {
  if (status != UCS_OK) Fail(std::string("raw ") + what + ": " + ucs_status_string(status));
}

class Raw final : public Side {
 public:
  explicit Raw(const Setup& setup) : memory_(setup.memory) {
    Start(setup);
    Meet(setup.fd);
  }

  void Write(const Round& round) override {
    const uint64_t places = round.places(memory_.size());
    for (uint64_t i = 0; i * round.block < round.volume; ++i) {
      while (in_flight_ >= round.in_flight) ucp_worker_progress(worker_);
      const ucp_request_param_t param = Counted();
      Started(ucp_put_nbx(endpoint_, &memory_[Round::Source(i, places) * round.block], round.block,
                          remote_ + Round::Target(i, places) * round.block, key_, &param));
    }
    ucp_request_param_t param = Counted();
    Started(ucp_ep_flush_nbx(endpoint_, &param));
    while (in_flight_ > 0) ucp_worker_progress(worker_);
    param = Counted();
    Started(ucp_am_send_nbx(endpoint_, 0, nullptr, 0, nullptr, 0, &param));
    while (in_flight_ > 0) ucp_worker_progress(worker_);
  }

  void Serve() override {
    ++served_;
    while (messages_ < served_) ucp_worker_progress(worker_);
  }

 private:
  void Start(const Setup& setup) {
    ucp_config_t* config = nullptr;
    Require(ucp_config_read(nullptr, nullptr, &config), "configuration");
    Require(ucp_config_modify(config, "TLS", setup.tls.c_str()), "UCX_TLS");
    Require(ucp_config_modify(config, "NET_DEVICES", setup.net_devices.c_str()), "UCX_NET_DEVICES");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM;
    Require(ucp_init(&params, config, &context_), "context");
    ucp_config_release(config);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    Require(ucp_worker_create(context_, &worker, &worker_), "worker");
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.cb = [](void* count, const void*, size_t, void*, size_t, const ucp_am_recv_param_t*) {
      ++*static_cast<uint64_t*>(count);
      return UCS_OK;
    };
    handler.arg = &messages_;
    Require(ucp_worker_set_am_recv_handler(worker_, &handler), "message handler");
  }

  void Meet(int fd) {
    ucp_mem_map_params_t map{};
    map.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH;
    map.address = memory_.data();
    map.length = memory_.size();
    ucp_mem_h handle = nullptr;
    Require(ucp_mem_map(context_, &map, &handle), "memory");
    void* packed = nullptr;
    ucp_address_t* address = nullptr;
    size_t bytes = 0;
    Require(ucp_rkey_pack(context_, handle, &packed, &bytes), "key");
    Tell(fd, {static_cast<const char*>(packed), bytes});
    ucp_rkey_buffer_release(packed);
    Require(ucp_worker_get_address(worker_, &address, &bytes), "address");
    Tell(fd, {reinterpret_cast<const char*>(address), bytes});
    ucp_worker_release_address(worker_, address);
    Tell(fd, std::to_string(reinterpret_cast<uint64_t>(memory_.data())));

    const std::string key = Hear(fd);
    const std::string peer = Hear(fd);
    remote_ = std::stoull(Hear(fd));
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
    Require(ucp_ep_create(worker_, &params, &endpoint_), "endpoint");
    Require(ucp_ep_rkey_unpack(endpoint_, key.data(), &key_), "key of the peer");
  }

  ucp_request_param_t Counted() {
    ++in_flight_;
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.user_data = &in_flight_;
    param.cb.send = [](void* request, ucs_status_t status, void* in_flight) {
      Require(status, "operation");
      --*static_cast<uint64_t*>(in_flight);
      ucp_request_free(request);
    };
    return param;
  }

  void Started(ucs_status_ptr_t request) {
    if (request == nullptr) --in_flight_;
    if (UCS_PTR_IS_ERR(request)) Require(UCS_PTR_STATUS(request), "operation");
  }

  const std::span<std::byte> memory_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  uint64_t remote_ = 0;
  uint64_t in_flight_ = 0;
  uint64_t messages_ = 0;
  uint64_t served_ = 0;
};

}  // namespace

std::unique_ptr<Side> MakeRawSide(const Setup& setup) { return std::make_unique<Raw>(setup); }

}  // namespace ucx_bench
