#include "src/backends/ucx/worker.h"

#include <dlfcn.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "src/backends/ucx/frame_order.h"
#include "src/backends/ucx/print.h"
#include "src/core/clock.h"
#include "src/core/log.h"
#include "src/core/strings.h"
#include "src/net/socket.h"

namespace kvxfer::ucx {
namespace {

// Without a message lane of their own: they copy between memories, or stay within the worker.
bool CarriesMessages(const std::string& transport) {
  static const std::set<std::string> kOthers = {
      "self", "cma", "knem", "xpmem", "cuda_ipc", "cuda_copy", "gdr_copy", "rocm_ipc", "rocm_copy"};
  return !kOthers.contains(transport);
}

bool IsMemory(const std::string& transport) {
  return !CarriesMessages(transport) || transport == "posix" || transport == "sysv" ||
         transport == "mm";
}

class Config {
 public:
  ~Config() {
    if (config_ != nullptr) ucp_config_release(config_);
  }
  absl::Status Read() {
    return UcxStatus(ucp_config_read(nullptr, nullptr, &config_), "ucp_config_read");
  }
  absl::Status Set(const char* name, const std::string& value) {
    const ucs_status_t status = ucp_config_modify(config_, name, value.c_str());
    if (status == UCS_OK) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("UCX_", name, "=", value, ": ", ucs_status_string(status)));
  }
  // As set by then, by the environment or a file of UCX too; empty: not known.
  std::string Get(std::string_view name) const {
    const std::string text = Printed(
        [this](FILE* out) { ucp_config_print(config_, out, nullptr, UCS_CONFIG_PRINT_CONFIG); });
    return ValueOf(text, "UCX_" + std::string(name));
  }
  ucp_config_t* get() const { return config_; }

 private:
  ucp_config_t* config_ = nullptr;
};

bool ListensOnLoopback(const AgentOptions& options) {
  auto bound = net::Resolve(options.listen, 0, net::Names::kResolve);
  return bound.ok() && !bound->empty() && bound->front().IsLoopback();
}

absl::Status Configure(const AgentOptions& options, Config& config) {
  absl::Status status = config.Read();
  if (!status.ok()) return status;
  const UcxOptions& ucx = options.ucx;
  if (!ucx.tls.empty()) status.Update(config.Set("TLS", ucx.tls));
  if (!ucx.net_devices.empty()) {
    status.Update(config.Set("NET_DEVICES", ucx.net_devices));
  } else if (ListensOnLoopback(options) && config.Get("NET_DEVICES") == "all") {
    // Nobody has said that other hosts may come in.
    status.Update(config.Set("NET_DEVICES", "lo"));
  }
  // The default, 20 s, is long for one who waits. Older libraries have neither.
  config.Set("KEEPALIVE_INTERVAL", "1s").IgnoreError();
  // No memory is registered with UCX: no need to watch the process's unmapping for it.
  config.Set("RCACHE_ENABLE", "n").IgnoreError();
  return status;
}

absl::StatusOr<ucp_context_h> Init(const Config& config) {
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "kvxfer";
  ucp_context_h context = nullptr;
  const ucs_status_t status = ucp_init(&params, config.get(), &context);
  if (status != UCS_OK) return UcxStatus(status, "ucp_init");
  return context;
}

std::set<std::string> TransportsOf(ucp_context_h context) {
  return Transports(Printed([&](FILE* out) { ucp_context_print_info(context, out); }));
}

std::string List(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names) absl::StrAppend(&out, out.empty() ? "" : ", ", name);
  return out.empty() ? "none" : out;
}

// What there is when nobody leaves anything out.
std::string Available() {
  Config config;
  if (!config.Read().ok() || !config.Set("TLS", "all").ok() ||
      !config.Set("NET_DEVICES", "all").ok()) {
    return "not known";
  }
  auto context = Init(config);
  if (!context.ok()) return "none";
  const std::string out = List(TransportsOf(*context));
  ucp_cleanup(*context);
  return out;
}

absl::Status NotUsable(const Config& config, std::string_view why) {
  return absl::UnavailableError(absl::StrCat(
      ToAbsl(why), " with UCX_TLS=", config.Get("TLS"), " and UCX_NET_DEVICES=",
      config.Get("NET_DEVICES"), " (UcxOptions::tls and net_devices, or the environment); UCX ",
      ucp_get_version_string(), " has here: ", Available()));
}

ucs_status_t HandOver(void* arg, const void*, size_t, void* data, size_t bytes,
                      const ucp_am_recv_param_t* param) {
  // None of ours comes by rendezvous.
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  FrameHasCome();
  static_cast<FrameSink*>(arg)->OnFrame({static_cast<const std::byte*>(data), bytes});
  return UCS_OK;
}

}  // namespace

std::string LibraryVersion() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<void*>(&ucp_get_version_string), &info) != 0;
  return absl::StrCat("UCX ", ucp_get_version_string(), " from ",
                      found && info.dli_fname != nullptr ? info.dli_fname : "the program");
}

absl::Status UcxStatus(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(ToAbsl(what), ": ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const AgentOptions& options,
                                                       FrameSink* sink) {
  std::unique_ptr<Worker> worker(new Worker);
  if (absl::Status made = worker->MakeContext(options); !made.ok()) return made;
  if (absl::Status made = worker->MakeWorker(sink); !made.ok()) return made;
  return worker;
}

absl::Status Worker::MakeContext(const AgentOptions& options) {
  Config config;
  if (absl::Status status = Configure(options, config); !status.ok()) return status;
  auto context = Init(config);
  if (!context.ok()) return NotUsable(config, ToStd(context.status().message()));
  context_ = *context;
  const std::set<std::string> transports = TransportsOf(context_);
  if (std::ranges::none_of(transports, CarriesMessages)) {
    return NotUsable(config, absl::StrCat("no transport for messages to other processes (only ",
                                          List(transports), ")"));
  }
  memory_only_ = std::ranges::all_of(transports, IsMemory);
  description_ = absl::StrCat(LibraryVersion(), ", transports ", List(transports));
  return absl::OkStatus();
}

absl::Status Worker::MakeWorker(FrameSink* sink) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  absl::Status status =
      UcxStatus(ucp_worker_create(context_, &params, &worker_), "ucp_worker_create");
  if (!status.ok()) return status;
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kFrameId;
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &HandOver;
  handler.arg = sink;
  status = UcxStatus(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp active messages");
  if (!status.ok()) return status;
  status = UcxStatus(ucp_worker_get_efd(worker_, &fd_), "ucp_worker_get_efd");
  if (!status.ok()) return status;
  ucp_address_t* address = nullptr;
  size_t bytes = 0;
  status = UcxStatus(ucp_worker_get_address(worker_, &address, &bytes), "ucp_worker_get_address");
  if (!status.ok()) return status;
  address_.assign(reinterpret_cast<const char*>(address), bytes);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

Worker::~Worker() {
  if (leave_behind_) {
    Log(LogLevel::kDebug, "ucx: a worker with unfinished business is left behind");
    return;
  }
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

bool Worker::Flush(Duration limit) {
  ucp_request_param_t param{};
  const ucs_status_ptr_t request = ucp_worker_flush_nbx(worker_, &param);
  if (request == nullptr) return true;
  if (UCS_PTR_IS_ERR(request)) return false;
  const Time end = Now() + limit;
  while (ucp_request_check_status(request) == UCS_INPROGRESS && Now() < end) {
    if (Progress() == 0) std::this_thread::yield();
  }
  const bool done = ucp_request_check_status(request) != UCS_INPROGRESS;
  ucp_request_free(request);
  return done;
}

}  // namespace kvxfer::ucx
