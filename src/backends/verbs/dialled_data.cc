// VerbsDialledEndpoint: posting, completions, and making transfers quiet.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"

namespace kvxfer::verbs {
namespace {

// How many failed ops are remembered; each of them has cost a queue pair.
constexpr size_t kMaxCulprits = 64;

absl::Status InvalidOp(const Op& op) {
  return absl::InvalidArgumentError(
      absl::StrCat("verbs: op ", op.id, " is too large, or names no rail, transfer or key"));
}

}  // namespace

// Its runs are checked while they are walked.
bool VerbsDialledEndpoint::IsValid(const Op& op) const {
  return op.rail < rails_.size() && op.transfer != 0 && op.blocks.bytes <= kMaxOpBytes &&
         op.blocks.pieces <= backend_->capabilities().max_op_pieces;
}

// An op with more requests than the queue holds would wait for ever, so it is refused.
absl::Status VerbsDialledEndpoint::CheckRequests(const Op& op, uint32_t requests) const {
  const size_t most = std::min<size_t>(backend_->queue_depth() - 2, RequestPool::kRequests);
  if (requests <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "verbs: op ", op.id, " is of GPU memory in so many allocations that it is ", requests,
      " requests, and the queue holds ", most,
      "; set a larger `verbs.queue_depth` (KVXFER_VERBS_QUEUE_DEPTH), or register larger ones"));
}

bool VerbsDialledEndpoint::plain() const {
  return keys_in_parts_ == 0 && !backend_->has_gpu_memory();
}

bool VerbsDialledEndpoint::Refuse(const Op& op, absl::Status why) {
  Say(EventKind::kCompletion, op.id, std::move(why), op.rail);
  return true;
}

Posted VerbsDialledEndpoint::Post(const Op& op) {
  if (!up()) return false;
  // This may end rails, and with the last of them the endpoint.
  backend_->TakeAdded();
  if (!up()) return false;
  if (!IsValid(op)) return Refuse(op, InvalidOp(op));
  VerbsRail& rail = *rails_[op.rail];
  if (!rail.up()) return false;
  uint32_t most = std::max(op.blocks.pieces, 1u);
  if (!plain()) {
    most = VerbsRail::RequestsOf(op);
    if (most == 0) return Refuse(op, InvalidOp(op));
    if (absl::Status status = CheckRequests(op, most); !status.ok()) return Refuse(op, status);
  }
  const VerbsRail::Posted posted = rail.Post(op, most);
  if (posted == VerbsRail::Posted::kNoKey) return Refuse(op, InvalidOp(op));
  return posted == VerbsRail::Posted::kYes;
}

void VerbsDialledEndpoint::OpDone(uint32_t rail, const Flight& flight, absl::Status status) {
  if (flight.into_gpu && status.ok()) backend_->arrival_flusher().OnRead(this, flight.op);
  Say(EventKind::kCompletion, flight.op, std::move(status), rail);
  if (stopping_.OnOpDone(flight.transfer)) FenceDone(flight.transfer);
}

// Everything that was accepted is posted already: nothing can be dropped, and requests under way
// cannot be taken back one by one. So wait for their completions.
void VerbsDialledEndpoint::Fence(FenceScope scope) {
  const uint64_t transfer = scope.transfer;
  if (!up() || transfer == FenceScope::kEveryTransfer || stopping_.contains(transfer)) return;
  size_t ops = 0;
  for (const auto& rail : rails_) ops += rail->CountOf(transfer);
  if (ops == 0) return FenceDone(transfer);
  stopping_.Add(transfer, ops, Progress(), Now());
  Reschedule();
}

std::vector<uint64_t> VerbsDialledEndpoint::Progress() const {
  std::vector<uint64_t> out;
  for (const auto& rail : rails_) out.push_back(rail->progress());
  return out;
}

void VerbsDialledEndpoint::CheckStuckFences(Time now) {
  for (const auto& [index, transfer] : stopping_.TakeStuck(now, Progress())) {
    VerbsRail& rail = *rails_[index];
    if (rail.CountOf(transfer) == 0) continue;
    rail.Fail(absl::UnavailableError(
                  absl::StrCat(Where(), ", ", rail.Path(), ": transfer ", transfer,
                               " has to stop, and what was posted of it does not end")),
              true);
  }
}

bool VerbsDialledEndpoint::FailedBefore(const Flight& flight, ibv_wc_status status) {
  const bool before = std::ranges::any_of(culprits_, [&](const Culprit& one) {
    return one.transfer == flight.transfer && one.remote == flight.remote && one.status == status;
  });
  culprits_.push_back({flight.transfer, flight.remote, status});
  if (culprits_.size() > kMaxCulprits) culprits_.pop_front();
  return before;
}

// The transfer's memory is released at this side. The target is notified once everything that was
// posted has been written: a read that follows the writes of a queue pair pushes them, and their
// receive completions, ahead of itself.
void VerbsDialledEndpoint::FenceDone(uint64_t transfer) {
  Emit(MakeFenced(this, {.transfer = transfer}));
  stopped_.push_back(transfer);
  Activate();
}

void VerbsDialledEndpoint::StartFlush() {
  std::vector<VerbsRail*> rails;
  for (const auto& rail : rails_) {
    if (rail->needs_flush()) rails.push_back(rail.get());
  }
  flushing_ = std::exchange(stopped_, {});
  // Starts at one for this loop, so that a rail that fails during the loop does not end the flush
  // early.
  flushes_ = 1 + rails.size();
  for (VerbsRail* rail : rails) {
    if (rail->up()) {
      rail->Flush();
    } else {
      FlushDone();
    }
  }
  FlushDone();
}

void VerbsDialledEndpoint::FlushDone() {
  if (flushes_ == 0 || --flushes_ > 0) return;
  for (const uint64_t transfer : std::exchange(flushing_, {})) Tell(Quiet{.transfer = transfer});
  if (!stopped_.empty()) Activate();
}

}  // namespace kvxfer::verbs
