// Keeping connections alive, and losing them.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Between pings on a connection without transfers; well within the target's patience (kSilence,
// inbound.cc).
constexpr int kIdleHeartbeats = 10;
constexpr Duration kIdlePing = std::chrono::seconds(10);
constexpr Duration kIdleGrid = std::chrono::seconds(1);
// Between questions whether the process of a peer that cannot be reached is gone.
constexpr Duration kDeathAsked = std::chrono::milliseconds(5);

// On the grid where that is fine enough, so that one wake-up serves all idle links.
Time NextIdlePing(Time now, Duration heartbeat) {
  const Duration interval = std::min<Duration>(heartbeat * kIdleHeartbeats, kIdlePing);
  const Time next = now + interval;
  return interval < 2 * kIdleGrid ? next : next - next.time_since_epoch() % kIdleGrid;
}

}  // namespace

void Peer::OnLinkEvent(Link& link, Event& event) {
  switch (event.kind) {
    case EventKind::kConnected:
      OnConnected(link);
      break;
    case EventKind::kDown:
      OnDown(link, event.status);
      break;
    case EventKind::kMessage:
      OnMessage(link, event.message);
      break;
    case EventKind::kCompletion:
      OnCompletion(link, event.id, event.status);
      break;
    case EventKind::kFenced:     // its ops have completed one by one
    case EventKind::kImmediate:  // nothing writes to a connecting side
    case EventKind::kAccepted:
      break;
    case EventKind::kRailDown:
      OnRailDown(link, event.rail, event.status);
      break;
    case EventKind::kRailUp:
      OnRailUp(link, event.rail);
      break;
  }
  Settle();
}

// The target may have forgotten a session that was idle, and would refuse to go on with it.
void Peer::OnFirstLink() {
  if (SessionIsIdle()) NewSession();
}

void Peer::OnDown(Link& link, const absl::Status& why) {
  const bool was_up = link.was_up;
  const Time now = Now();
  const absl::Status cause =
      why.ok() ? absl::UnavailableError("connection closed by the peer") : why;
  paths_.OnDown(link, cause, now);
  LoseData(link, cause);
  if (was_up) {
    session_.OnLinkDown(paths_.UpLink() == nullptr, now);
    if (link.carried) runtime_->reverse_session->PiggybackLinkFromLost(metadata_.incarnation);
  }
  if (was_up) runtime_->presence.LinkDown(metadata_.name, metadata_.incarnation, cause);
  CheckDeath(cause);
}

// Fails what had data on the lost link; what only waits for a word of the target goes on.
void Peer::LoseData(Link& link, const absl::Status& why) {
  const absl::Status cause = absl::UnavailableError(
      absl::StrCat("connection to peer ", metadata_.name, " lost over ",
                   ToAbsl(runtime_->backends[link.backend]->name()), ": ", why.message()));
  for (Outbound& outbound : active_) {
    if (outbound.link == &link) outbound.link = nullptr;
  }
  tracker_.OnLinkLost(link.number, cause, Now());
}

// Makes sure that there is a connection while anything waits for the target's word.
void Peer::KeepAlive(Time now) {
  if (paths_.UpLink() != nullptr) return;
  if (now > session_.abandon_at(!active_.empty())) {
    const absl::Status why = paths_.Unreachable("");
    ResetSession(absl::Status(why.code(), absl::StrCat("peer ", metadata_.name,
                                                       " not reached again: ", why.message())),
                 Ends::kPreceding);
  }
  if (active_.empty() && quarantined_.empty() && !stager_.unsettled()) return;
  // Transfers that wait for word only are failed by the first attempt that fails after the loss,
  // which may itself have been one.
  const auto link = paths_.LinkForMessages(session_.unlinked() + Duration(1), now);
  if (link.ok()) return;
  // An attempt that fails at once has no kDown to say so. The kernel is not asked in every round.
  if (now - death_asked_ >= kDeathAsked) {
    death_asked_ = now;
    CheckDeath(link.status());
  }
  if (active_.empty() && quarantined_.empty() && !stager_.unsettled()) return;
  tracker_.ForEach([&](SendTracker::Transfer& sending) {
    if (sending.ending()) return;
    tracker_.End(sending, TransferState::kFailed, link.status(), EndCause::kLost, now);
  });
  Settle();
  // Quarantines wait for the peer to come back.
  paths_.Redial(now);
}

void Peer::Heartbeat(Link& link, Time now) {
  if (link.state == Link::State::kClosing) return;
  if (link.state != Link::State::kUp) {
    if (now >= link.give_up) {
      link.Close(absl::UnavailableError(absl::StrCat(
          "peer ", metadata_.name, " did not answer within ",
          std::chrono::duration_cast<std::chrono::milliseconds>(runtime_->options.connect_timeout)
              .count(),
          " ms")));
    }
    return;
  }
  if (now < link.ping_at) return;
  const auto& options = runtime_->options;
  if (link.unanswered == Time{}) {
    link.unanswered = now;
  } else if (now - link.unanswered >= options.suspect_after - options.heartbeat) {
    runtime_->presence.Suspect(
        metadata_.name, metadata_.incarnation,
        absl::UnavailableError(absl::StrCat(
            "no sign of life over ", ToAbsl(runtime_->backends[link.backend]->name()), " for ",
            std::chrono::duration_cast<std::chrono::milliseconds>(now - link.heard).count(),
            " ms (stopped, or cut off)")));
  }
  const std::string ping = session_.Message(FrameType::kPing, PingFrame{.nonce = 1});
  link.endpoint->Send(std::as_bytes(std::span(ping)));
  const bool in_use = !active_.empty() || link.unanswered != now;
  link.ping_at = in_use ? now + options.heartbeat : NextIdlePing(now, options.heartbeat);
}

}  // namespace kvxfer
