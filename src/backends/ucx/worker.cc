// Worker: configures UCX, creates context and worker, and shuts them down.

#include "src/backends/ucx/worker.h"

#include <dlfcn.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "src/backends/ucx/outgoing.h"
#include "src/backends/ucx/print.h"
#include "src/core/base/clock.h"
#include "src/core/base/log.h"
#include "src/core/base/strings.h"
#include "src/transport/host/message_order.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::ucx {
namespace {

// False for transports that only copy between memories or stay within the worker: messages need
// another one.
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
  // The value as set by Set, the environment or UCX's configuration file; empty: not known.
  std::string Get(std::string_view name) const {
    const std::string text = Printed(
        [this](FILE* out) { ucp_config_print(config_, out, nullptr, UCS_CONFIG_PRINT_CONFIG); });
    return ValueOf(text, "UCX_" + std::string(name));
  }
  ucp_config_t* get() const { return config_; }

 private:
  ucp_config_t* config_ = nullptr;
};

bool ListensOnLoopback(const AgentOptions& agent, const UcxOptions& options) {
  const std::string& text = options.listen.empty() ? agent.listen : options.listen;
  auto bound = net::Resolve(text, 0, net::Names::kResolve);
  return bound.ok() && !bound->empty() && bound->front().IsLoopback();
}

absl::Status Configure(const AgentOptions& agent, const UcxOptions& options, Config& config) {
  absl::Status status = config.Read();
  if (!status.ok()) return status;
  const bool loopback = ListensOnLoopback(agent, options);
  if (!options.tls.empty()) status.Update(config.Set("TLS", options.tls));
  if (!options.net_devices.empty()) {
    status.Update(config.Set("NET_DEVICES", options.net_devices));
  } else if (loopback && config.Get("NET_DEVICES") == "all") {
    // Nothing says that other hosts may connect.
    status.Update(config.Set("NET_DEVICES", "lo"));
  }
  // UCX's own connection manager over TCP aborts the process (1.13) if a stranger sends it
  // something unexpected, so it is not opened to other hosts.
  if (!options.listen.empty() && !loopback)
    status.Update(config.Set("SOCKADDR_TLS_PRIORITY", "rdmacm"));
  // UCX's default of 20 s is too long to wait for a dead peer. Older libraries lack this option and
  // the next, so errors are ignored.
  config.Set("KEEPALIVE_INTERVAL", "1s").IgnoreError();
  // No memory is registered with UCX, so it need not watch the process's memory mappings.
  config.Set("RCACHE_ENABLE", "n").IgnoreError();
  return status;
}

// Sets options of transports: over tcp a frame fits one segment, and the queue of shared memory
// holds what may be in flight. The segment sizes have to be equal at both ends of an endpoint. UCX
// would warn about such options if no transport has them, so the transports have to be known.
// False: there was nothing to set.
bool SetTransports(Config& config, const std::set<std::string>& transports) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  const bool bare = major == 1 && minor < 17;  // up to 1.16 the options of tcp have no prefix
  const auto set = [&](const char* prefix, const char* name, const char* value) {
    config.Set(((bare ? "" : prefix) + std::string(name)).c_str(), value).IgnoreError();
  };
  const bool tcp = transports.contains("tcp");
  if (tcp) set("TCP_", "TX_SEG_SIZE", "64k");
  if (tcp) set("TCP_", "RX_SEG_SIZE", "64k");
  // Otherwise UCX waits within ucp_ep_create until the peer's host answers, up to minutes, and
  // (1.13 at least) aborts the process if a peer that had connected to this worker has died.
  if (tcp) set("TCP_", "CONN_NB", "y");
  const bool memory = transports.contains("posix") || transports.contains("sysv");
  if (bare && memory) set("", "MM_FIFO_SIZE", "256");  // the default of later versions
  return tcp || (bare && memory);
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

// The transports that exist if no option excludes any.
std::string Available() {
  Config config;
  if (!config.Read().ok() || !config.Set("TLS", "all").ok() ||
      !config.Set("NET_DEVICES", "all").ok()) {
    return "not known";
  }
  auto context = Init(config);
  if (!context.ok()) return "none";
  std::string out = List(TransportsOf(*context));
  ucp_cleanup(*context);
  return out;
}

absl::Status NotUsable(const Config& config, std::string_view why) {
  return absl::UnavailableError(absl::StrCat(
      ToAbsl(why), " with UCX_TLS=", config.Get("TLS"), " and UCX_NET_DEVICES=",
      config.Get("NET_DEVICES"), " (UcxOptions::tls and net_devices, or the environment); UCX ",
      ucp_get_version_string(), " has here: ", Available()));
}

std::string FileOf(const void* function) {
  Dl_info info{};
  const bool found = dladdr(function, &info) != 0 && info.dli_fname != nullptr;
  return found ? info.dli_fname : "the program";
}

// If a second UCX's symbols are visible to the whole process, its functions replace those of this
// UCX, also in calls between this UCX's own libraries. UCX then hangs or crashes.
absl::Status CheckBoundTo(const char* library, const char* name, const void* bound) {
  void* const loaded = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  // Loaded under another name: it is the only one.
  if (loaded == nullptr) return absl::OkStatus();
  const void* const own = dlsym(loaded, name);
  dlclose(loaded);
  if (own == nullptr || own == bound) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(
      "the process shows ", FileOf(bound), " to all its libraries (LD_PRELOAD, or dlopen with ",
      "RTLD_GLOBAL), and its functions stand in for those of ", FileOf(own),
      ", which kvxfer uses; load that UCX without RTLD_GLOBAL, or leave one of the two out"));
}

