// UcxEndpoint: hello, welcome, the agent's calls, and the end.

#include "src/backends/ucx/endpoint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/ucx/backend.h"
#include "src/backends/ucx/path.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/transport/check_op.h"

namespace kvxfer::ucx {
namespace {

// How many ops of one endpoint may be incomplete.
constexpr size_t kMaxOps = 512;
// How many bytes of messages may wait for space on the path.
constexpr size_t kMaxMessagesQueued = 1024 * 1024;
// The longest reason that a bye carries.
constexpr size_t kMaxReason = 1024;

}  // namespace

UcxEndpoint::UcxEndpoint(UcxBackend* backend, Path* path, const Address& peer)
    : backend_(backend),
      side_(Side::kConnecting),
      state_(State::kDialling),
      path_(path),
      cookie_(RandomNonZero64()),
      peer_(absl::StrCat("agent ", peer.incarnation.ToString().substr(0, 8))) {
  path_->endpoints.push_back(this);
  const std::string hello = Encode(Hello{.reports_failure = path_->reports_failure(),
                                         .cookie = cookie_,
                                         .path = path_->id(),
                                         .target = peer.incarnation,
                                         .dialler = backend_->incarnation(),
                                         .host = backend_->host(),
                                         .worker = backend_->worker().address()});
  path_->Begin().Append(std::as_bytes(std::span(hello)));
  // Outside the endpoint's order: the peer has no cookie for the endpoint yet.
  path_->Send({.kind = FrameKind::kHello});
}

UcxEndpoint::UcxEndpoint(UcxBackend* backend, Path* path, const Hello& hello)
    : backend_(backend),
      side_(Side::kAccepting),
      state_(State::kUp),
      path_(path),
      cookie_(RandomNonZero64()),
      peer_cookie_(hello.cookie),
      peer_path_(hello.path),
      caller_(hello.host),
      peer_(absl::StrCat("agent ", hello.dialler.ToString().substr(0, 8))) {
  path_->endpoints.push_back(this);
  // Sent by the next Pump: this runs before the backend knows the endpoint.
  controls_.push_back({.kind = FrameKind::kWelcome});
}

UcxEndpoint::~UcxEndpoint() {
  if (backend_ == nullptr) return;
  if (!down()) End(absl::CancelledError("the endpoint was destroyed"), true);
  backend_->Purge(this);
}

void UcxEndpoint::Detach() {
  state_ = State::kDown;
  path_ = nullptr;
  backend_ = nullptr;
}

void UcxEndpoint::WelcomeAgain(Path* path) {
  std::erase(path_->endpoints, this);
  path_ = path;
  path_->endpoints.push_back(this);
  // The welcome is the first frame, whether the one before has arrived or not.
  order_ = 0;
  controls_ = {{.kind = FrameKind::kWelcome}};
  backend_->Activate(this);
}

std::string UcxEndpoint::Name() const {
  const bool known = path_ != nullptr && path_->pid() != 0;
  return known ? absl::StrCat(peer_, ", process ", path_->pid()) : peer_;
}

EndpointInfo UcxEndpoint::Describe() const {
  const std::string lanes = path_ == nullptr ? "" : path_->Lanes();
  return OneRail(absl::StrCat("ucx to ", Name(), lanes.empty() ? "" : " over ", lanes));
}

void UcxEndpoint::Authorize() {
  if (down() || !accepted() || std::exchange(authorized_, true)) return;
  incoming_.Widen();
  controls_.push_back({.kind = FrameKind::kAuthorized});
  backend_->Authorized(this);
  backend_->Activate(this);
}

absl::StatusOr<std::unique_ptr<RemoteKey>> UcxEndpoint::Import(const RemoteRegion& region,
                                                               std::string_view) {
  return net::RkeyOnly::Of(region, "ucx", Name());
}

absl::Status UcxEndpoint::CheckOp(const Op& op) const {
  constexpr OpLimits kLimits{.bytes = kMaxOpBytes, .pieces = kMaxOpPieces};
  absl::Status status = kvxfer::CheckOp(op, kLimits, "ucx");
  if (!status.ok() || net::HaveKeys(op.blocks)) return status;
  return absl::InvalidArgumentError(absl::StrCat("ucx: op ", op.id, " lacks a key"));
}

Posted UcxEndpoint::Post(const Op& op) {
  if (state_ != State::kUp || ops_.size() + reads_.size() >= kMaxOps) return false;
  if (accepted()) {
    backend_->events().Push(MakeRefused(this, op, "ucx"));
    return true;
  }
  if (absl::Status status = CheckOp(op); !status.ok()) {
    Complete(op.id, std::move(status));
    return true;
  }
  ops_.push_back({.op = op, .walk = RunWalk(op.blocks)});
  // Sends small ops at once, without waiting for Poll; kInlineCopyBytes bounds what the call
  // copies.
  size_t budget = kInlineCopyBytes;
  Pump(budget);
  backend_->Activate(this);
  return true;
}

bool UcxEndpoint::Send(std::span<const std::byte> message) {
  if (state_ != State::kUp || message.size() > kMaxMessageBytes) return false;
  // A single message is taken whatever its size, so that one always makes progress.
  if (message_bytes_ > 0 && message_bytes_ + message.size() > kMaxMessagesQueued) return false;
  messages_.emplace_back(reinterpret_cast<const char*>(message.data()), message.size());
  message_bytes_ += message.size();
  size_t budget = kInlineCopyBytes;
  Pump(budget);
  backend_->Activate(this);
  return true;
}

void UcxEndpoint::Fence(FenceScope scope) {
  // The only rail does not fail alone.
  if (down() || scope.transfer == FenceScope::kEveryTransfer) return;
  const uint64_t transfer = scope.transfer;
  if (accepted()) {
    // Bytes of the transfer are no longer sent or written from here on. The answer kFenced is due
    // once the initiator's marker has arrived too, because then no frame of the transfer can
    // follow.
    for (Serving& read : served_) read.voided = read.voided || read.transfer == transfer;
    return EmitFenced(transfer, fences_.Ask(transfer));
  }
  // The transfer's ops are over and their memory is released. The marker may overtake other
  // transfers' data, because no frame of this transfer is queued behind it.
  CancelOps(transfer);
  controls_.push_back({.kind = FrameKind::kFence, .transfer = transfer});
  EmitFenced(transfer);
  backend_->Activate(this);
}

void UcxEndpoint::CancelOps(uint64_t transfer) {
  const absl::Status why = absl::CancelledError(
      absl::StrCat("ucx peer ", Name(), ": transfer ", transfer, " was fenced"));
  std::erase_if(ops_, [&](const Queued& queued) {
    if (queued.op.transfer != transfer) return false;
    Complete(queued.op.id, why);
    return true;
  });
  std::erase_if(reads_, [&](const auto& read) {
    if (read.second.op.transfer != transfer) return false;
    Complete(read.second.op.id, why);
    return true;
  });
}

void UcxEndpoint::EndOps(const absl::Status& why) {
  for (const Queued& queued : ops_) Complete(queued.op.id, why);
  for (const auto& [number, read] : reads_) Complete(read.op.id, why);
  ops_.clear();
  reads_.clear();
  served_.clear();
}

void UcxEndpoint::Shutdown(absl::Status why) {
  if (why.ok()) why = absl::CancelledError("closed");
  if (!down()) End(Annotate(why, absl::StrCat("ucx peer ", Name())), true);
}

void UcxEndpoint::OnPathDown(const absl::Status& why) {
  if (!down()) End(Annotate(why, absl::StrCat("ucx peer ", Name())), false);
}

// After Forget no frame finds this endpoint, so the peer can no longer write or read through it.
void UcxEndpoint::End(absl::Status why, bool tell) {
  EndOps(why);
  const bool told = tell && SendBye(ToStd(why.message()).substr(0, kMaxReason));
  backend_->Forget(this, told);
  std::erase(path_->endpoints, this);
  path_ = nullptr;
  state_ = State::kDown;
  Emit(EventKind::kDown, 0, std::move(why));
}

void UcxEndpoint::Complete(uint64_t op, absl::Status status) {
  Emit(EventKind::kCompletion, op, std::move(status));
}

void UcxEndpoint::Emit(EventKind kind, uint64_t id, absl::Status status) {
  backend_->events().Say(kind, this, id, std::move(status));
}

void UcxEndpoint::EmitFenced(uint64_t transfer, uint32_t answers) {
  for (; answers > 0; --answers) {
    backend_->events().Push(MakeFenced(this, {.transfer = transfer}));
  }
}

}  // namespace kvxfer::ucx
