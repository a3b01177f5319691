#include "src/agent/session/peer.h"

#include <algorithm>

namespace kvxfer {

Peer::Peer(Runtime* runtime, InboundHub* sessions, AgentMetadata metadata)
    : runtime_(runtime),
      sessions_(sessions),
      ready_(&runtime->peers, this),
      timer_(&runtime->timers, this),
      metadata_(std::move(metadata)),
      paths_(runtime, &metadata_, &regions_, this),
      shared_(sessions->SessionWith(metadata_.incarnation, metadata_.name)),
      session_(shared_.session()),
      tracker_(&session_.channel(), runtime->options.cancel_grace),
      transfers_({.runtime = runtime,
                  .peer = &metadata_,
                  .paths = &paths_,
                  .regions = &regions_,
                  .session = &session_,
                  .tracker = &tracker_,
                  .ready = &ready_}),
      keeper_({.runtime = runtime,
               .peer = &metadata_,
               .paths = &paths_,
               .session = &session_,
               .tracker = &tracker_}) {
  shared_.Enter(this);
  OnMetadata();
}

Peer::~Peer() {
  shared_.Leave(this);
  shared_.LetGo();
  sessions_->Release(metadata_.incarnation);
}

void Peer::Update(AgentMetadata metadata) {
  metadata_ = std::move(metadata);
  OnMetadata();
}

void Peer::OnMetadata() {
  regions_.Learn(metadata_);
  view_ = std::make_shared<const PeerView>(
      PeerView{.name = metadata_.name,
               .incarnation = metadata_.incarnation,
               .regions = regions_.table(),
               .kv_caches = std::make_shared<const KvCacheTable>(std::move(metadata_.kv_caches)),
               .queued = transfers_.count()});
  paths_.OnMetadata();
  transfers_.DropDeadKeys();
  ready_.Mark();
}

void Peer::Close(TransferState state, const absl::Status& why, Duration within) {
  closing_ = true;
  close_by_ = Now() + within;
  close_state_ = state;
  close_why_ = why;
  transfers_.EndQueued([](const auto&) { return true; }, state, why);
  const Time now = Now();
  tracker_.ForEach([&](SendTracker::Transfer& sending) {
    tracker_.End(sending, state, why, std::min(sending.request().deadline, close_by_), now);
  });
  transfers_.Settle();
  CheckDeath(why);
  FinishClosing(now);
  ready_.Mark();
}

// The aborts of what was in flight have to reach the target, and its answers this side: without
// them nobody would learn that nothing lands any more.
void Peer::FinishClosing(Time now) {
  if (!closing_ || (shared_.linked() && transfers_.active() && now < close_by_)) return;
  tracker_.ForEach([&](SendTracker::Transfer& sending) {
    tracker_.End(sending, close_state_, close_why_, now, now);
  });
  transfers_.Settle();
  EndSession(close_why_, Ends::kAll);
  shared_.Leave(this);
  // Nobody says so any more once the links are down.
  OnSessionRenewed();
}

void Peer::Submit(TransferPtr record) {
  ready_.Mark();
  transfers_.Submit(std::move(record),
                    closing_ ? absl::CancelledError(kPeerRemoved) : absl::OkStatus());
}

void Peer::Cancel(uint64_t id, const absl::Status& why) {
  ready_.Mark();
  transfers_.Cancel(id, why);
}

void Peer::Inherit(const Peer& before) {
  ready_.Mark();
  transfers_.Inherit(before.transfers_);
}

void Peer::Pump(Time now) {
  pumped_ = now;
  transfers_.TellStagedEnds();
  if (!closing_) {
    if (transfers_.waits()) KeepAlive(now);
    transfers_.Post(now);
  }
  transfers_.TellStagedEnds();
  transfers_.GiveBackRecalled();
  bool sent = keeper_.SendFences();
  sent &= shared_.Flush(transfers_.inline_link(), runtime_->answers_wait);
  transfers_.OnMessagesSent();
  FinishClosing(now);
  if (!sent || Waits()) ready_.Again();
  if (Awaits()) shared_.Await(now);
  timer_.Set(NextTimer());
}

bool Peer::Waits() const {
  if (closing_) return false;
  return transfers_.unposted() || (transfers_.waits() && !shared_.linked()) ||
         (transfers_.orphans() && paths_.links() == 0);
}

void Peer::OnTimer(Time now) {
  ready_.Mark();
  transfers_.OnTimer(now);
  keeper_.OnRailTimer(now);
  transfers_.Settle();
  keeper_.OnConnectTimer(now);
}

Time Peer::NextTimer() const {
  Time next = transfers_.NextTimer(!closing_);
  if (closing_ && (paths_.links() > 0 || shared_.linked()) && pumped_ < close_by_)
    next = std::min(next, close_by_);
  if (!closing_) next = std::min(next, session_.abandon_at(transfers_.active()));
  const bool waiting = transfers_.queued() || transfers_.waits();
  return std::min(next, paths_.NextTimer(waiting, pumped_));
}

}  // namespace kvxfer
