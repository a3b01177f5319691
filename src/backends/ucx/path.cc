// Path: opening, sending, failing and closing a UCX endpoint.

#include "src/backends/ucx/path.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/backends/ucx/print.h"
#include "src/core/base/host_identity.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/transport/host/message_order.h"
#include "src/transport/sockets/socket.h"

namespace kvxfer::ucx {

Path::Path(const Parts& parts, std::string place)
    : worker_(parts.worker),
      pool_(parts.pool),
      reactor_(parts.reactor),
      id_(RandomNonZero64()),
      place_(place.empty() ? absl::StrCat(std::string(1, kAccepted), id_) : std::move(place)) {}

absl::StatusOr<std::unique_ptr<Path>> Path::Open(const Parts& parts, std::string place,
                                                 std::optional<bool> reports_failure) {
  if (place.empty() || (place.front() != kBySocket && place.front() != kByWorker)) {
    return absl::InvalidArgumentError("the peer tells no place to connect to");
  }
  std::unique_ptr<Path> path(new Path(parts, std::move(place)));
  const ucs_status_t made =
      path->place_.front() == kBySocket ? path->OpenSocket() : path->OpenWorker(reports_failure);
  if (made != UCS_OK) {
    return UcxStatus(made, "no way to the peer over these transports (ucp_ep_create)");
  }
  return path;
}

absl::StatusOr<std::unique_ptr<Path>> Path::Accept(const Parts& parts, ucp_conn_request_h request) {
  std::unique_ptr<Path> path(new Path(parts, ""));
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const ucs_status_t made = path->Make(params, UCP_ERR_HANDLING_MODE_PEER);
  if (made != UCS_OK) return UcxStatus(made, "accepting a connection (ucp_ep_create)");
  return path;
}

ucs_status_t Path::OpenWorker(std::optional<bool> reports_failure) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS;
  params.address = reinterpret_cast<const ucp_address_t*>(place_.data() + 1);
  ucs_status_t made = UCS_ERR_UNREACHABLE;
  // Reporting is tried first, also where the peer is said not to report: what it can do follows
  // from what both have. Shared memory cannot report (see Worker::memory_only), so the attempt is
  // left out there.
  const bool must_report = reports_failure.value_or(false);
  if (must_report || !worker_->memory_only()) made = Make(params, UCP_ERR_HANDLING_MODE_PEER);
  if (made == UCS_ERR_UNREACHABLE && !must_report) {
    made = Make(params, UCP_ERR_HANDLING_MODE_NONE);
  }
  return made;
}

ucs_status_t Path::OpenSocket() {
  // Numeric only: the text is the peer's, and a name would be looked up.
  const auto at = net::Resolve(std::string_view(place_).substr(1), 0, net::Names::kNumericOnly);
  if (!at.ok()) return UCS_ERR_INVALID_ADDR;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {.addr = at->front().get(), .addrlen = at->front().length};
  return Make(params, UCP_ERR_HANDLING_MODE_PEER);
}

ucs_status_t Path::Make(ucp_ep_params_t params, ucp_err_handling_mode_t mode) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = mode;
  params.err_handler.cb = &Path::OnError;
  params.err_handler.arg = this;
  const ucs_status_t made = ucp_ep_create(worker_->get(), &params, &ep_);
  if (made != UCS_OK) ep_ = nullptr;
  reports_failure_ = mode == UCP_ERR_HANDLING_MODE_PEER;
  return made;
}

Path::~Path() {
  if (process_.valid()) reactor_->Remove(process_.get());
}

void Path::WatchProcess(const HostIdentity& them, const HostIdentity& us) {
  const bool here = !them.boot_id.empty() && them.SameHost(us) && them.pid != 0 &&
                    them.pid_namespace == us.pid_namespace && them.pid != us.pid;
  if (!here || pid_ != 0) return;
  pid_ = them.pid;
  OwnFd process =
      OwnFd::Open([&] { return static_cast<int>(syscall(SYS_pidfd_open, them.pid, 0)); });
  // Checked after the open: if the peer has this number now, it also had it when the pidfd was
  // opened, so the pidfd refers to it. Otherwise the peer is gone.
  if (ProcessGone(them, us)) return ProcessExited();
  if (!process.valid() || !reactor_->Add(process.get(), this).ok()) return;
  process_ = std::move(process);
}

