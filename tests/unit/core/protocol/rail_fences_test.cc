// Rails that fail and come back: each transition, everything that is no transition, the timers, and
// every sequence of events of two rails up to a length, beside an oracle that knows the rules by
// what has happened so far and has no states.

#include "src/core/protocol/rail_fences.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using State = RailFences::State;

constexpr Duration kMs = std::chrono::milliseconds(1);
constexpr Duration kAnswer = 5000 * kMs;
constexpr Duration kExplain = RailFences::kExplainWithin;

Time At(int ms) { return Time{} + ms * kMs; }
absl::Status Lost() { return absl::UnavailableError("cable"); }

RailFences Rails(std::vector<bool> up) {
  std::vector<RailInfo> infos(up.size());
  for (size_t i = 0; i < up.size(); ++i) infos[i].up = up[i];
  return RailFences(infos, kAnswer, At(0));
}

// One rail, led to `state` at 0 ms.
RailFences In(State state) {
  RailFences rails = Rails({true});
  switch (state) {
    case State::kUp:
      break;
    case State::kSuspected:
      rails.OnAccepted(0);
      rails.OnCompleted(0, At(0));
      EXPECT_TRUE(rails.OnFailed(0, Lost(), At(0)));
      break;
    case State::kReopening:
    case State::kFencing:
    case State::kFenceDue:
      EXPECT_TRUE(rails.OnDown(0, Lost(), At(0)));
      if (state == State::kFenceDue) break;
      EXPECT_TRUE(rails.OnFenceSent(0));
      if (state == State::kFencing) break;
      EXPECT_OK(rails.OnFenced(0));
      break;
  }
  EXPECT_EQ(rails.state(0), state);
  EXPECT_EQ(rails.up(0), state == State::kUp);
  return rails;
}

constexpr State kStates[] = {State::kUp, State::kSuspected, State::kFenceDue, State::kFencing,
                             State::kReopening};

std::optional<uint32_t> Due(const RailFences& rails) { return rails.NextDue(); }

TEST(RailFencesTest, RailsBeginAsTheyAreLearnt) {
  const RailFences rails = Rails({true, false});
  EXPECT_EQ(rails.size(), 2u);
  EXPECT_EQ(rails.up(), 0b01u);
  EXPECT_EQ(rails.state(1), State::kReopening);
  EXPECT_EQ(rails.why(1).message(), "not up yet");
  EXPECT_EQ(rails.since(1), At(0));
  EXPECT_EQ(rails.next(), Time::max());
  EXPECT_EQ(RailFences().up(), 0u);
  EXPECT_EQ(RailFences().next(), Time::max());
  // As many as a mask has bits.
  EXPECT_EQ(Rails(std::vector<bool>(70, true)).up(), UINT64_MAX);
}

TEST(RailFencesTest, ARailThatFailsIsFencedBuiltAndUpAgain) {
  RailFences rails = Rails({true, true});
  EXPECT_TRUE(rails.OnDown(1, Lost(), At(1)));
  EXPECT_EQ(rails.up(), 0b01u);
  EXPECT_EQ(rails.since(1), At(1));
  EXPECT_EQ(Due(rails), 1u);
  EXPECT_TRUE(rails.OnFenceSent(1));
  EXPECT_EQ(Due(rails), std::nullopt);
  EXPECT_OK(rails.OnFenced(1));
  EXPECT_EQ(rails.state(1), State::kReopening);
  EXPECT_EQ(rails.up(), 0b01u);
  const auto up = rails.OnUp(1);
  ASSERT_OK(up);
  EXPECT_TRUE(*up);
  EXPECT_EQ(rails.up(), 0b11u);
  // Expect that its last failure is still known.
  EXPECT_EQ(rails.why(1), Lost());
}

TEST(RailFencesTest, FencesAreDueOneAfterTheOther) {
  RailFences rails = Rails({true, true});
  EXPECT_TRUE(rails.OnDown(1, Lost(), At(1)));
  EXPECT_TRUE(rails.OnDown(0, Lost(), At(2)));
  EXPECT_EQ(Due(rails), 0u);
  EXPECT_TRUE(rails.OnFenceSent(0));
  EXPECT_EQ(Due(rails), 1u);
}

TEST(RailFencesTest, LossIsToldOfEachLifeOnce) {
  for (const State state : kStates) {
    RailFences rails = In(state);
    const bool known = state == State::kFenceDue || state == State::kFencing;
    EXPECT_EQ(rails.OnDown(0, absl::UnavailableError("again"), At(7)), !known);
    EXPECT_EQ(rails.state(0), known ? state : State::kFenceDue);
    EXPECT_EQ(rails.why(0).message(), known ? "cable" : "again");
    EXPECT_EQ(rails.since(0), known ? At(0) : At(7));
  }
  RailFences rails = Rails({true});
  EXPECT_FALSE(rails.OnDown(1, Lost(), At(0)));
}

