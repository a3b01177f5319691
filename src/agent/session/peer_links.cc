// Keeping connections alive, and losing them.
#include <algorithm>

#include "src/agent/session/peer.h"
#include "src/core/base/strings.h"

namespace kvxfer {
namespace {

// Between questions whether the process of a peer that cannot be reached is gone.
constexpr Duration kDeathAsked = std::chrono::milliseconds(5);

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
      for (std::span<const std::byte> left = event.message; !left.empty();) {
        OnMessage(link, TakeFrame(left));
      }
      break;
    case EventKind::kCompletion:
      transfers_.OnCompletion(link, event.id, event.status);
      break;
    case EventKind::kFenced:     // its ops have completed one by one
    case EventKind::kImmediate:  // nothing writes to a connecting side
    case EventKind::kAccepted:
      break;
    case EventKind::kRailDown:
      keeper_.OnRailDown(link, event.rail, event.status);
      break;
    case EventKind::kRailUp:
      if (keeper_.OnRailUp(link, event.rail)) transfers_.OnRailUp(link);
      break;
  }
  transfers_.Settle();
  ready_.Mark();
}

bool Peer::MayConnect() const {
  return shared_.IsActive(this) && session_.state() != Session::State::kEnding;
}

void Peer::OnDown(Link& link, const absl::Status& why) {
  const Time now = Now();
  const absl::Status cause =
      why.ok() ? absl::UnavailableError("connection closed by the peer") : why;
  paths_.OnDown(link, cause, now);
  transfers_.OnLinkLost(link, cause);
  if (link.was_up) {
    runtime_->presence.LinkDown(metadata_.name, metadata_.incarnation, cause);
    // Without it the target would wait for what was posted over a connection that broke unseen.
    if (session_.state() == Session::State::kLinked) {
      session_.channel().Push(FrameType::kLinkGone, LinkGoneFrame{.link = link.number});
    }
    shared_.OnLinkDown(link, cause, now);
  }
  CheckDeath(cause);
}

// Makes sure that there is a connection while anything waits for the target's word.
void Peer::KeepAlive(Time now) {
  if (shared_.linked()) {
    // That the peer has dialled proves nothing of what the session before left.
    if (transfers_.orphans() && paths_.links() == 0) paths_.Redial(now);
    return;
  }
  if (now > session_.abandon_at(transfers_.active())) {
    const absl::Status why = paths_.Unreachable("");
    EndSession(WithMessage(why, absl::StrCat("peer ", metadata_.name,
                                             " not reached again: ", why.message())),
               Ends::kPreceding);
  }
  if (!transfers_.waits()) return;
  // Transfers that wait for word only are failed by the first attempt that fails after the loss,
  // which may itself have been one.
  const auto link = paths_.LinkForMessages(session_.unlinked() + Duration(1), now);
  if (link.ok()) return;
  // An attempt that fails at once has no kDown to say so. The kernel is not asked in every round.
  if (now - death_asked_ >= kDeathAsked) {
    death_asked_ = now;
    CheckDeath(link.status());
  }
  if (!transfers_.waits()) return;
  transfers_.Lose(link.status());
  // Quarantines wait for the peer to come back.
  paths_.Redial(now);
}

}  // namespace kvxfer
