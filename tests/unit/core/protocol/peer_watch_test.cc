// When a peer is pinged, and when its silence is reported: by a clock of the test's own.

#include "src/core/protocol/peer_watch.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace kvxfer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr PeerWatch::Pace kPeerPace{.heartbeat = milliseconds(500), .suspect_after = seconds(2)};
const Time kBegun = Time(seconds(1000));

// A peer that answers each ping a millisecond later, but for the time in which it is stopped, and a
// watch that looks when it is due, or a little later.
class Watched {
 public:
  explicit Watched(const PeerWatch::Pace& pace = kPeerPace) : watch_(pace) { watch_.Await(kBegun); }

  // Awaited from then until then.
  Time await_from = Time::max();
  Time await_until = Time::max();
  // Answers nothing in between; then everything.
  Time stops = Time::max();
  Time goes_on = Time::max();
  // So much later than due the watch looks.
  Duration late{};
  // This side sleeps then, and reads what came meanwhile only after the look that was due.
  Time sleeps = Time::max();
  Time wakes = Time::max();
  bool kept_alive = true;

  void Run(Time until) {
    while (true) {
      if (now_ < await_from && await_from <= std::min(watch_.due(), until)) {
        now_ = await_from;
        watch_.Await(now_);
      }
      Time next = watch_.due();
      if (next == Time::max() || next + late > until) break;
      next += late;
      if (sleeps <= next && next < wakes) next = wakes;
      Look(next);
    }
    now_ = until;
  }

  int pings() const { return pings_; }
  int looks() const { return looks_; }
  std::optional<Time> reported() const { return reported_; }

 private:
  static constexpr Duration kRoundTrip = milliseconds(1);

  void Look(Time now) {
    now_ = now;
    ++looks_;
    const bool blind = now == wakes;
    if (!blind && answer_ <= now) heard_ = std::max(heard_, answer_);
    const bool awaited = await_from <= now && now < await_until;
    const auto step =
        watch_.Look({.awaited = awaited, .kept_alive = kept_alive, .heard = heard_}, now);
    if (step.silent && !reported_.has_value()) reported_ = now;
    if (!step.ping) return;
    ++pings_;
    const bool stopped = stops <= now && now < goes_on;
    if (stopped && goes_on == Time::max()) return;
    const Time answer = (stopped ? goes_on : now) + kRoundTrip;
    // What was answered before this one counts until then.
    if (!blind && answer_ <= now) heard_ = std::max(heard_, answer_);
    answer_ = answer;
  }

  PeerWatch watch_;
  Time now_ = kBegun;
  Time heard_ = kBegun;
  Time answer_ = kBegun;
  int pings_ = 0;
  int looks_ = 0;
  std::optional<Time> reported_{};
};

// Wherever between two pings it stops, and however the wait lies to that.
TEST(PeerWatch, APeerThatIsAwaitedIsReportedInTime) {
  for (Duration awaited{}; awaited < seconds(6); awaited += milliseconds(70)) {
    for (Duration stops{}; stops < seconds(7); stops += milliseconds(30)) {
      for (const bool kept_alive : {true, false}) {
        Watched peer;
        peer.kept_alive = kept_alive;
        peer.await_from = kBegun + awaited;
        peer.stops = kBegun + stops;
        peer.late = milliseconds(10);
        const Time since = std::max(peer.await_from, peer.stops);
        peer.Run(since + kPeerPace.suspect_after);
        ASSERT_TRUE(peer.reported().has_value())
            << "awaited after " << awaited / milliseconds(1) << " ms, stopped after "
            << stops / milliseconds(1) << " ms";
      }
    }
  }
}

// As a process is that waits for a processor.
TEST(PeerWatch, APeerThatIsHeldUpForASecondIsNot) {
  for (Duration stops{}; stops < seconds(8); stops += milliseconds(10)) {
    Watched peer;
    peer.await_from = kBegun + milliseconds(1300);
    peer.stops = kBegun + stops;
    peer.goes_on = peer.stops + seconds(1);
    peer.Run(kBegun + seconds(20));
    ASSERT_FALSE(peer.reported().has_value()) << stops / milliseconds(1) << " ms";
  }
}

// What the peer said while this thread did not run may not be read at its first look.
TEST(PeerWatch, TheTimeInWhichThisSideSleptDoesNotCount) {
  for (const bool awaited : {true, false}) {
    for (Duration sleeps = milliseconds(600); sleeps < seconds(12); sleeps += milliseconds(130)) {
      Watched peer;
      if (awaited) peer.await_from = kBegun;
      peer.sleeps = kBegun + sleeps;
      peer.wakes = peer.sleeps + seconds(30);
      peer.Run(peer.wakes + seconds(20));
      ASSERT_FALSE(peer.reported().has_value()) << sleeps / milliseconds(1) << " ms";
    }
  }
}

TEST(PeerWatch, APeerThatSpeaksAgainIsNotSilent) {
  PeerWatch watch(kPeerPace);
  Time now = kBegun;
  EXPECT_TRUE(watch.Look({.awaited = true}, now).ping);
  bool silent = false;
  for (int i = 0; i < 10; ++i) silent = watch.Look({.awaited = true}, now = watch.due()).silent;
  EXPECT_TRUE(silent) << "until it is heard";
  const auto step = watch.Look({.awaited = true, .heard = now + milliseconds(1)}, watch.due());
  EXPECT_FALSE(step.silent);
  EXPECT_TRUE(step.ping);
}