TEST(RailFencesTest, AFenceIsSentOnlyWhenItIsDue) {
  for (const State state : kStates) {
    RailFences rails = In(state);
    EXPECT_EQ(Due(rails).has_value(), state == State::kFenceDue);
    EXPECT_EQ(rails.OnFenceSent(0), state == State::kFenceDue);
    EXPECT_EQ(rails.state(0), state == State::kFenceDue ? State::kFencing : state);
  }
}

TEST(RailFencesTest, AnAnswerThatNobodyAskedForIsRefused) {
  for (const State state : kStates) {
    RailFences rails = In(state);
    if (state == State::kFencing) {
      EXPECT_OK(rails.OnFenced(0));
      continue;
    }
    EXPECT_TRUE(Fails(rails.OnFenced(0), absl::StatusCode::kInvalidArgument,
                      {"it fenced rail 0, which it was not asked to"}));
    EXPECT_EQ(rails.state(0), state);
  }
  EXPECT_TRUE(Fails(In(State::kFencing).OnFenced(1), absl::StatusCode::kInvalidArgument, {"1"}));
}

TEST(RailFencesTest, ARailThatNobodyAskedToBuildMustNotComeUp) {
  for (const State state : kStates) {
    RailFences rails = In(state);
    const auto up = rails.OnUp(0);
    if (state == State::kUp || state == State::kReopening) {
      ASSERT_OK(up);
      EXPECT_EQ(*up, state == State::kReopening);
      EXPECT_TRUE(rails.up(0));
      continue;
    }
    EXPECT_TRUE(Fails(up, absl::StatusCode::kInternal,
                      {"the backend says that rail 0 is up, which it was not asked to build"}));
    EXPECT_EQ(rails.state(0), state);
  }
  const auto beyond = Rails({true}).OnUp(1);
  ASSERT_OK(beyond);
  EXPECT_FALSE(*beyond);
}

TEST(RailFencesTest, OnlyOpsThatEndAsThoseOfAFailingRailAreSuspicious) {
  for (const auto& status :
       {absl::UnavailableError("u"), absl::AbortedError("a"), absl::CancelledError("c")}) {
    RailFences rails = Rails({true});
    EXPECT_TRUE(rails.OnFailed(0, status, At(3))) << status;
    EXPECT_EQ(rails.state(0), State::kSuspected);
    EXPECT_EQ(rails.why(0), status);
    EXPECT_EQ(rails.since(0), At(3));
  }
  RailFences rails = Rails({true});
  EXPECT_FALSE(rails.OnFailed(0, absl::PermissionDeniedError("no right"), At(3)));
  EXPECT_TRUE(rails.up(0));
}

TEST(RailFencesTest, OpsThatFailAfterTheLossOfTheirRailFailAlone) {
  for (const State state : kStates) {
    RailFences rails = In(state);
    const bool waits = state == State::kUp || state == State::kSuspected;
    EXPECT_EQ(rails.OnFailed(0, absl::AbortedError("flushed"), At(1)), waits);
    EXPECT_EQ(rails.state(0), waits ? State::kSuspected : state);
    // The first of a rail's ops says why.
    EXPECT_EQ(rails.why(0).message(), state == State::kUp ? "flushed" : "cable");
  }
  EXPECT_FALSE(Rails({true}).OnFailed(1, Lost(), At(0)));
}

TEST(RailFencesTest, ASuspicionEndsSoonAfterTheLastOpOfTheRail) {
  RailFences rails = Rails({true});
  for (int i = 0; i < 3; ++i) rails.OnAccepted(0);
  rails.OnCompleted(0, At(0));
  EXPECT_TRUE(rails.OnFailed(0, Lost(), At(0)));
  rails.OnCompleted(0, At(100));
  // Expect no limit while an op is under way.
  EXPECT_EQ(rails.next(), Time::max());
  EXPECT_TRUE(rails.OnTime(At(1000)).cleared.empty());
  rails.OnCompleted(0, At(1000));
  EXPECT_EQ(rails.next(), At(1000) + kExplain);
  EXPECT_TRUE(rails.OnTime(At(1000) + kExplain - Duration(1)).cleared.empty());
  const auto expired = rails.OnTime(At(1000) + kExplain);
  EXPECT_EQ(expired.cleared.size(), 1u);
  EXPECT_OK(expired.close);
  EXPECT_TRUE(rails.up(0));
  EXPECT_EQ(rails.next(), Time::max());
}

TEST(RailFencesTest, TheLastOpMayBeTheOneThatFails) {
  const RailFences rails = In(State::kSuspected);
  EXPECT_EQ(rails.next(), At(0) + kExplain);
}

