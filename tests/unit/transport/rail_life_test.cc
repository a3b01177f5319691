// What a rail does from its first attempt on. The specification of RailLife: each transition, and
// every short sequence of lives against an oracle that looks through the whole history.
#include "src/transport/rail_life.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvxfer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Blame = RailLife::Blame;
using Carried = RailLife::Carried;
using State = RailLife::State;

const Time kStart{seconds(1000)};
const absl::Status kWhy = absl::UnavailableError("cable");

// The pairs of a rail, best first.
const std::vector<RailPair> kPairs{{0, 0}, {0, 1}, {1, 0}};

std::optional<RailPair> BestOf(std::span<const RailPair> pairs, std::span<const RailPair> bad) {
  for (const RailPair& pair : pairs) {
    if (std::ranges::find(bad, pair) == bad.end()) return pair;
  }
  return std::nullopt;
}
std::optional<RailPair> Best(std::span<const RailPair> bad) { return BestOf(kPairs, bad); }

bool Fail(RailLife& life, Blame blame, Time now = kStart) {
  life.Attempt();
  life.End(kWhy);
  return life.Retry(now, blame);
}
void ComeUp(RailLife& life) {
  life.Attempt();
  life.Up();
}

// --- every transition ---

RailLife In(State state) {
  RailLife life;
  if (state == State::kWaiting) return life;
  life.Attempt();
  if (life.state() < state && state < State::kUp) life.Step(state, kStart);
  if (state == State::kUp || state == State::kDraining) life.Up();
  if (state == State::kDraining) life.Drain(kWhy, kStart);
  if (state == State::kDown) life.End(kWhy);
  return life;
}
constexpr State kStates[] = {State::kWaiting, State::kMaking, State::kOffered,  State::kConnecting,
                             State::kProbing, State::kUp,     State::kDraining, State::kDown};

TEST(RailLife, EachStateIsReached) {
  for (const State state : kStates) {
    const RailLife life = In(state);
    EXPECT_EQ(life.state(), state);
    EXPECT_EQ(life.up(), state == State::kUp);
    EXPECT_EQ(life.attempting(), state >= State::kMaking && state <= State::kProbing);
    EXPECT_EQ(life.number(), state == State::kWaiting ? 0u : 1u);
  }
}

TEST(RailLife, AnAttemptSkipsTheStepsThatABackendDoesNotHave) {
  for (const State from : kStates) {
    for (const State to : kStates) {
      if (!In(from).attempting() || !In(to).attempting() || to < from) continue;
      RailLife life = In(from);
      life.Step(to, kStart);
      EXPECT_EQ(life.state(), to);
      life.Up();
      EXPECT_TRUE(life.up());
      EXPECT_TRUE(life.settled());
    }
  }
}

TEST(RailLife, EveryStateEnds) {
  for (const State state : kStates) {
    RailLife life = In(state);
    life.set_deadline(kStart);
    life.End(kWhy);
    EXPECT_EQ(life.state(), State::kDown);
    EXPECT_EQ(life.why(), kWhy);
    EXPECT_FALSE(life.deadline());
  }
}

TEST(RailLife, OnlyARailThatIsDownIsReopened) {
  for (const State state : kStates) {
    RailLife life = In(state);
    EXPECT_EQ(life.Reopen(kStart), state == State::kDown);
    EXPECT_EQ(life.state(), state == State::kDown ? State::kWaiting : state);
    EXPECT_EQ(life.number(), state == State::kWaiting ? 0u : 1u);
  }
}

TEST(RailLife, OnlyARailThatWaitsCanHurry) {
  for (const State state : kStates) {
    RailLife life = In(state);
    const std::optional<Time> before = life.deadline();
    life.Hurry(kStart + seconds(7));
    EXPECT_EQ(life.state(), state);
    EXPECT_EQ(life.deadline(), state == State::kWaiting ? kStart + seconds(7) : before);
  }
}

TEST(RailLife, FramesOfAnotherLifeOrForAnotherStateAreStale) {
  RailLife life = In(State::kOffered);
  EXPECT_TRUE(life.Is(State::kOffered, 1));
  EXPECT_FALSE(life.Is(State::kOffered, 0));
  EXPECT_FALSE(life.Is(State::kOffered, 2));
  EXPECT_FALSE(life.Is(State::kProbing, 1));
  life.End(kWhy);
  EXPECT_FALSE(life.Is(State::kOffered, 1));
  life.Retry(kStart, Blame::kPair);
  life.Attempt();
  life.Step(State::kOffered, kStart);
  EXPECT_FALSE(life.Is(State::kOffered, 1));
  EXPECT_TRUE(life.Is(State::kOffered, 2));
}

// --- deadlines ---

