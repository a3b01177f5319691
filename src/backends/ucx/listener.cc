// Listener: checks the address, opens UCX's listener, and queues its connection requests.

#include "src/backends/ucx/listener.h"

#include <uct/api/uct.h>
#include <unistd.h>

#include <span>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/backends/ucx/worker.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::ucx {
namespace {

// How many connections may wait to be accepted; further ones are rejected.
constexpr size_t kMaxWaiting = 1024;

absl::StatusOr<net::SocketAddress> Bound(const std::string& text) {
  absl::StatusOr<std::vector<net::SocketAddress>> at = net::Resolve(text, 0, net::Names::kResolve);
  if (!at.ok()) return at.status();
  if (!at->front().IsWildcard()) return at->front();
  return absl::InvalidArgumentError(absl::StrCat(
      "`ucx.listen` (KVXFER_UCX_LISTEN) is ", text,
      ": name one address of this host, that of the device which peers are to connect to"));
}

// True: UCX has rdmacm, its connection manager over RDMA, and the kernel has it too.
// ucp_listener_create aborts the process (1.13) if no connection manager that it may use is there.
bool HasRdmacm() {
  uct_component_h* components = nullptr;
  unsigned count = 0;
  if (uct_query_components(&components, &count) != UCS_OK) return false;
  bool found = false;
  for (uct_component_h component : std::span(components, count)) {
    uct_component_attr_t attributes{};
    attributes.field_mask = UCT_COMPONENT_ATTR_FIELD_NAME;
    found = found || (uct_component_query(component, &attributes) == UCS_OK &&
                      std::string_view(attributes.name) == "rdmacm");
  }
  uct_release_component_list(components);
  return found && access("/dev/infiniband/rdma_cm", R_OK | W_OK) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(ucp_worker_h worker,
                                                         const std::string& text) {
  absl::StatusOr<net::SocketAddress> at = Bound(text);
  if (!at.ok()) return at.status();
  // Elsewhere than on loopback Worker allows rdmacm alone.
  if (!at->IsLoopback() && !HasRdmacm()) {
    return absl::UnavailableError(
        absl::StrCat("`ucx.listen` (KVXFER_UCX_LISTEN) is ", text,
                     ": beyond loopback that is for RDMA devices, and there is no rdmacm here (the "
                     "UCX found has "
                     "none, or /dev/infiniband/rdma_cm cannot be opened: modprobe rdma_ucm)"));
  }
  std::unique_ptr<Listener> out(new Listener);
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {.addr = at->get(), .addrlen = at->length};
  params.conn_handler = {.cb = &Listener::OnRequest, .arg = out.get()};
  ucs_status_t status = ucp_listener_create(worker, &params, &out->listener_);
  if (status != UCS_OK) {
    out->listener_ = nullptr;
    return UcxStatus(status, absl::StrCat("listening at ", at->ToString(),
                                          " (UcxOptions::listen, KVXFER_UCX_LISTEN)"));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(out->listener_, &attributes);
  if (status != UCS_OK) return UcxStatus(status, "ucp_listener_query");
  // The real port: `text` may name port 0.
  at->storage = attributes.sockaddr;
  out->address_ = at->ToString();
  return out;
}

Listener::~Listener() {
  if (listener_ == nullptr) return;
  for (ucp_conn_request_h request : waiting_) Reject(request);
  ucp_listener_destroy(listener_);
}

ucp_conn_request_h Listener::Take() {
  if (waiting_.empty()) return nullptr;
  ucp_conn_request_h request = waiting_.front();
  waiting_.pop_front();
  return request;
}

// Called by UCX within Worker::Progress, so it only queues the request.
void Listener::OnRequest(ucp_conn_request_h request, void* self) {
  auto* const listener = static_cast<Listener*>(self);
  if (listener->waiting_.size() >= kMaxWaiting) return listener->Reject(request);
  listener->waiting_.push_back(request);
}

}  // namespace kvxfer::ucx
