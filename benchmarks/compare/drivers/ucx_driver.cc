// UCX's one-sided put as a contestant: every block one ucp_put_nbx, a flush, then an active
// message; the decode side answers with another. Modes: own (the target's memory is UCX's,
// ucp_mem_map allocates it) and any (the cache as it is, registered). The runner chooses
// transports by UCX_TLS, and the version of UCX by LD_LIBRARY_PATH. Both sides poll, as UCX wants
// it.

#include <ucp/api/ucp.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "benchmarks/compare/drivers/driver.h"
#include "benchmarks/compare/drivers/memory.h"

namespace compare {
namespace {

// Puts under way at once; more make UCX's own queues longer and nothing faster.
constexpr uint64_t kMaxInFlight = 1024;

void Require(ucs_status_t status, const char* what) {
  if (status != UCS_OK) Fail(std::string(what) + ": " + ucs_status_string(status));
}

Json Bytes(const void* data, size_t bytes) {
  const auto* begin = static_cast<const uint8_t*>(data);
  return std::vector<uint8_t>(begin, begin + bytes);
}

ucs_status_t CountMessage(void* count, const void*, size_t, void*, size_t,
                          const ucp_am_recv_param_t*) {
  ++*static_cast<uint64_t*>(count);
  return UCS_OK;
}

void CountDone(void* request, ucs_status_t status, void* in_flight) {
  Require(status, "an operation");
  --*static_cast<uint64_t*>(in_flight);
  ucp_request_free(request);
}

class Ucx : public Contestant {
 public:
  explicit Ucx(const Config& config) : config_(config) {
    Start();
    MapCache();
  }

  std::span<std::byte> memory() override { return memory_; }

  Json Hello() override {
    ucp_address_t* address = nullptr;
    size_t address_bytes = 0;
    Require(ucp_worker_get_address(worker_, &address, &address_bytes), "the worker's address");
    void* key = nullptr;
    size_t key_bytes = 0;
    Require(ucp_rkey_pack(context_, handle_, &key, &key_bytes), "packing a key");
    Json hello = {{"address", Bytes(address, address_bytes)},
                  {"key", Bytes(key, key_bytes)},
                  {"base", reinterpret_cast<uint64_t>(memory_.data())},
                  {"version", ucp_get_version_string()}};
    ucp_worker_release_address(worker_, address);
    ucp_rkey_buffer_release(key);
    return hello;
  }

  void Meet(const Json& other) override {
    const auto address = other.at("address").get<std::vector<uint8_t>>();
    const auto key = other.at("key").get<std::vector<uint8_t>>();
    ucp_ep_params_t params{};
    params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
    params.address = reinterpret_cast<const ucp_address_t*>(address.data());
    Require(ucp_ep_create(worker_, &params, &endpoint_), "an endpoint");
    Require(ucp_ep_rkey_unpack(endpoint_, key.data(), &key_), "unpacking a key");
    remote_base_ = other.at("base").get<uint64_t>();
  }

  double Round(const Blocks& blocks) override {
    const uint64_t wanted = ++rounds_;
    if (config_.prefill) Put(blocks);
    if (!config_.prefill) AwaitMessage(wanted);
    SendMessage();
    if (config_.prefill) AwaitMessage(wanted);
    return 0;
  }

 private:
  void Start() {
    ucp_config_t* from_environment = nullptr;
    Require(ucp_config_read(nullptr, nullptr, &from_environment), "UCX's configuration");
    ucp_params_t params{};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_RMA | UCP_FEATURE_AM;
    Require(ucp_init(&params, from_environment, &context_), "starting UCX");
    ucp_config_release(from_environment);
    ucp_worker_params_t worker{};
    worker.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
    worker.thread_mode = UCS_THREAD_MODE_SINGLE;
    Require(ucp_worker_create(context_, &worker, &worker_), "a worker");
    ucp_am_handler_param_t handler{};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = 0;
    handler.cb = CountMessage;
    handler.arg = &messages_;
    Require(ucp_worker_set_am_recv_handler(worker_, &handler), "a message handler");
  }

  void MapCache() {
    ucp_mem_map_params_t params{};
    params.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS;
    params.length = config_.bytes;
    if (config_.mode == "own" && !config_.prefill) {
      params.flags = UCP_MEM_MAP_ALLOCATE;
    } else {
      memory_ = MapShared(config_.cache_fd, config_.bytes);
      params.field_mask |= UCP_MEM_MAP_PARAM_FIELD_ADDRESS;
      params.address = memory_.data();
    }
    Require(ucp_mem_map(context_, &params, &handle_), "mapping memory");
    if (!memory_.empty()) return;
    ucp_mem_attr_t attributes{};
    attributes.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH;
    Require(ucp_mem_query(handle_, &attributes), "looking at memory");
    memory_ = {static_cast<std::byte*>(attributes.address), config_.bytes};
    std::memset(memory_.data(), 1, memory_.size());
  }

  // `request` as UCX returns it: null when done, an error, or under way.
  void Started(ucs_status_ptr_t request, const char* what) {
    if (request == nullptr) {
      --in_flight_;
    } else if (UCS_PTR_IS_ERR(request)) {
      Require(UCS_PTR_STATUS(request), what);
    }
  }

  ucp_request_param_t Counted() {
    ucp_request_param_t param{};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = CountDone;
    param.user_data = &in_flight_;
    ++in_flight_;
    return param;
  }

  void Put(const Blocks& b) {
    for (size_t i = 0; i < b.source_ids.size(); ++i) {
      const ucp_request_param_t param = Counted();
      Started(
          ucp_put_nbx(endpoint_, memory_.data() + b.source_ids[i] * b.block_bytes, b.block_bytes,
                      remote_base_ + b.target_ids[i] * b.block_bytes, key_, &param),
          "a put");
      while (in_flight_ >= kMaxInFlight) ucp_worker_progress(worker_);
    }
    const ucp_request_param_t param = Counted();
    Started(ucp_ep_flush_nbx(endpoint_, &param), "a flush");
    while (in_flight_ > 0) ucp_worker_progress(worker_);
  }

  void SendMessage() {
    const ucp_request_param_t param = Counted();
    Started(ucp_am_send_nbx(endpoint_, 0, nullptr, 0, nullptr, 0, &param), "a message");
    while (in_flight_ > 0) ucp_worker_progress(worker_);
  }

  void AwaitMessage(uint64_t wanted) {
    while (messages_ < wanted) ucp_worker_progress(worker_);
  }

  const Config config_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_mem_h handle_ = nullptr;
  ucp_ep_h endpoint_ = nullptr;
  ucp_rkey_h key_ = nullptr;
  std::span<std::byte> memory_;
  uint64_t remote_base_ = 0;
  uint64_t messages_ = 0;  // received
  uint64_t rounds_ = 0;
  uint64_t in_flight_ = 0;
};

}  // namespace
}  // namespace compare

int main(int argc, char** argv) {
  return compare::RunDriver(argc, argv, [](const compare::Config& config) {
    if (config.mode != "own" && config.mode != "any") compare::Fail("--mode must be own or any");
    return std::make_unique<compare::Ucx>(config);
  });
}