TEST(RailLife, EachStepHasItsOwnDeadlineAndPassesItOnce) {
  RailLife life;
  life.Attempt();
  EXPECT_FALSE(life.deadline());
  life.Step(State::kOffered, kStart);
  EXPECT_FALSE(life.Due(kStart + seconds(100)));  // the peer may take its time
  life.Step(State::kConnecting, kStart, seconds(2));
  EXPECT_EQ(life.began(), kStart);
  life.Step(State::kProbing, kStart + seconds(1), seconds(2));
  EXPECT_EQ(life.began(), kStart + seconds(1));
  EXPECT_FALSE(life.Due(kStart + seconds(3) - std::chrono::nanoseconds(1)));
  EXPECT_TRUE(life.Due(kStart + seconds(3)));
  EXPECT_FALSE(life.Due(kStart + seconds(3)));
  EXPECT_EQ(life.state(), State::kProbing) << "what follows is the backend's to say";
}

TEST(RailLife, WhatIsUpHasNoDeadlineOfItsOwn) {
  RailLife life = In(State::kMaking);
  life.Step(State::kProbing, kStart, seconds(2));
  life.Up();
  EXPECT_FALSE(life.deadline());
  life.set_deadline(kStart);
  EXPECT_TRUE(life.Due(kStart));
  life.Drain(kWhy, kStart + seconds(1));
  EXPECT_EQ(life.deadline(), kStart + seconds(1));
}

TEST(RailLife, TheRoundTripIsOfThePresentPair) {
  RailLife life(kPairs[0], Best);
  life.Attempt();
  EXPECT_EQ(life.round_trip(), Duration{});
  life.Step(State::kProbing, kStart);
  life.Answered(kStart);
  EXPECT_GT(life.round_trip(), Duration{}) << "it was answered";
  life.Answered(kStart + milliseconds(3));
  EXPECT_EQ(life.round_trip(), milliseconds(3));
  life.End(kWhy);
  EXPECT_EQ(life.round_trip(), milliseconds(3));
  life.Retry(kStart, Blame::kPair);
  EXPECT_EQ(life.round_trip(), Duration{});
}

// --- why it is not in use ---

TEST(RailLife, SaysWhyItIsNotInUse) {
  RailLife life;
  EXPECT_EQ(life.NotInUse(), " (not in use)");
  Fail(life, Blame::kPair);
  EXPECT_EQ(life.NotInUse(), " (not in use: cable)");
  life.Attempt();
  EXPECT_EQ(life.NotInUse(), " (not in use: cable)");
  life.Up();
  EXPECT_EQ(life.NotInUse(), "");
  EXPECT_TRUE(life.why().ok());
  life.Drain(absl::UnavailableError("the peer's end"), kStart);
  life.set_why(absl::UnavailableError("port down"));
  EXPECT_EQ(life.NotInUse(), " (not in use: port down)");
}

// --- pairs ---

TEST(RailLife, EachPairIsTriedAtOnceAndThenTheBestAgainAfterAPause) {
  RailLife life(kPairs[0], Best);
  for (uint32_t round = 0; round < 3; ++round) {
    for (size_t i = 0; i < kPairs.size(); ++i) {
      EXPECT_EQ(life.settled(), round > 0);
      life.Attempt();
      EXPECT_EQ(life.pair(), kPairs[i]);
      EXPECT_EQ(life.bad_pairs().size(), i);
      life.End(kWhy);
      const bool more = i + 1 < kPairs.size();
      EXPECT_EQ(life.Retry(kStart, Blame::kPair), more);
      EXPECT_EQ(life.deadline(), kStart + (more ? Duration{} : RailBackoff(round, false)));
    }
    EXPECT_TRUE(life.hopeless());
    EXPECT_EQ(life.bad_pairs(), kPairs);
    EXPECT_EQ(life.pair(), kPairs.back()) << "until the next attempt";
  }
}

TEST(RailLife, WhereOtherRailsUseEveryPairTheNextRoundIsOverThePlannedOne) {
  const auto none = [](std::span<const RailPair>) { return std::optional<RailPair>(); };
  RailLife life(kPairs[2], none);
  life.Attempt();
  life.End(kWhy);
  EXPECT_FALSE(life.Retry(kStart, Blame::kPair));
  life.Attempt();
  EXPECT_EQ(life.pair(), kPairs[2]);
  EXPECT_TRUE(life.bad_pairs().empty());
}

TEST(RailLife, APairThatIsNotToBlameIsKept) {
  for (const Blame blame : {Blame::kThisHost, Blame::kPassing}) {
    RailLife life(kPairs[0], Best);
    for (int i = 0; i < 5; ++i) {
      EXPECT_FALSE(Fail(life, blame));
      EXPECT_EQ(life.pair(), kPairs[0]);
      EXPECT_TRUE(life.bad_pairs().empty());
    }
    EXPECT_TRUE(Fail(life, Blame::kPair)) << "the others are still worth an attempt";
  }
}

