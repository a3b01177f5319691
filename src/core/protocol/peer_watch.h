// Whether the peer of a session still lives: when it is pinged, and when its silence is reported.
//
// One rule for everything that is awaited of a peer (transfers, answers, leases, layers): while
// something is, the peer is pinged every heartbeat, and a ping that nothing follows is reported
// after what is left of `suspect_after`. So the report comes at most `suspect_after` after the
// peer's last sign of life, or after the waiting began. While nothing is awaited, pings are rare,
// and silence is seen at the next of them.
//
// The silence counts only while this side could have heard the peer. Where a look comes more than a
// heartbeat late, this thread was held up, and what the peer said meanwhile may not be read yet: of
// that time half a heartbeat counts, which is less than any peer has to answer.
//
// Thread-safety: none; used by the driver. Pure.

#ifndef KVXFER_CORE_PROTOCOL_PEER_WATCH_H_
#define KVXFER_CORE_PROTOCOL_PEER_WATCH_H_

#include <algorithm>
#include <chrono>

#include "src/core/base/clock.h"

namespace kvxfer {

class PeerWatch {
 public:
  struct Pace {
    Duration heartbeat = std::chrono::milliseconds(500);  // kIdlePing at most
    Duration suspect_after = std::chrono::seconds(2);     // longer than heartbeat
  };
  // Between two pings at most; and in heartbeats, while nothing is awaited.
  static constexpr Duration kIdlePing = std::chrono::seconds(10);
  static constexpr int kIdleHeartbeats = 10;

  explicit PeerWatch(const Pace& pace)
      : pace_{.heartbeat = std::min<Duration>(pace.heartbeat, kIdlePing),
              .suspect_after = pace.suspect_after} {}

  struct Peer {
    bool awaited = false;     // something waits for its word
    bool kept_alive = false;  // it is pinged when idle too
    Time heard{};             // its last word
  };
  struct Step {
    bool ping = false;
    bool silent = false;  // for so long that it is to be reported; until it is heard
  };
  Step Look(const Peer& peer, Time now);
  // When to look next. Time::max(): not before Await.
  Time due() const { return due_; }
  // Something waits for the peer's word, or a connection to it begins. True: due() is sooner now.
  bool Await(Time now) {
    if (due_ <= now + pace_.heartbeat) return false;
    // Nobody has listened for an answer to a ping of before.
    if (due_ == Time::max()) asked_ = Time{};
    due_ = now + pace_.heartbeat;
    return true;
  }

 private:
  Duration Tolerated() const;
  Time NextPing(const Peer& peer) const;

  const Pace pace_;
  Time due_ = Time::max();
  Time looked_{};
  Time pinged_{};       // last
  Time asked_{};        // the oldest ping since which nothing was heard; zero: none
  Duration silence_{};  // since then, as far as it counts
};

}  // namespace kvxfer

#endif  // KVXFER_CORE_PROTOCOL_PEER_WATCH_H_
