#include "src/backends/ucx/path.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/str_join.h"
#include "src/backends/ucx/frame_order.h"
#include "src/backends/ucx/print.h"
#include "src/core/host_identity.h"
#include "src/core/random.h"
#include "src/core/strings.h"

namespace kvxfer::ucx {

Path::Path(Worker* worker, StagingPool* pool, Poller* poller, std::string address)
    : worker_(worker),
      pool_(pool),
      poller_(poller),
      address_(std::move(address)),
      id_(RandomNonZero64()) {}

absl::StatusOr<std::unique_ptr<Path>> Path::Open(Worker* worker, StagingPool* pool, Poller* poller,
                                                 std::string address,
                                                 std::optional<bool> reports_failure) {
  std::unique_ptr<Path> path(new Path(worker, pool, poller, std::move(address)));
  ucs_status_t made = UCS_ERR_UNREACHABLE;
  if (reports_failure.value_or(!worker->memory_only())) {
    made = path->Make(UCP_ERR_HANDLING_MODE_PEER);
  }
  if (made == UCS_ERR_UNREACHABLE && !reports_failure.value_or(false)) {
    made = path->Make(UCP_ERR_HANDLING_MODE_NONE);
  }
  if (made != UCS_OK) {
    return UcxStatus(made, "no way to the peer over these transports (ucp_ep_create)");
  }
  return path;
}

ucs_status_t Path::Make(ucp_err_handling_mode_t mode) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address_.data());
  params.err_mode = mode;
  params.err_handler.cb = &Path::OnError;
  params.err_handler.arg = this;
  const ucs_status_t made = ucp_ep_create(worker_->get(), &params, &ep_);
  if (made != UCS_OK) ep_ = nullptr;
  reports_failure_ = mode == UCP_ERR_HANDLING_MODE_PEER;
  return made;
}

Path::~Path() {
  if (process_.valid()) poller_->Remove(process_.get());
  if (begun_ != nullptr) pool_->Give(std::move(begun_));
}

void Path::WatchProcess(const HostIdentity& them, const HostIdentity& us) {
  const bool here = !them.boot_id.empty() && them.SameHost(us) && them.pid != 0 &&
                    them.pid_namespace == us.pid_namespace && them.pid != us.pid;
  if (!here || pid_ != 0) return;
  pid_ = them.pid;
  OwnFd process =
      OwnFd::Open([&] { return static_cast<int>(syscall(SYS_pidfd_open, them.pid, 0)); });
  // Held, the number cannot become another process's: now it is the peer's, or the peer is gone.
  if (ProcessGone(them, us)) return OnReady();
  if (!process.valid() || !poller_->Add(process.get(), this).ok()) return;
  process_ = std::move(process);
}

void Path::OnReady() {
  if (process_.valid()) poller_->Remove(process_.get());
  process_.Reset();
  Fail(absl::UnavailableError(absl::StrCat("process ", pid_, " exited")));
}

std::span<std::byte> Path::Begin() {
  if (begun_ == nullptr) begun_ = pool_->Take();
  return std::span(begun_->bytes).subspan(kFrameHeadBytes);
}

void Path::Send(FrameHead head) {
  Begin();
  if (failed() || ep_ == nullptr) return;
  Encode(head, std::span(begun_->bytes).first<kFrameHeadBytes>());
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.cb.send = &Path::OnSent;
  param.user_data = begun_.get();
  begun_->path = this;
  FrameIsSent();
  const ucs_status_ptr_t sent =
      ucp_am_send_nbx(ep_, Worker::kFrameId, nullptr, 0, begun_->bytes.data(),
                      kFrameHeadBytes + head.bytes, &param);
  if (UCS_PTR_IS_ERR(sent)) return Fail(UcxStatus(UCS_PTR_STATUS(sent), "ucp_am_send_nbx"));
  if (sent == nullptr) return;  // copied already: the buffer serves the next one
  ++in_flight_;
  begun_.release();  // OnSent's
}

void Path::OnSent(void* request, ucs_status_t status, void* staging) {
  std::unique_ptr<Staging> sent(static_cast<Staging*>(staging));
  Path* const path = sent->path;
  --path->in_flight_;
  path->pool_->Give(std::move(sent));
  if (status != UCS_OK) path->Fail(UcxStatus(status, "ucp_am_send_nbx"));
  ucp_request_free(request);
}

void Path::OnError(void* arg, ucp_ep_h, ucs_status_t status) {
  static_cast<Path*>(arg)->Fail(UcxStatus(status, "UCX endpoint"));
}

void Path::Fail(absl::Status why) {
  if (status_.ok()) status_ = std::move(why);
}

void Path::Close() {
  if (ep_ == nullptr) return;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  if (reports_failure_) param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(ep_, nullptr), &param);
  if (request != nullptr && !UCS_PTR_IS_ERR(request)) closing_ = request;
  Fail(absl::CancelledError("closed"));
}

bool Path::closed() {
  if (closing_ != nullptr && ucp_request_check_status(closing_) != UCS_INPROGRESS) {
    ucp_request_free(std::exchange(closing_, nullptr));
  }
  return ep_ == nullptr && closing_ == nullptr && in_flight_ == 0;
}

std::string Path::Lanes() const {
  if (ep_ == nullptr) return {};
  return absl::StrJoin(Transports(Printed([&](FILE* out) { ucp_ep_print_info(ep_, out); })), ", ");
}

}  // namespace kvxfer::ucx