TEST(RailLife, AFailureThatPassesDoesNotExhaustARailAtOnce) {
  RailLife life(kPairs[0], Best);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(Fail(life, Blame::kPassing));
    EXPECT_FALSE(life.settled());
  }
  Fail(life, Blame::kPassing);
  EXPECT_TRUE(life.hopeless());
  RailLife other(kPairs[0], Best);
  Fail(other, Blame::kThisHost);
  EXPECT_TRUE(other.hopeless());
}

TEST(RailLife, ARailThatWasUpKeepsItsPair) {
  RailLife life(kPairs[0], Best);
  Fail(life, Blame::kPair);
  ComeUp(life);
  EXPECT_EQ(life.pair(), kPairs[1]);
  life.End(kWhy);
  life.Reopen(kStart);
  for (int i = 0; i < 5; ++i) EXPECT_FALSE(Fail(life, Blame::kPair));
  EXPECT_EQ(life.pair(), kPairs[1]);
  EXPECT_TRUE(life.settled());
  EXPECT_FALSE(life.hopeless());
}

TEST(RailLife, PairsThatDidNotAnswerAreReportedUntilThePlannedOneWorks) {
  RailLife life(kPairs[0], Best);
  Fail(life, Blame::kPair);
  ComeUp(life);
  EXPECT_EQ(life.bad_pairs(), std::vector<RailPair>{kPairs[0]});
  RailLife again(kPairs[0], Best);
  for (size_t i = 0; i < kPairs.size(); ++i) Fail(again, Blame::kPair);
  ComeUp(again);
  EXPECT_EQ(again.pair(), kPairs[0]);
  EXPECT_TRUE(again.bad_pairs().empty());
}

// --- back-off ---

TEST(RailLife, ThePauseDoublesUpToALimit) {
  for (const bool was_up : {false, true}) {
    const Duration most = was_up ? kMaxRailBackoff : kHopelessRailBackoff;
    EXPECT_EQ(RailBackoff(0, was_up), kFirstRailBackoff);
    for (uint32_t failures = 1; failures < 100; ++failures) {
      EXPECT_EQ(RailBackoff(failures, was_up),
                std::min<Duration>(2 * RailBackoff(failures - 1, was_up), most));
    }
    EXPECT_EQ(RailBackoff(UINT32_MAX, was_up), most);
  }
}

// The pause after a life that was up and carried so much.
Duration PauseAfter(RailLife& life, Carried carried) {
  ComeUp(life);
  life.End(kWhy, carried);
  EXPECT_TRUE(life.Reopen(kStart));
  return *life.deadline() - kStart;
}

TEST(RailLife, LivesThatCarryNothingArePausedForLonger) {
  RailLife life;
  EXPECT_EQ(PauseAfter(life, Carried::kData), kFirstRailBackoff);
  EXPECT_EQ(PauseAfter(life, Carried::kNothing), 8 * kFirstRailBackoff);
  EXPECT_EQ(PauseAfter(life, Carried::kNothing), 64 * kFirstRailBackoff);
  EXPECT_EQ(PauseAfter(life, Carried::kUnknown), 64 * kFirstRailBackoff) << "it proves nothing";
  EXPECT_EQ(PauseAfter(life, Carried::kNothing), kHopelessRailBackoff);
  EXPECT_EQ(PauseAfter(life, Carried::kData), kFirstRailBackoff);
}

TEST(RailLife, SilenceCountsFromTheSecondTimeInARow) {
  RailLife life;
  EXPECT_EQ(PauseAfter(life, Carried::kUnheard), kFirstRailBackoff);
  EXPECT_EQ(PauseAfter(life, Carried::kUnknown), kFirstRailBackoff);
  EXPECT_EQ(PauseAfter(life, Carried::kUnheard), kFirstRailBackoff);
  EXPECT_EQ(PauseAfter(life, Carried::kUnheard), 8 * kFirstRailBackoff);
}

TEST(RailLife, WhatAnAttemptCarriedDoesNotCount) {
  RailLife life;
  ComeUp(life);
  life.End(kWhy);
  life.Reopen(kStart);
  for (int i = 0; i < 3; ++i) {
    life.Attempt();
    life.End(kWhy, Carried::kNothing);
    life.Retry(kStart, Blame::kPair);
  }
  EXPECT_EQ(PauseAfter(life, Carried::kUnknown), kFirstRailBackoff);
}

// --- every short sequence of lives ---

enum class Fate : uint8_t {
  kPairFails,
  kHostFails,
  kHostFailsForNow,
  kUpUnknown,
  kUpUnheard,
  kUpNothing,
  kUpData,
  kUpUnseen,  // it was up before the agent knew of it, so it is tried again without a Reopen
};
constexpr int kFates = 8;

