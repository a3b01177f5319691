// DialledLink: posting, completions, and making transfers quiet.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/backends/verbs/backend.h"
#include "src/backends/verbs/dialled.h"

namespace kvxfer::verbs {
namespace {

// If a fenced transfer's requests make no progress for this long, their queue pair is ended.
constexpr Duration kFencePatience = std::chrono::milliseconds(500);
// How many failed ops are remembered; each of them has cost a queue pair.
constexpr size_t kMaxCulprits = 64;

absl::Status InvalidOp(const Op& op) {
  return absl::InvalidArgumentError(
      absl::StrCat("verbs: op ", op.id, " is too large, or names no rail, transfer or key"));
}

}  // namespace

// Its runs are checked while they are walked.
bool DialledLink::IsValid(const Op& op) const {
  return op.rail < rails_.size() && op.transfer != 0 && op.blocks.bytes <= kMaxOpBytes &&
         op.blocks.runs <= backend_->capabilities().max_op_runs;
}

// An op with more requests than the queue holds would wait for ever, so it is refused.
absl::Status DialledLink::CheckPieces(const Op& op, uint32_t pieces) const {
  const size_t most = std::min<size_t>(backend_->queue_depth() - 2, RequestPool::kRequests);
  if (pieces <= most) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "verbs: op ", op.id, " is of GPU memory in so many allocations that it is ", pieces,
      " requests, and the queue holds ", most,
      "; set a larger `verbs.queue_depth` (KVXFER_VERBS_QUEUE_DEPTH), or register larger ones"));
}

bool DialledLink::plain() const { return keys_in_pieces_ == 0 && !backend_->has_gpu_memory(); }

bool DialledLink::Refuse(const Op& op, absl::Status why) {
  Say(EventKind::kCompletion, op.id, std::move(why), op.rail);
  return true;
}

bool DialledLink::Post(const Op& op) {
  if (!up()) return false;
  // This may end rails, and with the last of them the link.
  backend_->TakeAdded();
  if (!up()) return false;
  if (!IsValid(op)) return Refuse(op, InvalidOp(op));
  Rail& rail = *rails_[op.rail];
  if (!rail.up()) return false;
  uint32_t most = std::max(op.blocks.runs, 1u);
  if (!plain()) {
    most = Rail::PiecesOf(op);
    if (most == 0) return Refuse(op, InvalidOp(op));
    if (absl::Status status = CheckPieces(op, most); !status.ok()) return Refuse(op, status);
  }
  const Rail::Posted posted = rail.Post(op, most);
  if (posted == Rail::Posted::kNoKey) return Refuse(op, InvalidOp(op));
  return posted == Rail::Posted::kYes;
}

void DialledLink::OpDone(uint32_t rail, const Flight& flight, absl::Status status) {
  if (flight.into_gpu && status.ok()) backend_->arrival_flusher().OnRead(this, flight.op);
  Say(EventKind::kCompletion, flight.op, std::move(status), rail);
  if (stopping_.empty()) return;
  const auto it = stopping_.find(flight.transfer);
  if (it == stopping_.end() || --it->second.ops > 0) return;
  stopping_.erase(it);
  FenceDone(flight.transfer);
}

// Everything that was accepted is posted already: nothing can be dropped, and requests under way
// cannot be taken back one by one. So wait for their completions.
void DialledLink::Fence(FenceScope scope) {
  const uint64_t transfer = scope.transfer;
  if (!up() || transfer == FenceScope::kEveryTransfer || stopping_.contains(transfer)) return;
  size_t ops = 0;
  for (const auto& rail : rails_) ops += rail->CountOf(transfer);
  if (ops == 0) return FenceDone(transfer);
  Stopping& stopping = stopping_[transfer];
  stopping = {.ops = ops, .patience = Now() + kFencePatience};
  for (const auto& rail : rails_) stopping.progress.push_back(rail->progress());
  backend_->TimersChanged();
}

// Each rail is examined separately: progress on another rail says nothing about a rail that is
// stuck.
void DialledLink::CheckStuckFences(Time now) {
  std::vector<std::pair<Rail*, uint64_t>> stuck;
  for (auto& [transfer, stopping] : stopping_) {
    if (stopping.patience > now) continue;
    stopping.patience = now + kFencePatience;
    for (size_t i = 0; i < rails_.size(); ++i) {
      const uint64_t progress = rails_[i]->progress();
      const bool still = std::exchange(stopping.progress[i], progress) == progress;
      if (still && rails_[i]->CountOf(transfer) > 0) stuck.emplace_back(rails_[i].get(), transfer);
    }
    backend_->TimersChanged();
  }
  for (const auto& [rail, transfer] : stuck) {
    rail->Fail(absl::UnavailableError(
                   absl::StrCat(Where(), ", ", rail->Path(), ": transfer ", transfer,
                                " has to stop, and what was posted of it does not end")),
               true);
  }
}

bool DialledLink::FailedBefore(const Flight& flight, ibv_wc_status status) {
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
void DialledLink::FenceDone(uint64_t transfer) {
  Say(EventKind::kFenced, transfer, {}, FenceScope::kEveryRail);
  stopped_.push_back(transfer);
  Activate();
}

void DialledLink::StartFlush() {
  std::vector<Rail*> rails;
  for (const auto& rail : rails_) {
    if (rail->needs_flush()) rails.push_back(rail.get());
  }
  flushing_ = std::exchange(stopped_, {});
  // Starts at one for this loop, so that a rail that fails during the loop does not end the flush
  // early.
  flushes_ = 1 + rails.size();
  for (Rail* rail : rails) {
    if (rail->up()) {
      rail->Flush();
    } else {
      FlushDone();
    }
  }
  FlushDone();
}

void DialledLink::FlushDone() {
  if (flushes_ == 0 || --flushes_ > 0) return;
  for (const uint64_t transfer : std::exchange(flushing_, {})) Tell(Quiet{.transfer = transfer});
  if (!stopped_.empty()) Activate();
}

}  // namespace kvxfer::verbs