// The same where the options leave the peer the least time to answer.
TEST(PeerWatch, NorWhereOptionsAreTight) {
  for (Duration sleeps{}; sleeps < seconds(3); sleeps += milliseconds(10)) {
    Watched peer({.heartbeat = milliseconds(500), .suspect_after = milliseconds(501)});
    peer.await_from = kBegun;
    peer.sleeps = kBegun + sleeps;
    peer.wakes = peer.sleeps + seconds(30);
    peer.Run(peer.wakes + seconds(20));
    ASSERT_FALSE(peer.reported().has_value()) << sleeps / milliseconds(1) << " ms";
  }
}

// A machine that is so busy that each look is late sees a stopped peer all the same.
TEST(PeerWatch, ASideThatIsAlwaysLateReportsAPeerToo) {
  Watched peer;
  peer.await_from = kBegun;
  peer.stops = kBegun + seconds(1);
  peer.late = milliseconds(700);
  peer.Run(kBegun + seconds(20));
  EXPECT_TRUE(peer.reported().has_value());
}

// Nothing else tells that it lives, and a wake-up each half second would.
TEST(PeerWatch, AnIdlePeerIsPingedRarely) {
  Watched peer;
  peer.Run(kBegun + seconds(1000));
  EXPECT_GE(peer.pings(), 100) << "its target closes a connection that says nothing for 30 s";
  EXPECT_LE(peer.pings(), 251);
  EXPECT_LE(peer.looks(), peer.pings() + 1);
}

TEST(PeerWatch, WhereThePeerKeepsItsConnectionAliveItselfNothingIsDue) {
  Watched peer;
  peer.kept_alive = false;
  peer.Run(kBegun + seconds(1000));
  EXPECT_EQ(peer.pings(), 0);
  EXPECT_LE(peer.looks(), 1);
}

// Most transfers last much less than that.
TEST(PeerWatch, WhatEndsWithinAHeartbeatCostsNoPing) {
  Watched peer;
  peer.kept_alive = false;
  peer.await_from = kBegun + seconds(10);
  peer.await_until = peer.await_from + kPeerPace.heartbeat - milliseconds(1);
  peer.Run(kBegun + seconds(100));
  EXPECT_EQ(peer.pings(), 0);
}

TEST(PeerWatch, AStoppedIdlePeerIsReportedAtTheNextPingButOne) {
  for (Duration stops = seconds(2); stops < seconds(9); stops += milliseconds(90)) {
    Watched peer;
    peer.stops = kBegun + stops;
    peer.Run(kBegun + seconds(40));
    ASSERT_TRUE(peer.reported().has_value());
    EXPECT_GE(*peer.reported(), peer.stops + kPeerPace.suspect_after);
    EXPECT_LE(*peer.reported(), peer.stops + seconds(10));
    EXPECT_GE(peer.pings(), 40) << "often from then on: its return is to be seen";
  }
}

// Waking up for a grid of a second would miss its pace.
TEST(PeerWatch, AShortHeartbeatIsKept) {
  Watched peer({.heartbeat = milliseconds(50), .suspect_after = milliseconds(200)});
  peer.Run(kBegun + seconds(100));
  EXPECT_NEAR(peer.pings(), 200, 3);
}

// As long as an application likes: a target closes what says nothing for 30 s.
TEST(PeerWatch, ALongHeartbeatDoesNotLoseTheConnection) {
  for (const bool awaited : {true, false}) {
    Watched peer({.heartbeat = seconds(3600), .suspect_after = seconds(7200)});
    if (awaited) peer.await_from = kBegun;
    peer.Run(kBegun + seconds(1000));
    EXPECT_GE(peer.pings(), 50);
  }
}

// A ping whose answer nobody waited for says nothing an hour later.
TEST(PeerWatch, AnOldPingIsNoReason) {
  PeerWatch watch(kPeerPace);
  EXPECT_TRUE(watch.Await(kBegun));
  EXPECT_TRUE(watch.Look({.awaited = true, .heard = kBegun}, watch.due()).ping);
  EXPECT_FALSE(watch.Look({.heard = kBegun}, watch.due()).silent);
  ASSERT_EQ(watch.due(), Time::max());
  EXPECT_TRUE(watch.Await(kBegun + seconds(3600)));
  const auto step = watch.Look({.awaited = true, .heard = kBegun}, watch.due());
  EXPECT_TRUE(step.ping);
  EXPECT_FALSE(step.silent);
}

// A peer has one heartbeat at least to answer, however near the two options are.
TEST(PeerWatch, AnAnswerHasAHeartbeatOfTime) {
  const Duration heartbeat = milliseconds(500);
  for (Duration stops{}; stops < seconds(4); stops += milliseconds(10)) {
    Watched peer({.heartbeat = heartbeat, .suspect_after = heartbeat + Duration(1)});
    peer.await_from = kBegun;
    peer.stops = kBegun + stops;
    peer.goes_on = peer.stops + heartbeat - milliseconds(10);
    peer.Run(kBegun + seconds(20));
    ASSERT_FALSE(peer.reported().has_value()) << stops / milliseconds(1) << " ms";
  }
}

}  // namespace
}  // namespace kvxfer
