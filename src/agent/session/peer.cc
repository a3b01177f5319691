#include "src/agent/session/peer.h"

#include <algorithm>
#include <cmath>

#include "src/core/base/log.h"
#include "src/core/base/random.h"
#include "src/core/base/strings.h"
#include "src/cuda/closer.h"

namespace kvxfer {
namespace {

// How often a transfer's ready fence, or a key on its way, is looked at. A layer that is there by
// its fence leaves so much later, which is to be little beside its transfer; a look takes some
// microseconds.
constexpr Duration kReadyPoll = std::chrono::microseconds(100);
constexpr Duration kClosedPoll = std::chrono::milliseconds(1);

bool TouchesCuda(const internal::TransferRecord& record) {
  const auto any = [](const auto& table, std::span<const uint32_t> indices) {
    return std::ranges::any_of(
        indices, [&](uint32_t index) { return table->regions()[index].kind == MemoryKind::kCuda; });
  };
  return any(record.local, record.blocks.local_regions()) ||
         any(record.remote, record.blocks.remote_regions());
}

}  // namespace

Peer::Peer(Runtime* runtime, AgentMetadata metadata)
    : runtime_(runtime),
      metadata_(std::move(metadata)),
      paths_(runtime, &metadata_, &regions_, this),
      session_({.name = runtime->options.name, .incarnation = runtime->incarnation},
               {.name = metadata_.name, .incarnation = metadata_.incarnation}, RandomNonZero64(),
               Now()),
      tracker_(&session_.channel(), runtime->options.cancel_grace),
      stager_(this, &runtime->staging) {
  OnMetadata();
}

Peer::~Peer() = default;

void Peer::Update(AgentMetadata metadata) {
  metadata_ = std::move(metadata);
  OnMetadata();
}

void Peer::OnMetadata() {
  regions_.Learn(metadata_);
  auto queued = view_ ? view_->queued : std::make_shared<std::atomic<uint32_t>>(0);
  view_ = std::make_shared<const PeerView>(
      PeerView{.name = metadata_.name,
               .incarnation = metadata_.incarnation,
               .regions = regions_.table(),
               .kv_caches = std::make_shared<const KvCacheTable>(std::move(metadata_.kv_caches)),
               .queued = std::move(queued)});
  paths_.OnMetadata();
  DropDeadKeys();
}

void Peer::Submit(TransferPtr record) {
  view_->queued->fetch_add(1, std::memory_order_relaxed);
  absl::Status status;
  if (closing_) {
    status = absl::CancelledError(kPeerRemoved);
  } else if (record->kind != TransferKind::kNotify) {
    status = runtime_->memory.Use(*record->local, record->blocks.local_regions());
  }
  if (!status.ok()) {
    record->local = nullptr;  // holds no regions
    FailQueued(record, TransferState::kFailed, std::move(status));
    return;
  }
  record->cuda = record->kind != TransferKind::kNotify && TouchesCuda(*record);
  deadlines_.emplace(record->deadline, record->id);
  queue_.Push(std::move(record));
}

void Peer::Cancel(uint64_t id, const absl::Status& why) {
  if (SendTracker::Transfer* const sending = tracker_.Find(id)) {
    if (sending->ended()) return;
    tracker_.End(*sending, TransferState::kCancelled, why, EndCause::kStopped, Now());
    return Settle();
  }
  if (const TransferPtr record = queue_.Remove(id)) {
    FailQueued(record, TransferState::kCancelled, why);
  }
}

void Peer::Close(TransferState state, const absl::Status& why, Duration within) {
  closing_ = true;
  close_by_ = Now() + within;
  close_state_ = state;
  close_why_ = why;
  for (const TransferPtr& record : queue_.Remove([](const auto&) { return true; })) {
    FailQueued(record, state, why);
  }
  const Time now = Now();
  tracker_.ForEach([&](SendTracker::Transfer& sending) {
    tracker_.End(sending, state, why, std::min(sending.deadline(), close_by_), now);
  });
  Settle();
  CheckDeath(why);
  FinishClosing(now);
}

// The aborts of what was in flight have to reach the target, and its answers this side: without
// them nobody would learn that nothing lands any more.
void Peer::FinishClosing(Time now) {
  if (!closing_ || (paths_.UpLink() != nullptr && !active_.empty() && now < close_by_)) return;
  tracker_.ForEach([&](SendTracker::Transfer& sending) {
    tracker_.End(sending, close_state_, close_why_, now, now);
  });
  Settle();
  paths_.ForEachLink([&](Link& link) { link.Close(close_why_); });
}

void Peer::Pump(Time now) {
  pumped_ = now;
  TellStagedEnds();
  if (!closing_) {
    KeepAlive(now);
    do {
      Admit(now);
      stager_.Begin();
      SendData(now);
      Settle();
    } while (std::exchange(layer_stream_moved_, false) || (stager_.begins() && !waits_key_));
  }
  TellStagedEnds();
  FlushControl();
  FinishClosing(now);
}

void Peer::OnTimer(Time now) {
  std::unordered_set<uint64_t> queued;
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const uint64_t id = deadlines_.begin()->second;
    deadlines_.erase(deadlines_.begin());
    const Outbound* const outbound = Find(id);
    if (outbound == nullptr) {
      queued.insert(id);
      continue;
    }
    tracker_.End(*outbound->sending, TransferState::kDeadlineExceeded,
                 DeadlineStatus(*outbound->record, Stage(*outbound)), EndCause::kLate, now);
  }
  if (!queued.empty()) ExpireQueued(queued);
  tracker_.OnTime(now);
  Settle();
  if (!waits_closed_.empty() && !cuda::Closing()) AnswerQuiesce();
  RailTimers(now);
  Settle();
  paths_.ForEachLink([&](Link& link) { Heartbeat(link, now); });
}

void Peer::ExpireQueued(const std::unordered_set<uint64_t>& ids) {
  for (const TransferPtr& record :
       queue_.Remove([&](const auto& one) { return ids.contains(one.id); })) {
    const std::string stage =
        paths_.HasReady(record->options.backend)
            ? "waiting its turn (queue, slots or notification credit)"
            : absl::StrCat("not connected: ",
                           paths_.Unreachable(record->options.backend).message());
    FailQueued(record, TransferState::kDeadlineExceeded, DeadlineStatus(*record, stage));
  }
}

Time Peer::NextTimer() const {
  Time next = deadlines_.empty() ? Time::max() : deadlines_.begin()->first;
  next = std::min(next, tracker_.NextTimer());
  const bool waiting =
      !queue_.empty() || !active_.empty() || !quarantined_.empty() || stager_.unsettled();
  if (closing_ && paths_.links() > 0 && pumped_ < close_by_) next = std::min(next, close_by_);
  if (!closing_) next = std::min(next, session_.abandon_at(!active_.empty()));
  next = std::min(next, paths_.NextTimer(waiting, pumped_));
  if (!closing_) next = std::min(next, points_.next());
  if (waits_ready_ || waits_key_) next = std::min(next, Now() + kReadyPoll);
  if (!waits_closed_.empty()) next = std::min(next, Now() + kClosedPoll);
  return next;
}

absl::Status Peer::DeadlineStatus(const internal::TransferRecord& record,
                                  std::string_view stage) const {
  const auto ms =
      std::chrono::duration_cast<std::chrono::milliseconds>(record.deadline - record.posted);
  return absl::DeadlineExceededError(absl::StrCat("transfer ", record.id, " to peer ",
                                                  metadata_.name, " not done within ", ms.count(),
                                                  " ms: ", ToAbsl(stage)));
}

}  // namespace kvxfer