void Path::OnReady(uint32_t) {
  // An exited process stays ready, so it is watched no longer.
  reactor_->Remove(process_.get());
  process_.Reset();
  ProcessExited();
}

void Path::ProcessExited() {
  Fail(absl::UnavailableError(absl::StrCat("process ", pid_, " exited")));
}

Outgoing& Path::Begin() {
  pool_->building().Begin();
  return pool_->building();
}

void Path::Send(const FrameHead& head) {
  if (failed() || ep_ == nullptr) return;
  Outgoing& frame = pool_->building();
  frame.path = this;
  frame.SetHead(head);
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_DATATYPE |
                       UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  // The receiver takes no rendezvous (see HandOver), which would also read lent memory later.
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.datatype = worker_->frames();
  // The listener's side knows no address of this endpoint. UCX's reply endpoint tells it which
  // connection to answer on.
  const bool first = head.kind == FrameKind::kHello && place_.front() == kBySocket;
  if (first) param.flags |= UCP_AM_SEND_FLAG_REPLY;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.send = &Path::OnSent;
  param.user_data = &frame;
  MessageIsSent();
  const ucs_status_ptr_t sent =
      ucp_am_send_nbx(ep_, Worker::kFrameId, nullptr, 0, &frame, 1, &param);
  if (UCS_PTR_IS_ERR(sent)) return Fail(UcxStatus(UCS_PTR_STATUS(sent), "ucp_am_send_nbx"));
  if (sent == nullptr) return;  // packed already: the next frame reuses the object
  // UCX reads the frame later, when the memory lent to it may be gone.
  frame.Own();
  ++in_flight_;
  bytes_in_flight_ += frame.bytes();
  std::ignore = pool_->Keep().release();  // OnSent owns it now
}

// Called by UCX within its progress, on failure too: each frame that was kept comes back exactly
// once.
void Path::OnSent(void* request, ucs_status_t status, void* frame) {
  std::unique_ptr<Outgoing> sent(static_cast<Outgoing*>(frame));
  Path* const path = sent->path;
  --path->in_flight_;
  path->bytes_in_flight_ -= sent->bytes();
  path->pool_->Give(std::move(sent));
  if (status != UCS_OK) path->Fail(UcxStatus(status, "ucp_am_send_nbx"));
  ucp_request_free(request);
}

// Called by UCX within its progress, where endpoints must not be closed: FailPaths does that later.
void Path::OnError(void* arg, ucp_ep_h, ucs_status_t status) {
  static_cast<Path*>(arg)->Fail(UcxStatus(status, "UCX endpoint"));
}

void Path::Fail(absl::Status why) {
  if (status_.ok()) status_ = std::move(why);
}

void Path::Close(bool flushing) {
  if (ep_ == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  // Force discards what is queued and waits for nobody. UCX allows it only for endpoints that
  // report failures.
  if (reports_failure_ && !flushing) param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(ep_, nullptr), &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) closing_ = request;
  Fail(absl::CancelledError("closed"));
}

bool Path::closed() {
  if (closing_ != nullptr && ucp_request_check_status(closing_) != UCS_INPROGRESS) {
    ucp_request_free(std::exchange(closing_, nullptr));
  }
  // OnSent of frames in flight still uses the path.
  return ep_ == nullptr && closing_ == nullptr && in_flight_ == 0;
}

std::string Path::Lanes() const {
  if (ep_ == nullptr) return {};
  return absl::StrJoin(Transports(Printed([&](FILE* out) { ucp_ep_print_info(ep_, out); })), ", ");
}

}  // namespace kvxfer::ucx