absl::Status CheckLibrary() {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned release = 0;
  ucp_get_version(&major, &minor, &release);
  absl::Status status = CheckVersion(major, minor);
  if (!status.ok()) return Annotate(status, LibraryVersion());
  // Each of the two libraries is checked: one alone may be replaced.
  status.Update(CheckBoundTo("libucp.so.0", "ucp_get_version_string",
                             reinterpret_cast<const void*>(&ucp_get_version_string)));
  status.Update(CheckBoundTo("libucs.so.0", "ucs_status_string",
                             reinterpret_cast<const void*>(&ucs_status_string)));
  return status;
}

ucs_status_t HandOver(void* arg, const void*, size_t, void* data, size_t bytes,
                      const ucp_am_recv_param_t* param) {
  // Frames are sent eagerly; a rendezvous is a stranger's, and is dropped.
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) return UCS_OK;
  MessageHasCome();
  const bool answerable = (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0;
  static_cast<FrameSink*>(arg)->OnFrame({static_cast<const std::byte*>(data), bytes},
                                        answerable ? param->reply_ep : nullptr);
  return UCS_OK;
}

}  // namespace

std::string LibraryVersion() {
  return absl::StrCat("UCX ", ucp_get_version_string(), " from ",
                      FileOf(reinterpret_cast<const void*>(&ucp_get_version_string)));
}

absl::Status CheckVersion(unsigned major, unsigned minor) {
  if (major > 1 || (major == 1 && minor >= 12)) return absl::OkStatus();
  return absl::UnavailableError("too old: version 1.12 is the first that kvxfer can use");
}

absl::Status UcxStatus(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(ToAbsl(what), ": ", ucs_status_string(status)));
}

absl::StatusOr<std::unique_ptr<Worker>> Worker::Create(const AgentOptions& agent,
                                                       const UcxOptions& options, FrameSink* sink) {
  if (absl::Status usable = CheckLibrary(); !usable.ok()) return usable;
  std::unique_ptr<Worker> worker(new Worker);
  if (absl::Status made = worker->MakeContext(agent, options); !made.ok()) return made;
  if (absl::Status made = worker->MakeWorker(sink); !made.ok()) return made;
  return worker;
}

absl::Status Worker::MakeContext(const AgentOptions& agent, const UcxOptions& options) {
  Config config;
  if (absl::Status status = Configure(agent, options, config); !status.ok()) return status;
  auto context = Init(config);
  if (!context.ok()) return NotUsable(config, ToStd(context.status().message()));
  context_ = *context;
  const std::set<std::string> transports = TransportsOf(context_);
  if (std::ranges::none_of(transports, CarriesMessages)) {
    return NotUsable(config, absl::StrCat("no transport for messages to other processes (only ",
                                          List(transports), ")"));
  }
  // UCX reads its options when the context is made, so the context is made again.
  if (SetTransports(config, transports)) {
    ucp_cleanup(std::exchange(context_, nullptr));
    context = Init(config);
    if (!context.ok()) return context.status();
    context_ = *context;
  }
  memory_only_ = std::ranges::all_of(transports, IsMemory);
  description_ = absl::StrCat(LibraryVersion(), ", transports ", List(transports));
  return absl::OkStatus();
}

absl::Status Worker::MakeWorker(FrameSink* sink) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  // Different threads make progress, one at a time; the agent orders them.
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  absl::Status status =
      UcxStatus(ucp_worker_create(context_, &params, &worker_), "ucp_worker_create");
  if (!status.ok()) return status;
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                       UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kFrameId;
  // UCX calls the handler once per message, with all of its bytes in one piece.
  handler.flags = UCP_AM_FLAG_WHOLE_MSG;
  handler.cb = &HandOver;
  handler.arg = sink;
  status = UcxStatus(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp active messages");
  if (!status.ok()) return status;
  status = UcxStatus(ucp_worker_get_efd(worker_, &fd_), "ucp_worker_get_efd");
  if (!status.ok()) return status;
  status = UcxStatus(ucp_dt_create_generic(&Outgoing::kDatatypeOps, nullptr, &frames_),
                     "ucp_dt_create_generic");
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
  } else {
    if (worker_ != nullptr) ucp_worker_destroy(worker_);
    if (context_ != nullptr) ucp_cleanup(context_);
  }
  // After the worker: its sends ask the datatype for bytes.
  if (frames_ != 0) ucp_dt_destroy(frames_);
}

void Worker::StartFlush() {
  const ucp_request_param_t param{};
  const ucs_status_ptr_t request = ucp_worker_flush_nbx(worker_, &param);
  // Null means that nothing had to be waited for.
  flush_failed_ = UCS_PTR_IS_ERR(request);
  if (!flush_failed_) flushing_ = request;
}

bool Worker::flushed() {
  if (flushing_ != nullptr && ucp_request_check_status(flushing_) != UCS_INPROGRESS) {
    ucp_request_free(std::exchange(flushing_, nullptr));
  }
  return flushing_ == nullptr && !flush_failed_;
}

// Progress does not count work that one call leaves to the next, so only two calls in a row without
// work mean that nothing is left.
bool Worker::Settle(Duration limit) {
  const Time end = Now() + limit;
  for (int idle = 0; idle < 2;) {
    if (Now() >= end) return false;
    idle = Progress() == 0 ? idle + 1 : 0;
  }
  return true;
}

bool Worker::ProgressUntil(absl::FunctionRef<bool()> done, Duration limit) {
  for (const Time end = Now() + limit; !done();) {
    if (Now() >= end) return false;
    // The peer may need the CPU to answer.
    if (Progress() == 0) std::this_thread::yield();
  }
  return true;
}

}  // namespace kvxfer::ucx
