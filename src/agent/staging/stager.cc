#include "src/agent/staging/stager.h"

#include <algorithm>
#include <set>
#include <utility>

#include "src/agent/staging/staged_key.h"
#include "src/core/base/strings.h"
#include "src/core/base/text.h"
#include "src/core/protocol/stage_lender.h"

namespace kvxfer {
namespace {

const StagedMemory& LocalOf(const Run& run) {
  return static_cast<const StagedMemory&>(*run.registration);
}
const StagedKey& RemoteOf(const Run& run) { return static_cast<const StagedKey&>(*run.key); }

}  // namespace

Stager::~Stager() {
  // A buffer that a GPU is still copying to or from is freed once that copy is over.
  std::set<uint32_t> own;
  for (const auto& [child, op] : ops_) {
    if (!op.own.has_value()) continue;
    if (op.step == Step::kMoving) {
      own.insert(*op.own);
    } else {
      runtime_->staging.GiveOwn(*op.own);
    }
  }
  runtime_->staging.Forget(this, own);
}

bool Stager::Post(Outbound& outbound, uint64_t op_id, const BlockRange& blocks) {
  StagedOp op{.op = op_id, .outbound = &outbound, .whole = outbound.record, .blocks = blocks};
  for (RunWalk walk(blocks); !walk.done() && !(op.moves && op.answers); walk.Next()) {
    op.moves |= LocalOf(walk.run()).device >= 0;
    op.answers |= !RemoteOf(walk.run()).reached;
  }
  op.direct = Direct(op);
  if (!TakeBuffers(op)) return false;
  const uint64_t child = runtime_->NextChild();
  StagedOp& added = ops_.emplace(child, std::move(op)).first->second;
  if (outbound.record->kind == TransferKind::kWrite) {
    if (added.moves) {
      StartMove(child, added);
    } else {
      due_.push_back(child);
    }
  } else if (added.answers) {
    added.step = Step::kAnswer;
    PushStage(child, added, StageWhen::kGather);
  } else {
    due_.push_back(child);
  }
  return true;
}

// Takes all buffers that the op needs, or none. So an op that holds one buffer never waits for
// another, and ops cannot block each other.
bool Stager::TakeBuffers(StagedOp& op) {
  if (op.answers && lent_.empty()) {
    Ask();
    return false;
  }
  if (op.moves && !op.direct) {
    op.own = TakeOwn();
    if (!op.own.has_value()) return false;
  }
  if (op.answers) {
    op.lent = lent_.back();
    lent_.pop_back();
  }
  return true;
}

// One peer gets a quarter of the own buffers at most. A peer that makes no progress keeps its
// buffers until its transfers end, and the other peers must go on meanwhile.
std::optional<uint32_t> Stager::TakeOwn() {
  const uint32_t most = std::max(1u, runtime_->staging.lent_buffers() / 4);
  std::optional<uint32_t> buffer;
  if (own_held_ < most) buffer = runtime_->staging.TakeOwn();
  if (buffer.has_value()) {
    ++own_held_;
  } else {
    runtime_->own_buffer_wanted = true;
  }
  return buffer;
}

void Stager::GiveOwn(uint32_t buffer) {
  --own_held_;
  runtime_->staging.GiveOwn(buffer);
  runtime_->own_buffer_freed = runtime_->own_buffer_wanted;
}

// A peer that holds kMaxHeld buffers waits until one of these is free.
void Stager::Ask() {
  const auto held = static_cast<uint32_t>(held_.size());
  if (held >= StageLender::kMaxHeld || std::exchange(asked_, true)) return;
  channel_->Push(FrameType::kStageAsk, StageAskFrame{.count = StageLender::kMaxHeld - held});
}

void Stager::StartMove(uint64_t child, StagedOp& op) {
  absl::StatusOr<Staging::Place> place =
      op.direct ? DirectPlace(op) : runtime_->staging.PlaceOf(*op.own);
  if (!place.ok()) return Finish(child, place.status());
  std::vector<Staging::Piece> pieces;
  pieces.reserve(op.blocks.pieces);
  for (RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    const StagedMemory& memory = LocalOf(run);
    pieces.push_back(
        {.address = run.local, .bytes = run.bytes, .region = memory.id, .device = memory.device});
  }
  op.step = Step::kMoving;
  const bool into_place = op.whole->kind == TransferKind::kWrite;
  runtime_->staging.Move(this, child, *std::move(place), into_place, std::move(pieces));
}

void Stager::OnMoved(uint64_t child, const absl::Status& status) {
  user_->OnMoved();
  StagedOp& op = ops_.at(child);
  const bool write = op.whole->kind == TransferKind::kWrite;
  // Something may still copy to or from the lent buffer: it is not given back.
  const std::shared_ptr<CopyHold> hold = std::move(op.hold);
  if (hold != nullptr && hold->doubt) op.lent.reset();
  if (!status.ok()) return Finish(child, status);
  if (!op.why.ok()) return Finish(child, op.why);
  if (!write) return Finish(child, absl::OkStatus());
  if (op.direct) return OnMovedToLent(child, op);
  op.step = Step::kDue;
  due_.push_back(child);
}

bool Stager::Begin() {
  for (size_t left = due_.size(); left > 0; --left) {
    const uint64_t child = due_.front();
    due_.pop_front();
    const absl::Status status = StartChild(child, ops_.at(child));
    if (absl::IsUnavailable(status)) {
      due_.push_front(child);
      return false;
    }
    if (!status.ok()) Finish(child, status);
  }
  return true;
}

absl::Status Stager::StartChild(uint64_t child, StagedOp& op) {
  const internal::TransferRecord& whole = *op.whole;
  const bool write = whole.kind == TransferKind::kWrite;
  const Outbound& outbound = *op.outbound;
  if (outbound.link == nullptr) return absl::AbortedError("the connection was lost");
  std::vector<Descriptor> local;
  std::vector<Descriptor> remote;
  uint64_t own = op.own ? reinterpret_cast<uint64_t>(runtime_->staging.At(*op.own)) : 0;
  uint64_t lent = op.lent ? regions_->staging_base() + *op.lent * Staging::kBufferBytes : 0;
  // Both sides are staged, so the bytes lie contiguously in both buffers. Otherwise each run keeps
  // its place on the side that the backend reaches.
  if (op.moves && op.answers) {
    local.push_back({.address = own, .bytes = op.blocks.bytes});
    remote.push_back({.address = lent, .bytes = op.blocks.bytes});
  } else {
    for (RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
      const Run& run = walk.run();
      local.push_back({.address = op.moves ? own : run.local, .bytes = run.bytes});
      remote.push_back({.address = op.answers ? lent : run.remote, .bytes = run.bytes});
      own += run.bytes;
      lent += run.bytes;
    }
  }
  auto record = std::make_shared<internal::TransferRecord>();
  auto blocks = BlockList::FromDescriptors({.local = local, .remote = remote},
                                           DirectionOf(whole.kind), *whole.local, *whole.remote);
  if (!blocks.ok()) return blocks.status();
  record->id = child;
  record->peer = whole.peer;
  record->kind = whole.kind;
  record->options.priority = whole.options.priority;
  record->blocks = *std::move(blocks);
  record->local = whole.local;
  record->remote = whole.remote;
  record->incarnation = whole.incarnation;
  record->posted = runtime_->now;
  record->deadline = whole.deadline;
  record->child = true;
  record->from_lent = !write && op.answers;
  if (auto status = user_->BeginChild(record, outbound.link); !status.ok()) return status;
  op.step = Step::kChild;
  // If the target sees the arrival, it learns beforehand what to copy, and copies as soon as the
  // child has arrived. If the initiator copies by itself (shm), the target sees nothing: it learns
  // it when the child is done (OnChildEnd).
  op.told = write && op.answers && !runtime_->CopiesItself(outbound.link->backend);
  if (op.told) PushStage(child, op, StageWhen::kScatterLater);
  return absl::OkStatus();
}

void Stager::PushStage(uint64_t child, const StagedOp& op, StageWhen when) {
  StageFrame frame{.transfer = child, .when = when, .buffer = *op.lent};
  frame.runs.reserve(op.blocks.pieces);
  for (RunWalk walk(op.blocks); !walk.done(); walk.Next()) {
    const Run& run = walk.run();
    frame.runs.push_back({.address = run.remote,
                          .bytes = static_cast<uint32_t>(run.bytes),
                          .rkey = RemoteOf(run).rkey});
  }
  channel_->Push(FrameType::kStage, frame);
}

void Stager::OnChildEnd(uint64_t child, const internal::TransferRecord::End& end,
                        bool lent_in_use) {
  const auto it = ops_.find(child);
  if (it == ops_.end()) return;
  StagedOp& op = it->second;
  if (end.state != TransferState::kDone) {
    const Left left = end.quarantined ? Left::kBytes : lent_in_use ? Left::kLent : Left::kNothing;
    return Finish(child, op.why.ok() ? end.status : op.why, left);
  }
  const bool write = op.whole->kind == TransferKind::kWrite;
  if (write && op.answers) {
    op.step = Step::kAnswer;
    if (op.answer.has_value()) return Finish(child, *op.answer);
    if (std::exchange(op.told, true)) return;
    // The target does not know of the op and copies nothing for it, so a cancelled op can end here.
    if (!op.why.ok()) return Finish(child, op.why);
    return PushStage(child, op, StageWhen::kScatter);
  }
  if (!op.why.ok()) return Finish(child, op.why);
  if (!write && op.moves) return StartMove(child, op);
  Finish(child, absl::OkStatus());
}

absl::Status Stager::OnStaged(const StagedFrame& frame) {
  if (const auto unsettled = unsettled_.find(frame.transfer); unsettled != unsettled_.end()) {
    unsettled->second.staged = true;
    if (unsettled->second.quiet) LetGo(unsettled);
    return absl::OkStatus();
  }
  const auto it = ops_.find(frame.transfer);
  if (it == ops_.end()) return absl::OkStatus();  // of an op that was abandoned and is settled
  StagedOp& op = it->second;
  if (!op.answers || op.answer.has_value()) {
    return absl::InvalidArgumentError("it says twice, or unasked, that it has copied");
  }
  op.answer = frame.good ? absl::OkStatus()
                         : absl::FailedPreconditionError(
                               absl::StrCat("peer ", regions_->peer(),
                                            " could not copy between its GPU and its host memory: ",
                                            Printable(frame.why, kMaxPeerTextBytes)));
  if (op.step != Step::kAnswer) return absl::OkStatus();
  const bool read = op.whole->kind == TransferKind::kRead;
  if (!read || !op.answer->ok() || !op.why.ok()) {
    Finish(it->first, op.why.ok() ? *op.answer : op.why);
    return absl::OkStatus();
  }
  if (op.direct) {
    StartMove(it->first, op);
    return absl::OkStatus();
  }
  op.step = Step::kDue;
  due_.push_back(it->first);
  return absl::OkStatus();
}

// Returns the op's buffers, except a lent one that is still in use.
void Stager::Finish(uint64_t child, absl::Status status, Left left) {
  StagedOp op = std::move(ops_.at(child));
  ops_.erase(child);
  if (op.own.has_value()) GiveOwn(*op.own);
  if (op.lent.has_value() && left == Left::kNothing) GiveLent(*op.lent);
  if (left == Left::kBytes) ++outstanding_[op.whole];
  if (left != Left::kNothing) {
    unsettled_.emplace(child, Unsettled{.whole = left == Left::kBytes ? op.whole : nullptr,
                                        .lent = op.lent,
                                        .told = op.told && op.answers,
                                        .staged = op.answer.has_value()});
  }
  if (op.outbound != nullptr) {
    ended_.push_back({.op = op.op, .status = std::move(status)});
  } else {
    Settle(op.whole);
  }
}

void Stager::TellEnds() {
  // Reporting an end may cause further ends.
  while (!ended_.empty()) {
    for (const Ended& ended : std::exchange(ended_, {})) user_->OnStaged(ended.op, ended.status);
  }
}

std::vector<uint64_t> Stager::ChildrenOf(const Outbound& outbound) const {
  std::vector<uint64_t> children;
  for (const auto& [child, op] : ops_) {
    if (op.outbound == &outbound) children.push_back(child);
  }
  return children;
}

void Stager::Cancel(const Outbound& outbound, const absl::Status& why, Time give_up) {
  for (const uint64_t child : ChildrenOf(outbound)) {
    StagedOp& op = ops_.at(child);
    op.why = why;
    if (op.step == Step::kDue) {
      std::erase(due_, child);
      Finish(child, why);
    } else if (op.step == Step::kChild) {
      user_->EndChild(child, why, give_up);
    }
  }
}

// Ends that are not reported yet are only counted: reporting them here could end `outbound` and
// others.
uint32_t Stager::Abandon(const Outbound& outbound) {
  uint32_t abandoned = 0;
  OpTable& table = runtime_->ops;
  std::erase_if(ended_, [&](const Ended& ended) {
    const OpTable::Entry* const entry = table.Find(ended.op);
    if (entry == nullptr || entry->outbound != &outbound) return false;
    table.Release(ended.op);
    ++abandoned;
    return true;
  });
  for (const uint64_t child : ChildrenOf(outbound)) {
    StagedOp& op = ops_.at(child);
    op.outbound = nullptr;
    op.blocks = {};
    if (op.why.ok()) op.why = absl::CancelledError("the transfer has ended");
    ++outstanding_[op.whole];
    table.Release(op.op);
    ++abandoned;
  }
  return abandoned;
}

void Stager::Settle(const TransferPtr& whole) {
  const auto it = outstanding_.find(whole);
  if (it == outstanding_.end() || --it->second > 0) return;
  const TransferPtr record = it->first;
  outstanding_.erase(it);
  user_->OnSettled(record);
}

void Stager::LetGo(std::map<uint64_t, Unsettled>::iterator it) {
  const Unsettled unsettled = std::move(it->second);
  unsettled_.erase(it);
  if (unsettled.lent.has_value()) GiveLent(*unsettled.lent);
  if (unsettled.whole != nullptr) Settle(unsettled.whole);
}

void Stager::OnChildQuiet(uint64_t child, bool arrived) {
  const auto it = unsettled_.find(child);
  if (it == unsettled_.end()) return;
  it->second.quiet = true;
  // The child's bytes have arrived and the target's copy of them is not over.
  const bool copied_yet = it->second.told && arrived && !it->second.staged;
  if (!copied_yet) LetGo(it);
}

void Stager::OnQuiet() {
  std::vector<TransferPtr> settled;
  std::erase_if(unsettled_, [&](const auto& entry) {
    if (entry.second.past && entry.second.whole) settled.push_back(entry.second.whole);
    return entry.second.past;
  });
  for (const TransferPtr& whole : settled) Settle(whole);
}

void Stager::OnSessionEnd() {
  lent_.clear();
  held_.clear();
  asked_ = recalled_ = false;
  std::vector<uint64_t> waiting;
  for (auto& [child, op] : ops_) {
    op.lent.reset();
    // `write`: the target may still be copying into its region.
    if (op.step == Step::kAnswer) waiting.push_back(child);
  }
  for (const uint64_t child : waiting) {
    const bool write = ops_.at(child).whole->kind == TransferKind::kWrite;
    Finish(child,
           absl::UnavailableError(absl::StrCat("the session with peer ", regions_->peer(),
                                               " ended while it copied into its GPU's memory")),
           write ? Left::kBytes : Left::kNothing);
  }
  for (auto& [child, unsettled] : unsettled_) {
    unsettled.lent.reset();
    unsettled.past = true;
  }
}

absl::Status Stager::OnLend(const StageLendFrame& frame) {
  if (!std::exchange(asked_, false)) {
    return absl::InvalidArgumentError("it lends staging buffers that nobody asked for");
  }
  recalled_ = false;
  for (const uint32_t buffer : frame.buffers) {
    const bool sense = buffer < regions_->staging_buffers() && held_.size() < StageLender::kMaxHeld;
    if (!sense || !held_.insert(buffer).second) {
      return absl::InvalidArgumentError(absl::StrCat("it lends staging buffer ", buffer,
                                                     ", which it has not got, has lent already, "
                                                     "or is one too many"));
    }
    lent_.push_back(buffer);
  }
  return absl::OkStatus();
}

void Stager::GiveBackRecalled() {
  if (recalled_ && !lent_.empty()) GiveBack(std::exchange(lent_, {}));
}

void Stager::GiveLent(uint32_t buffer) {
  if (!recalled_) return lent_.push_back(buffer);
  GiveBack({buffer});
}

void Stager::GiveBack(std::vector<uint32_t> buffers) {
  for (const uint32_t buffer : buffers) held_.erase(buffer);
  channel_->Push(FrameType::kStageBack, StageBackFrame{.buffers = std::move(buffers)});
}

}  // namespace kvxfer
