#include "src/backends/faulty/faulty_endpoint.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "src/backends/faulty/faulty_backend.h"
#include "src/core/base/strings.h"

namespace kvxfer::faulty {
namespace {

constexpr size_t kMaxBacklog = 128;  // ops held beyond the window
constexpr size_t kMaxHeldMessageBytes = 1 << 20;

}  // namespace

FaultyEndpoint::FaultyEndpoint(FaultyBackend* backend, std::unique_ptr<Endpoint> inner,
                               bool accepted)
    : backend_(backend),
      inner_(std::move(inner)),
      accepted_(accepted),
      ops_(backend->options(), backend->random()),
      incoming_(backend->options(), backend->random()),
      rails_(backend->options(), backend->random()) {
  backend_->Adopt(this);
  if (accepted_) Start(/*connecting=*/false);
}

FaultyEndpoint::~FaultyEndpoint() {
  if (backend_ != nullptr) backend_->Forget(this);
}

EndpointInfo FaultyEndpoint::Describe() const {
  if (inner_ == nullptr) return {.path = "closed", .rails = {{.up = false}}};
  EndpointInfo info = inner_->Describe();
  absl::StrAppend(&info.path, ", with injected faults");
  for (uint32_t i = 0; i < info.rails.size(); ++i) info.rails[i].up &= rails_.up(i);
  return info;
}

void FaultyEndpoint::Authorize() {
  if (inner_ != nullptr) inner_->Authorize();
}

Posted FaultyEndpoint::Post(const Op& op) {
  if (phase_ != Phase::kOpen) return false;
  const FaultOptions& options = backend_->options();
  if (Backlog() >= kMaxBacklog + options.reorder_window || !RailUp(op.rail)) return false;
  if (!Swallowed() && CutNow()) return false;
  CountTowardsBlackHole();
  const Time now = Now();
  Take({.op = op, .sequence = ++last_sequence_}, now);
  if (!Swallowed() && rails_.DrawFailure(op.rail)) FailRail(op.rail);
  // With `overtake` and with a window, ops wait at least until the next Poll: so messages overtake
  // them, and they meet the ops that overtake each other.
  if (!options.overtake && options.reorder_window == 0) ProgressOutgoing(now);
  return true;
}

void FaultyEndpoint::Take(const HeldOp& held, Time now) {
  const FaultOptions& options = backend_->options();
  const Op& op = held.op;
  if (Swallowed()) {
    swallowed_ops_.push_back(held);
  } else if (backend_->random()->Chance(options.error_probability)) {
    incoming_.Add(Completion(op, absl::UnavailableError(absl::StrCat("injected error on op ", op.id,
                                                                     " of transfer ", op.transfer,
                                                                     "; it was not executed"))),
                  now);
  } else if (op.rail == options.slow_rail) {
    slow_ops_.push_back({now + options.slow_rail_delay, held});
  } else {
    ops_.Add(held, now);
  }
}

bool FaultyEndpoint::Send(std::span<const std::byte> message) {
  if (phase_ != Phase::kOpen) return false;
  if (!Swallowed() && CutNow()) return true;  // lost with the connection
  CountTowardsBlackHole();
  if (Swallowed()) return true;
  // Without `overtake` a message goes behind the ops that were posted before it.
  const bool wait = !backend_->options().overtake && HasEarlierHeldOps(last_sequence_ + 1);
  // One that need not wait is not kept here: it would be lost with a Shutdown.
  const bool now = !wait && messages_.empty();
  if (now && inner_->Send(message)) return true;
  if (now || (!messages_.empty() && message_bytes_ + message.size() > kMaxHeldMessageBytes)) {
    if (backend_->options().blackhole_after != 0) --passed_;  // it will be offered again
    return false;
  }
  messages_.push_back({{message.begin(), message.end()}, last_sequence_ + 1});
  message_bytes_ += message.size();
  return true;
}

void FaultyEndpoint::Fence(FenceScope scope) {
  if (phase_ != Phase::kOpen) return;  // kDown follows
  if (scope.rail != FenceScope::kEveryRail) return FenceRail(scope.rail);
  FenceTransfer(scope.transfer);
}

void FaultyEndpoint::FenceTransfer(uint64_t transfer) {
  const auto matches = [&](const HeldOp& held) { return held.op.transfer == transfer; };
  std::vector<HeldOp> dropped = ExtractHeldOps(matches);
  std::ranges::copy_if(swallowed_ops_, std::back_inserter(dropped), matches);
  std::erase_if(swallowed_ops_, matches);
  for (const HeldOp& held : dropped) {
    backend_->Report(Completion(
        held.op, absl::CancelledError(absl::StrCat("transfer ", transfer, " was fenced"))));
  }
  inner_->Fence({.transfer = transfer});
}

void FaultyEndpoint::Shutdown(absl::Status why) {
  if (phase_ != Phase::kOpen) return;
  phase_ = Phase::kClosing;
  FailHeldOps(why);
  if (hidden_down_.has_value()) return OnInnerDown(why);
  inner_->Shutdown(std::move(why));
}

absl::StatusOr<std::unique_ptr<RemoteKey>> FaultyEndpoint::Import(const RemoteRegion& region,
                                                                  std::string_view key) {
  if (inner_ == nullptr) return absl::UnavailableError("the backend was destroyed");
  return inner_->Import(region, key);
}

void FaultyEndpoint::OnInner(Event event) {
  event.endpoint = this;
  const EventKind kind = event.kind;
  if (kind == EventKind::kDown) return OnInnerDown(event.status);
  // The black hole swallows what the peer does, but not what this side knows by itself.
  const bool by_peer =
      kind == EventKind::kMessage || kind == EventKind::kImmediate ||
      (kind == EventKind::kFenced && accepted_ && event.rail == FenceScope::kEveryRail);
  if (by_peer && Swallowed()) return;
  Pending pending;
  pending.message.assign(event.message.begin(), event.message.end());
  pending.event = std::move(event);
  switch (kind) {
    case EventKind::kCompletion:
      if (rails_.OnCompleted(pending.event.id) && pending.event.status.ok()) {
        pending.event.status = absl::UnavailableError(absl::StrCat(
            "injected failure of rail ", pending.event.rail, ": the completion is lost"));
      }
      return incoming_.Add(std::move(pending), Now());
    case EventKind::kImmediate:
    case EventKind::kMessage:
      return incoming_.Add(std::move(pending), Now());
    case EventKind::kFenced:
      return OnInnerFenced(std::move(pending.event));
    case EventKind::kRailDown:
    case EventKind::kRailUp:
      return OnInnerRail(std::move(pending.event));
    case EventKind::kConnected:
      Start(/*connecting=*/true);
      return backend_->Report(std::move(pending));
    case EventKind::kAccepted:
    case EventKind::kDown:
      return backend_->Report(std::move(pending));
  }
}

void FaultyEndpoint::Progress(Time now) {
  if (phase_ == Phase::kDown) return;
  std::vector<Pending> ready;
  incoming_.Release(now, ready);
  for (Pending& pending : ready) backend_->Report(std::move(pending));
  ProgressOutgoing(now);
  ProgressRails(now);
}

std::optional<Time> FaultyEndpoint::NextDue() const {
  std::optional<Time> due;
  const auto consider = [&](Time time) { due = due.has_value() ? std::min(*due, time) : time; };
  if (phase_ == Phase::kDown) return due;
  if (!incoming_.empty()) consider(incoming_.next_due());
  if (phase_ != Phase::kOpen) return due;
  if (!ops_.empty()) consider(ops_.next_due());
  if (!slow_ops_.empty()) consider(slow_ops_.front().due);
  if (const auto up = rails_.NextDue()) consider(*up);
  return due;
}

void FaultyEndpoint::Detach() {
  phase_ = Phase::kDown;
  inner_.reset();
  backend_ = nullptr;
}

void FaultyEndpoint::CountTowardsBlackHole() {
  const uint64_t limit = backend_->options().blackhole_after;
  if (limit != 0 && ++passed_ > limit) swallowing_ = true;
}

// Draws whether the connection is cut now.
bool FaultyEndpoint::CutNow() {
  if (!backend_->random()->Chance(backend_->options().cut_probability)) return false;
  Shutdown(absl::UnavailableError("injected cut of the connection"));
  return true;
}

bool FaultyEndpoint::HasEarlierHeldOps(uint64_t sequence) const {
  return ops_.Contains([&](const HeldOp& held) { return held.sequence < sequence; });
}

size_t FaultyEndpoint::Backlog() const { return slow_ops_.size() + ops_.size() + released_.size(); }

void FaultyEndpoint::ProgressOutgoing(Time now) {
  if (phase_ != Phase::kOpen) return;
  for (; !slow_ops_.empty() && slow_ops_.front().due <= now; slow_ops_.pop_front()) {
    ops_.Add(slow_ops_.front().held, now);
  }
  std::vector<HeldOp> going;
  ops_.Release(now, going);
  for (const HeldOp& held : going) released_.push_back(held.op);
  Forward();
  ForwardMessages();
}

void FaultyEndpoint::Forward() {
  if (released_.empty()) return;
  size_t taken = 0;
  for (; taken < released_.size(); ++taken) {
    const Op& op = released_[taken];
    const Posted posted = inner_->Post(op);
    if (!posted) break;
    rails_.OnForwarded(op.id, op.rail);
    // Also of one that is done: the faults of completions are for it as well.
    if (posted.done()) OnInner(MakeEvent(EventKind::kCompletion, this, op.id, {}, op.rail));
  }
  released_.erase(released_.begin(), released_.begin() + static_cast<std::ptrdiff_t>(taken));
}

void FaultyEndpoint::ForwardMessages() {
  while (!messages_.empty()) {
    const HeldMessage& message = messages_.front();
    if (HasEarlierHeldOps(message.after) || !inner_->Send(message.bytes)) return;
    message_bytes_ -= message.bytes.size();
    messages_.pop_front();
  }
}

void FaultyEndpoint::FlushIncoming() {
  std::vector<Pending> ready;
  incoming_.ReleaseAll(ready);
  for (Pending& pending : ready) backend_->Report(std::move(pending));
}

void FaultyEndpoint::OnInnerDown(const absl::Status& why) {
  // The black hole hides the loss too: the agent must notice the silence by itself.
  if (Swallowed()) {
    hidden_down_ = why;
    return;
  }
  phase_ = Phase::kDown;
  FailHeldOps(why);
  FlushIncoming();
  backend_->Report({.event = MakeEvent(EventKind::kDown, this, 0, why), .message = {}});
}

// Completes the ops that the inner endpoint has not seen.
void FaultyEndpoint::FailHeldOps(const absl::Status& why) {
  std::vector<HeldOp> held;
  ops_.ReleaseAll(held);
  held.insert(held.end(), swallowed_ops_.begin(), swallowed_ops_.end());
  for (const HeldOp& h : held) backend_->Report(Completion(h.op, why));
  for (const SlowOp& slow : slow_ops_) backend_->Report(Completion(slow.held.op, why));
  for (const Op& op : released_) backend_->Report(Completion(op, why));
  slow_ops_.clear();
  swallowed_ops_.clear();
  released_.clear();
  messages_.clear();
  message_bytes_ = 0;
}

Pending FaultyEndpoint::Completion(const Op& op, absl::Status status) {
  return {.event = MakeEvent(EventKind::kCompletion, this, op.id, std::move(status), op.rail),
          .message = {}};
}

}  // namespace kvxfer::faulty