TEST(RailFencesTest, AFenceWithoutAnAnswerClosesTheConnection) {
  for (const State state : {State::kFenceDue, State::kFencing}) {
    RailFences rails = In(state);
    EXPECT_EQ(rails.next(), At(0) + kAnswer);
    EXPECT_OK(rails.OnTime(At(0) + kAnswer - Duration(1)).close);
    EXPECT_TRUE(Fails(rails.OnTime(At(0) + kAnswer).close, absl::StatusCode::kUnavailable,
                      {"the peer did not make rail 0 quiet, which failed: cable"}));
  }
  EXPECT_EQ(In(State::kReopening).next(), Time::max());
}

TEST(RailFencesTest, TheEarliestLimitIsTheNext) {
  RailFences rails = Rails({true, true, true});
  EXPECT_TRUE(rails.OnDown(0, Lost(), At(0)));
  EXPECT_TRUE(rails.OnFailed(1, Lost(), At(10)));
  EXPECT_TRUE(rails.OnFailed(2, Lost(), At(5)));
  EXPECT_EQ(rails.next(), At(5) + kExplain);
  // Expect that what is cleared is named before the connection is given up.
  EXPECT_EQ(rails.OnTime(At(5) + kExplain).cleared[0], 2u);
  EXPECT_EQ(rails.next(), At(10) + kExplain);
}

TEST(RailFencesTest, WithoutARailItSaysWhyOfEach) {
  RailFences rails = Rails({true, false});
  EXPECT_EQ(rails.WhyNone(), "");
  EXPECT_TRUE(rails.OnDown(0, Lost(), At(0)));
  EXPECT_EQ(rails.WhyNone(), "; no rail is up: rail 0: cable; rail 1: not up yet");
  EXPECT_EQ(RailFences().WhyNone(), "");
}

// --- every sequence -----------------------------------------------------------------------------

enum class Act : uint8_t { kAccept, kComplete, kFail, kDown, kUp, kSend, kAnswer };
constexpr Act kActs[] = {Act::kAccept, Act::kComplete, Act::kFail,  Act::kDown,
                         Act::kUp,     Act::kSend,     Act::kAnswer};

// What has happened to one rail, in order. The rules are asked of that alone.
class History {
 public:
  explicit History(bool learnt_up) {
    if (learnt_up) Add(Act::kUp, At(0));
  }

  void Add(Act act, Time at) { happened_.push_back({act, at}); }
  void Clear() { cleared_ = static_cast<int>(happened_.size()) - 1; }

  // The backend said that it is lost, and has not brought it back.
  bool lost() const { return Last(Act::kDown) > Last(Act::kUp); }
  bool asked() const { return lost() && Last(Act::kSend) > Last(Act::kDown); }
  bool answered() const { return lost() && Last(Act::kAnswer) > Last(Act::kDown); }
  bool came_up() const { return Last(Act::kUp) >= 0 && !lost(); }
  // An op failed since it came up, and nothing has said yet whether the rail did.
  bool doubted() const {
    return came_up() && Last(Act::kFail) > std::max(Last(Act::kUp), cleared_);
  }
  bool usable() const { return came_up() && !doubted(); }
  bool may_be_built() const { return Last(Act::kUp) < 0 && !lost() ? true : answered(); }
  int ops() const {
    int ops = 0;
    for (const auto& [act, at] : happened_) {
      ops += act == Act::kAccept ? 1 : 0;
      ops -= act == Act::kComplete || act == Act::kFail ? 1 : 0;
    }
    return ops;
  }
  Time doubt_ends() const {
    if (!doubted() || ops() > 0) return Time::max();
    return TimeOf(std::max(Last(Act::kComplete), Last(Act::kFail))) + kExplain;
  }
  Time fence_ends() const {
    return lost() && !answered() ? TimeOf(Last(Act::kDown)) + kAnswer : Time::max();
  }

 private:
  struct Entry {
    Act act;
    Time at;
  };
  int Last(Act act) const {
    for (int i = static_cast<int>(happened_.size()) - 1; i >= 0; --i) {
      if (happened_[static_cast<size_t>(i)].act == act) return i;
    }
    return -1;
  }
  Time TimeOf(int index) const { return happened_[static_cast<size_t>(index)].at; }

  std::vector<Entry> happened_{};
  int cleared_ = -1;  // up to there failures are known to be the ops' own
};

struct World {
  RailFences rails;
  std::vector<History> known;
  Time now = At(0);
};

class Walk {
 public:
  void From(bool first_up, bool second_up, int depth) {
    World world{.rails = Rails({first_up, second_up}),
                .known = {History(first_up), History(second_up)}};
    Visit(world, depth);
  }
  uint64_t steps() const { return steps_; }

