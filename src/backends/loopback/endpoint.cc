#include "src/backends/loopback/endpoint.h"

#include <utility>

#include "src/backends/loopback/loopback_backend.h"
#include "src/core/base/strings.h"
#include "src/transport/check_op.h"
#include "src/transport/event_queue.h"

namespace kvxfer::loopback {
namespace {

constexpr size_t kMaxQueuedOps = 64;  // per rail

}  // namespace

LoopbackEndpoint::LoopbackEndpoint(LoopbackBackend* backend, std::shared_ptr<Connection> connection,
                                   Side side)
    : backend_(backend),
      connection_(std::move(connection)),
      side_(side),
      rails_(connection_->rails()) {}

LoopbackEndpoint::~LoopbackEndpoint() {
  connection_->Close(side_, absl::CancelledError("the endpoint was destroyed"));
  if (backend_ != nullptr) backend_->Forget(*this);
}

EndpointInfo LoopbackEndpoint::Describe() const {
  return {
      .path = absl::StrCat("same process, incarnation ", connection_->node(Other(side_)).address()),
      .rails = std::vector<RailInfo>(rails_.size()),
  };
}

void LoopbackEndpoint::Authorize() {
  if (side_ == Side::kTarget) connection_->Authorize();
}

Posted LoopbackEndpoint::Post(const Op& op) {
  if (closing_ || backend_ == nullptr) return false;
  if (side_ == Side::kTarget) {
    backend_->Report(MakeRefused(this, op, "loopback"));
    return true;
  }
  const Capabilities& most = backend_->capabilities();
  const absl::Status good = CheckOp(
      op, {.rails = rails_.size(), .bytes = most.max_op_bytes, .pieces = most.max_op_pieces},
      "loopback");
  if (!good.ok()) {
    Complete(op, good);
    return true;
  }
  RailQueue& rail = rails_[op.rail];
  if (rail.size() >= kMaxQueuedOps || !connection_->HasSpace(side_)) return false;
  rail.push_back({.op = op, .cursor = {.left = RunWalk(op.blocks)}});
  ++queued_;
  backend_->OnQueued(*this);
  return true;
}

bool LoopbackEndpoint::Send(std::span<const std::byte> message) {
  return !closing_ && message.size() <= kMaxMessageBytes && connection_->Send(side_, message);
}

void LoopbackEndpoint::Fence(FenceScope scope) {
  const uint64_t transfer = scope.transfer;
  if (transfer == FenceScope::kEveryTransfer) return;
  if (closing_ || backend_ == nullptr) return;  // kDown follows
  if (side_ == Side::kTarget) return connection_->Fence(transfer);
  // The driver does the copies, so none is in progress during this call: queued ops need only be
  // dropped.
  for (RailQueue& rail : rails_) {
    queued_ -= std::erase_if(rail, [&](const Queued& queued) {
      // An op that has begun is dropped too: nothing reads its source after this.
      if (queued.op.transfer != transfer) return false;
      Complete(queued.op, absl::CancelledError(absl::StrCat("transfer ", transfer, " was fenced")));
      return true;
    });
  }
  backend_->Report(MakeFenced(this, {.transfer = transfer}));
}

void LoopbackEndpoint::Shutdown(absl::Status why) {
  if (std::exchange(closing_, true)) return;
  if (why.ok()) why = absl::CancelledError("shut down");
  connection_->Close(side_, why);
}

absl::StatusOr<std::unique_ptr<RemoteKey>> LoopbackEndpoint::Import(const RemoteRegion& region,
                                                                    std::string_view /*key*/) {
  if (region.kind != MemoryKind::kHost) {
    return absl::UnimplementedError(absl::StrCat("loopback moves host memory only; region ",
                                                 static_cast<uint32_t>(region.id),
                                                 " of the peer is on a device"));
  }
  return std::make_unique<Key>(region.rkey);
}

uint64_t LoopbackEndpoint::Advance() {
  uint64_t copied = 0;
  for (RailQueue& rail : rails_) copied += AdvanceRail(rail, kSliceBytes);
  return copied;
}

void LoopbackEndpoint::OnDown(const absl::Status& why) {
  closing_ = true;
  for (RailQueue& rail : rails_) {
    for (const Queued& queued : std::exchange(rail, {})) Complete(queued.op, why);
  }
  queued_ = 0;
}

void LoopbackEndpoint::Detach() {
  connection_->Close(side_, absl::UnavailableError("the agent was destroyed"));
  closing_ = true;
  backend_ = nullptr;
}

// Copies ops in the order of Post, up to `budget` bytes. An op that is refused completes with the
// cause.
uint64_t LoopbackEndpoint::AdvanceRail(RailQueue& rail, uint64_t budget) {
  if (!connection_->authorized()) return 0;
  uint64_t total = 0;
  while (!rail.empty()) {
    Queued& front = rail.front();
    uint64_t copied = 0;
    bool done = false;
    absl::Status status =
        connection_->CopySlice(front.op, front.cursor, budget - total, &copied, &done);
    total += copied;
    if (status.ok() && !done) break;
    Complete(front.op, std::move(status));
    rail.pop_front();
    --queued_;
  }
  return total;
}

void LoopbackEndpoint::Complete(const Op& op, absl::Status status) {
  backend_->Report(MakeEvent(EventKind::kCompletion, this, op.id, std::move(status), op.rail));
}

}  // namespace kvxfer::loopback
