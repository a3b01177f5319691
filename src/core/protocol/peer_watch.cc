#include "src/core/protocol/peer_watch.h"

#include <algorithm>
#include <utility>

namespace kvxfer {
namespace {

// Idle pings come on a grid where that is fine enough, so that one wake-up serves all idle peers.
constexpr Duration kIdleGrid = std::chrono::seconds(1);

}  // namespace

PeerWatch::Step PeerWatch::Look(const Peer& peer, Time now) {
  const bool late = now - due_ > pace_.heartbeat;
  const Duration passed = now - std::exchange(looked_, now);
  if (peer.heard > asked_) asked_ = Time{};
  if (asked_ == Time{}) {
    silence_ = Duration::zero();
  } else {
    silence_ += late ? std::min(passed, pace_.heartbeat / 2) : passed;
  }
  Step step{.ping = now >= NextPing(peer), .silent = silence_ >= Tolerated()};
  if (step.ping) {
    pinged_ = now;
    if (asked_ == Time{}) asked_ = now;
  }
  due_ = NextPing(peer);
  if (peer.awaited && asked_ != Time{} && !step.silent) {
    due_ = std::min(due_, now + Tolerated() - silence_);
  }
  return step;
}

// The peer may have been heard up to a heartbeat before the ping. A tenth of one is left for looks
// that come late, as every look does a little.
Duration PeerWatch::Tolerated() const {
  return std::max(pace_.suspect_after - pace_.heartbeat - pace_.heartbeat / 10, pace_.heartbeat);
}

Time PeerWatch::NextPing(const Peer& peer) const {
  if (peer.awaited || (asked_ != Time{} && asked_ < pinged_)) return pinged_ + pace_.heartbeat;
  if (!peer.kept_alive) return Time::max();
  const Duration interval = std::min<Duration>(pace_.heartbeat * kIdleHeartbeats, kIdlePing);
  const Time next = pinged_ + interval;
  return interval < 2 * kIdleGrid ? next : next - next.time_since_epoch() % kIdleGrid;
}

}  // namespace kvxfer