 private:
  void Visit(const World& world, int depth) {
    Check(world);
    if (depth == 0 || ::testing::Test::HasFailure()) return;
    for (uint32_t rail = 0; rail < 2; ++rail) {
      for (const Act act : kActs) {
        World next = world;
        path_.push_back(absl::StrCat(static_cast<int>(act), "/", rail));
        if (Apply(next, rail, act)) Visit(next, depth - 1);
        path_.pop_back();
      }
    }
    for (const Duration step : {kMs, Duration::max()}) {
      const Time to = step == kMs ? world.now + kMs : world.rails.next();
      if (to == Time::max()) continue;
      World next = world;
      path_.emplace_back(step == kMs ? "ms" : "timer");
      if (Pass(next, to)) Visit(next, depth - 1);
      path_.pop_back();
    }
  }

  // False: nothing changed, which is checked, or it does not happen.
  bool Apply(World& world, uint32_t rail, Act act) {
    RailFences& rails = world.rails;
    History& known = world.known[rail];
    ++steps_;
    bool happens = true;
    switch (act) {
      case Act::kAccept:
        if (!known.usable() || known.ops() == 2) return false;
        rails.OnAccepted(rail);
        break;
      case Act::kComplete:
        if (known.ops() == 0) return false;
        rails.OnCompleted(rail, world.now);
        break;
      case Act::kFail: {
        if (known.ops() == 0) return false;
        const bool waits = known.came_up();
        rails.OnCompleted(rail, world.now);
        EXPECT_EQ(rails.OnFailed(rail, Lost(), world.now), waits) << Path();
        break;
      }
      case Act::kDown:
        happens = !known.lost() || known.answered();
        EXPECT_EQ(rails.OnDown(rail, Lost(), world.now), happens) << Path();
        break;
      case Act::kUp: {
        const auto up = rails.OnUp(rail);
        happens = known.may_be_built();
        EXPECT_EQ(up.ok(), happens || known.usable()) << Path();
        EXPECT_EQ(up.ok() && *up, happens) << Path();
        EXPECT_TRUE(up.ok() || absl::IsInternal(up.status())) << Path();
        break;
      }
      case Act::kSend:
        happens = known.lost() && !known.asked();
        EXPECT_EQ(rails.OnFenceSent(rail), happens) << Path();
        break;
      case Act::kAnswer: {
        happens = known.asked() && !known.answered();
        const absl::Status status = rails.OnFenced(rail);
        EXPECT_EQ(status.ok(), happens) << Path();
        EXPECT_TRUE(happens || absl::IsInvalidArgument(status)) << Path();
        break;
      }
    }
    if (happens) known.Add(act, world.now);
    if (!happens) Check(world);
    return happens;
  }

  // False: the connection is given up.
  bool Pass(World& world, Time to) {
    ++steps_;
    world.now = to;
    const RailFences::Expired expired = world.rails.OnTime(to);
    std::vector<uint32_t> cleared;
    bool closes = false;
    for (uint32_t rail = 0; rail < 2 && !closes; ++rail) {
      History& known = world.known[rail];
      closes = known.fence_ends() <= to;
      if (known.doubt_ends() > to) continue;
      cleared.push_back(rail);
      known.Clear();
    }
    EXPECT_EQ(std::vector<uint32_t>(expired.cleared.begin(), expired.cleared.end()), cleared)
        << Path();
    EXPECT_EQ(!expired.close.ok(), closes) << Path();
    return !closes;
  }

  void Check(const World& world) {
    Time limit = Time::max();
    std::optional<uint32_t> due;
    for (uint32_t rail = 0; rail < 2; ++rail) {
      const History& known = world.known[rail];
      EXPECT_EQ(world.rails.up(rail), known.usable()) << Path();
      // A rail is built anew only after the answer to its fence.
      EXPECT_EQ(world.rails.state(rail) == State::kReopening, known.may_be_built()) << Path();
      limit = std::min({limit, known.doubt_ends(), known.fence_ends()});
      if (!due && known.lost() && !known.asked()) due = rail;
    }
    EXPECT_EQ(world.rails.next(), limit) << Path();
    EXPECT_EQ(Due(world.rails), due) << Path();
  }

  std::string Path() const {
    std::string path;
    for (const std::string& step : path_) absl::StrAppend(&path, " ", step);
    return path;
  }

  std::vector<std::string> path_{};
  uint64_t steps_ = 0;
};

TEST(RailFencesExhaustive, EverySequenceOfTwoRails) {
  Walk walk;
  const int depth = kSlow ? 5 : 7;
  walk.From(true, true, depth);
  walk.From(true, false, depth);
  RecordProperty("steps", std::to_string(walk.steps()));
}

}  // namespace
}  // namespace kvxfer::testing