bool CameUp(Fate fate) { return fate >= Fate::kUpUnknown; }
bool IsReopened(Fate fate) { return CameUp(fate) && fate != Fate::kUpUnseen; }

void Live(RailLife& life, Fate fate) {
  life.Attempt();
  if (CameUp(fate)) life.Up();
  const bool counts = IsReopened(fate);
  life.End(kWhy, counts ? static_cast<Carried>(static_cast<int>(fate) -
                                               static_cast<int>(Fate::kUpUnknown))
                        : Carried::kUnknown);
  if (counts) {
    life.Reopen(kStart);
  } else {
    life.Retry(kStart, CameUp(fate) ? Blame::kPair : static_cast<Blame>(fate));
  }
}

// What is known of a rail after some lives, found by looking at all of them again.
struct Oracle {
  std::vector<Fate> lives;
  size_t pairs;

  bool was_up() const { return std::ranges::any_of(lives, CameUp); }
  // How many lives blamed their pair before the first that came up.
  size_t blamed() const {
    const auto up = std::ranges::find_if(lives, CameUp);
    return static_cast<size_t>(std::count(lives.begin(), up, Fate::kPairFails));
  }
  // Whether the life `i` led to another pair at once.
  bool Switched(size_t i) const {
    if (lives[i] != Fate::kPairFails) return false;
    const Oracle then{{lives.begin(), lives.begin() + static_cast<std::ptrdiff_t>(i) + 1}, pairs};
    return !then.was_up() && then.blamed() % pairs != 0;
  }
  // Failures in a row that were followed by a pause.
  uint32_t FailuresBefore(size_t end) const {
    uint32_t failures = 0;
    for (size_t i = 0; i < end; ++i) {
      if (CameUp(lives[i])) failures = 0;
      if (!IsReopened(lives[i]) && !Switched(i)) ++failures;
    }
    return failures;
  }
  bool exhausted() const {
    for (size_t i = 0; i < lives.size(); ++i) {
      if (IsReopened(lives[i]) || Switched(i)) continue;
      if (lives[i] != Fate::kHostFailsForNow || FailuresBefore(i) >= 3) return true;
    }
    return false;
  }
  // Of a life that was seen to be up: what follows the last one that carried data.
  uint32_t in_vain() const {
    uint32_t count = 0;
    Fate before = Fate::kUpUnknown;  // among those that came up
    for (const Fate fate : lives) {
      if (!CameUp(fate)) continue;
      if (fate == Fate::kUpData) count = 0;
      if (fate == Fate::kUpNothing) ++count;
      if (fate == Fate::kUpUnheard && before == Fate::kUpUnheard) ++count;
      before = fate;
    }
    return count;
  }
  Duration pause() const {
    if (lives.empty() || Switched(lives.size() - 1)) return {};
    if (!IsReopened(lives.back())) return RailBackoff(FailuresBefore(lives.size()) - 1, was_up());
    return RailBackoff(3 * in_vain(), in_vain() == 0);
  }
  // The pair that the next life tries.
  size_t next_pair() const { return blamed() % pairs; }
};

void CheckAll(Oracle& oracle, const RailLife& before, int depth) {
  for (int i = 0; i < kFates && !::testing::Test::HasFailure(); ++i) {
    RailLife life = before;
    oracle.lives.push_back(static_cast<Fate>(i));
    Live(life, oracle.lives.back());
    RailLife next = life;
    next.Attempt();
    const bool right = life.state() == State::kWaiting && life.number() == oracle.lives.size() &&
                       life.settled() == (oracle.was_up() || oracle.exhausted()) &&
                       life.hopeless() == (oracle.exhausted() && !oracle.was_up()) &&
                       life.deadline() == kStart + oracle.pause() &&
                       next.pair() == kPairs[oracle.next_pair()];
    std::string lives;
    if (!right) {
      for (const Fate fate : oracle.lives) absl::StrAppend(&lives, static_cast<int>(fate), " ");
    }
    EXPECT_TRUE(right) << "after " << lives << "over " << oracle.pairs << " pairs";
    if (depth > 1) CheckAll(oracle, life, depth - 1);
    oracle.lives.pop_back();
  }
}

TEST(RailLife, EveryShortSequenceOfLivesIsAsTheOracleSays) {
  for (size_t pairs = 1; pairs <= kPairs.size(); ++pairs) {
    Oracle oracle{{}, pairs};
    const auto choose = [=](std::span<const RailPair> bad) {
      return BestOf(std::span(kPairs).first(pairs), bad);
    };
    CheckAll(oracle, RailLife(kPairs[0], choose), 5);
  }
}

}  // namespace
}  // namespace kvxfer
