// One side of a session: each transition, what the first words of a peer mean, when the session is
// given up, and every sequence of events up to a length, and long random ones, beside an oracle
// that knows the rules by what has happened so far and has no states. Two sides together:
// session_pair_test.cc.

#include "src/core/protocol/session.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using State = Session::State;

constexpr Duration kMs = std::chrono::milliseconds(1);
constexpr Duration kAbandon = Session::kAbandonAfter;
constexpr uint64_t kFirst = 77;    // what this side calls the first session
constexpr uint64_t kTheirs = 200;  // what the peer calls it

constexpr Time At(int64_t ms) { return Time{} + ms * kMs; }

Incarnation Life(uint8_t first) {
  Incarnation incarnation;
  incarnation.bytes[0] = first;
  return incarnation;
}
const Incarnation kHere = Life(1);
const Incarnation kThere = Life(2);

Session Made(Time now = At(1)) {
  return Session({.name = "prefill-0", .incarnation = kHere},
                 {.name = "decode-0", .incarnation = kThere}, kFirst, now);
}

// Led to `state`; the last connection, if there was one, was lost at 5 ms, and the session ended at
// 6 ms while a connection was up.
Session In(State state) {
  Session session = Made();
  if (state != State::kNew) session.OnLinkUp();
  if (state == State::kUnlinked) session.OnLinkDown(At(5));
  if (state == State::kEnding) session.End(At(6));
  EXPECT_EQ(session.state(), state);
  return session;
}

HelloAckFrame Ack(uint16_t version, uint32_t regions = 0, uint64_t session = kTheirs) {
  return {.version = version, .target = kThere, .session = session, .last_region = regions};
}
HelloFrame TheirHello(uint64_t theirs, uint64_t ours) {
  return {.initiator = kThere, .target = kHere, .session = theirs, .peer_session = ours};
}
RegionsFrame Page(uint32_t first, uint32_t last) {
  return {.target = kThere, .first = first, .last = last};
}

// Hands over all that is to be sent; returns how many messages that were.
size_t SendAll(ReliableChannel& channel) {
  size_t sent = 0;
  while (channel.NextToSend() != nullptr) {
    channel.MessageSent();
    ++sent;
  }
  return sent;
}

Envelope Numbered(uint64_t sequence) { return {.type = FrameType::kCredit, .sequence = sequence}; }
absl::Status Ignore(const ReliableChannel::Incoming& /*frame*/) { return absl::OkStatus(); }

// --- by example ---------------------------------------------------------------------------------

TEST(SessionTest, ItBeginsUnknownAndWithoutAConnection) {
  const Session session = Made(At(3));
  EXPECT_EQ(session.state(), State::kNew);
  EXPECT_EQ(session.number(), kFirst);
  EXPECT_EQ(session.unlinked(), At(3));
  EXPECT_EQ(session.channel().kept(), 0u);
}

TEST(SessionTest, EachTransitionOfTheTable) {
  for (const Session::Transition& row : Session::kTransitions) {
    Session session = In(row.from);
    const Time unlinked = session.unlinked();
    switch (row.event) {
      case Session::Event::kLinkUp:
        session.OnLinkUp();
        EXPECT_EQ(session.unlinked(), Time{});
        break;
      case Session::Event::kLastLinkDown:
        session.OnLinkDown(At(9));
        EXPECT_EQ(session.unlinked(), row.from == State::kLinked ? At(9) : unlinked);
        break;
      case Session::Event::kEnd:
        session.End(At(9));
        EXPECT_EQ(session.unlinked(), row.from == State::kLinked ? At(9) : unlinked);
        break;
      case Session::Event::kRenew:
        EXPECT_FALSE(session.renewable());
        session.OnLinkDown(At(9));
        EXPECT_TRUE(session.renewable());
        session.Renew();
        EXPECT_EQ(session.number(), kFirst + 1);
        EXPECT_EQ(session.unlinked(), unlinked);
        break;
    }
    EXPECT_EQ(session.state(), row.to);
  }
}

TEST(SessionTest, AHelloSaysWhoIsMeantAndWhatTheSessionIsCalled) {
  for (const uint64_t theirs : {uint64_t{0}, kTheirs}) {
    Session session = Made();
    if (theirs != 0) {
      EXPECT_EQ(session.OnHello(TheirHello(theirs, 0)), Session::Meaning::kTaken);
    }
    const HelloFrame hello = session.Hello();
    EXPECT_EQ(hello.initiator, kHere);
    EXPECT_EQ(hello.target, kThere);
    EXPECT_EQ(hello.session, kFirst);
    EXPECT_EQ(hello.peer_session, theirs);
    EXPECT_EQ(hello.name, "prefill-0");
    EXPECT_EQ(hello.min_version, kMinProtocolVersion);
    EXPECT_EQ(hello.max_version, kMaxProtocolVersion);
    EXPECT_EQ(hello.auth, std::vector<AuthMethod>{AuthMethod::kNone});
  }
}

TEST(SessionTest, WhatAHelloMeans) {
  using Meaning = Session::Meaning;
  // Nothing is known of the peer's number.
  EXPECT_EQ(Made().OnHello(TheirHello(kTheirs, 0)), Meaning::kTaken);
  EXPECT_EQ(Made().OnHello(TheirHello(kTheirs, kFirst)), Meaning::kTaken);
  EXPECT_EQ(Made().OnHello(TheirHello(kTheirs, kFirst - 1)), Meaning::kForgotten);
  for (const State state : {State::kNew, State::kLinked, State::kUnlinked}) {
    Session session = In(state);
    ASSERT_EQ(session.OnHello(TheirHello(kTheirs, 0)), Meaning::kTaken);
    EXPECT_EQ(session.peer_number(), kTheirs);
    // Expect a hello that crossed one of this side, and so names no number of it, to be good.
    EXPECT_EQ(session.OnHello(TheirHello(kTheirs, 0)), Meaning::kTaken);
    EXPECT_EQ(session.OnHello(TheirHello(kTheirs, kFirst)), Meaning::kTaken);
    EXPECT_EQ(session.OnHello(TheirHello(kTheirs, kFirst + 1)), Meaning::kForgotten);
    EXPECT_EQ(session.OnHello(TheirHello(kTheirs + 1, kFirst + 1)), Meaning::kForgotten);
    EXPECT_EQ(session.OnHello(TheirHello(kTheirs + 1, 0)), Meaning::kPeerEnded);
    EXPECT_EQ(session.OnHello(TheirHello(kTheirs + 1, kFirst)), Meaning::kPeerEnded);
    EXPECT_EQ(session.peer_number(), kTheirs);
    session.End(At(7));
    EXPECT_EQ(session.OnHello(TheirHello(kTheirs, kFirst)), Meaning::kEnding);
  }
}

TEST(SessionTest, TheAnswerToAHelloSaysWhatThePeerCallsTheSession) {
  Session session = Made();
  HelloAnswer first;
  ASSERT_OK(session.OnHelloAck(first, Ack(kMaxProtocolVersion)));
  EXPECT_TRUE(first.answered());
  EXPECT_EQ(session.peer_number(), kTheirs);
  HelloAnswer second;
  EXPECT_TRUE(Fails(session.OnHelloAck(second, Ack(kMaxProtocolVersion, 0, kTheirs + 1)),
                    absl::StatusCode::kAborted, {"peer decode-0 began a new session"}));
  EXPECT_EQ(session.peer_number(), kTheirs);
}

TEST(SessionTest, AnAnswerIsCompleteWithAllPagesInAnyOrder) {
  Session session = Made();
  HelloAnswer answer;
  EXPECT_FALSE(answer.complete());
  EXPECT_OK(session.OnPage(answer, Page(4, 7)));
  EXPECT_FALSE(answer.complete());
  ASSERT_OK(session.OnHelloAck(answer, Ack(kMaxProtocolVersion, 7)));
  EXPECT_FALSE(answer.complete());
  EXPECT_OK(session.OnPage(answer, Page(1, 2)));
  EXPECT_FALSE(answer.complete());
  EXPECT_OK(session.OnPage(answer, Page(3, 3)));
  EXPECT_TRUE(answer.complete());
}

TEST(SessionTest, PagesMayBeThereBeforeTheAnswer) {
  Session session = Made();
  HelloAnswer answer;
  EXPECT_OK(session.OnPage(answer, Page(1, 5)));
  EXPECT_FALSE(answer.complete());
  ASSERT_OK(session.OnHelloAck(answer, Ack(kMaxProtocolVersion, 5)));
  EXPECT_TRUE(answer.complete());
}

TEST(SessionTest, TheAnswerHasAVersionThatWasOffered) {
  Session session = Made();
  for (const int version : {kMinProtocolVersion - 1, kMaxProtocolVersion + 1}) {
    HelloAnswer answer;
    EXPECT_TRUE(Fails(session.OnHelloAck(answer, Ack(static_cast<uint16_t>(version))),
                      absl::StatusCode::kInvalidArgument, {"which nobody offered"}));
    EXPECT_FALSE(answer.complete());
  }
}

TEST(SessionTest, WhatAnotherIncarnationSaysBreaksTheProtocol) {
  Session session = Made();
  HelloAnswer answer;
  HelloAckFrame ack = Ack(kMaxProtocolVersion);
  ack.target = Life(3);
  EXPECT_TRUE(Fails(session.OnHelloAck(answer, ack), absl::StatusCode::kInvalidArgument,
                    {"another incarnation took the hello"}));
  EXPECT_FALSE(answer.complete());
  RegionsFrame page = Page(1, 1);
  page.target = Life(3);
  EXPECT_TRUE(Fails(session.OnPage(answer, page), absl::StatusCode::kInvalidArgument,
                    {"regions of another incarnation"}));
}

TEST(SessionTest, OneHelloHasOneAnswer) {
  Session session = Made();
  HelloAnswer answer;
  ASSERT_OK(session.OnHelloAck(answer, Ack(kMaxProtocolVersion)));
  EXPECT_TRUE(Fails(session.OnHelloAck(answer, Ack(kMaxProtocolVersion)),
                    absl::StatusCode::kInvalidArgument, {"second hello-ack"}));
  // Another connection has an answer of its own.
  HelloAnswer other;
  EXPECT_OK(session.OnHelloAck(other, Ack(kMaxProtocolVersion)));
}

TEST(SessionTest, WhatEachRefusalMeans) {
  struct Case {
    RefuseReason reason;
    absl::StatusCode code;
    bool again, forgotten, restarted;
  };
  const Case cases[] = {
      {RefuseReason::kVersion, absl::StatusCode::kFailedPrecondition, false, false, false},
      {RefuseReason::kAuth, absl::StatusCode::kFailedPrecondition, false, false, false},
      {RefuseReason::kIncarnation, absl::StatusCode::kFailedPrecondition, false, false, true},
      {RefuseReason::kSession, absl::StatusCode::kUnavailable, true, true, false},
      {RefuseReason::kClosing, absl::StatusCode::kUnavailable, true, false, false},
      {RefuseReason::kNotProved, absl::StatusCode::kFailedPrecondition, false, false, false},
      {RefuseReason{99}, absl::StatusCode::kFailedPrecondition, false, false, false},
  };
  for (const auto& [reason, code, again, forgotten, restarted] : cases) {
    const Session session = Made();
    const auto refusal =
        session.OnRefuse({.reason = reason, .target = Life(9), .text = "not\nyou"}, true);
    EXPECT_EQ(refusal.again, again);
    EXPECT_EQ(refusal.forgotten, forgotten);
    EXPECT_EQ(refusal.restarted, restarted);
    if (restarted) {
      EXPECT_TRUE(Fails(refusal.why, code,
                        {"peer decode-0 restarted", kThere.ToString().c_str(),
                         Life(9).ToString().c_str(), "add the new metadata"}));
      continue;
    }
    EXPECT_TRUE(Fails(refusal.why, code, {"peer decode-0 refused: not"}));
    // It is the peer's text: no line of a log ends in it.
    EXPECT_EQ(refusal.why.message().find('\n'), absl::string_view::npos);
  }
}

TEST(SessionTest, OnlyTheTargetItselfForgetsASession) {
  for (const bool proved : {false, true}) {
    const auto refusal = Made().OnRefuse({.reason = RefuseReason::kSession}, proved);
    EXPECT_EQ(refusal.forgotten, proved);
    EXPECT_TRUE(refusal.again);
  }
}

TEST(SessionTest, WhatWasSentIsReplayedWhenAConnectionIsLostAndWhenTheFirstIsUp) {
  Session session = In(State::kLinked);
  session.channel().Push(FrameType::kQuiet, QuietFrame{});
  EXPECT_EQ(SendAll(session.channel()), 1u);
  // A second connection takes nothing from the first.
  session.OnLinkUp();
  EXPECT_EQ(SendAll(session.channel()), 0u);
  session.OnLinkDown(At(2));
  EXPECT_EQ(session.state(), State::kLinked);
  EXPECT_EQ(SendAll(session.channel()), 1u);
  session.OnLinkDown(At(3));
  EXPECT_EQ(SendAll(session.channel()), 1u);
  session.OnLinkUp();
  EXPECT_EQ(SendAll(session.channel()), 1u);
}

TEST(SessionTest, ARenewedSessionHasNothingOfTheOneBefore) {
  Session session = In(State::kLinked);
  ReliableChannel* const channel = &session.channel();
  session.channel().Push(FrameType::kQuiet, QuietFrame{});
  EXPECT_OK(session.OnNumbered(Numbered(1), Ignore));
  EXPECT_EQ(session.OnHello(TheirHello(kTheirs, 0)), Session::Meaning::kTaken);
  session.End(At(7));
  session.OnLinkDown(At(8));
  session.Renew();
  EXPECT_EQ(channel->kept(), 0u);
  EXPECT_EQ(session.peer_number(), 0u);
  EXPECT_EQ(session.number(), kFirst + 1);
  EXPECT_EQ(&session.channel(), channel);
  EXPECT_EQ(channel->received(), 0u);
  EXPECT_EQ(SendAll(*channel), 0u);
}

// An answer to the peer is not waited for: who waits for it comes.
TEST(SessionTest, ItIsGivenUpAfterAWhileWithoutAConnectionIfATransferWaits) {
  Session unlinked = In(State::kUnlinked);
  EXPECT_EQ(unlinked.abandon_at(false), Time::max());
  EXPECT_EQ(unlinked.abandon_at(true), At(5) + kAbandon);
  unlinked.channel().Push(FrameType::kCredit, CreditFrame{});
  EXPECT_EQ(unlinked.abandon_at(false), Time::max());
  // Expect that it is given up once, however long a transfer of it moves on.
  unlinked.End(At(6));
  EXPECT_EQ(unlinked.abandon_at(true), Time::max());
  for (const State state : {State::kNew, State::kEnding, State::kLinked}) {
    Session session = In(state);
    session.channel().Push(FrameType::kQuiet, QuietFrame{});
    EXPECT_EQ(session.abandon_at(true), Time::max());
  }
}

TEST(SessionTest, WhatWasPostedUntilTheLossPrecedes) {
  const Session session = In(State::kUnlinked);
  EXPECT_TRUE(session.Precedes(At(5)));
  EXPECT_FALSE(session.Precedes(At(5) + Duration(1)));
  EXPECT_FALSE(In(State::kLinked).Precedes(At(1)));
  // Or until the end, where that came first: the peer may have noticed a loss before this side.
  EXPECT_TRUE(In(State::kEnding).Precedes(At(6)));
  EXPECT_FALSE(In(State::kEnding).Precedes(At(6) + Duration(1)));
}

TEST(SessionTest, AMessageWithoutANumberAcknowledges) {
  Session session = In(State::kLinked);
  EXPECT_OK(session.OnNumbered(Numbered(1), Ignore));
  EXPECT_OK(session.OnNumbered(Numbered(2), Ignore));
  const std::string ping = session.Message(FrameType::kPing, PingFrame{.nonce = 7});
  const auto envelope = DecodeEnvelope(std::as_bytes(std::span(ping)));
  ASSERT_OK(envelope);
  EXPECT_EQ(envelope->type, FrameType::kPing);
  EXPECT_EQ(envelope->sequence, 0u);
  EXPECT_EQ(envelope->ack, 2u);
  const auto frame = Decode<PingFrame>(envelope->body);
  ASSERT_OK(frame);
  EXPECT_EQ(frame->nonce, 7u);
}

TEST(SessionTest, AFrameIsTakenOnceAndAnErrorIsPassedOn) {
  Session session = In(State::kLinked);
  int taken = 0;
  const auto take = [&](const ReliableChannel::Incoming& frame) {
    EXPECT_EQ(frame.type, FrameType::kCredit);
    ++taken;
    return absl::OkStatus();
  };
  EXPECT_OK(session.OnNumbered(Numbered(2), take));
  EXPECT_EQ(taken, 0);
  EXPECT_OK(session.OnNumbered(Numbered(1), take));
  EXPECT_OK(session.OnNumbered(Numbered(1), take));
  EXPECT_EQ(taken, 2);
  const auto fail = [](const auto&) { return absl::DataLossError("bad"); };
  EXPECT_TRUE(Fails(session.OnNumbered(Numbered(3), fail), absl::StatusCode::kDataLoss, {"bad"}));
}

TEST(SessionTest, ATargetThatAcknowledgesNothingBreaksTheProtocol) {
  Session session = In(State::kLinked);
  for (size_t i = 0; i < ReliableChannel::kMaxKept; ++i)
    session.channel().Push(FrameType::kAck, "");
  EXPECT_OK(session.OnNumbered(Numbered(1), Ignore));
  session.channel().Push(FrameType::kAck, "");
  EXPECT_TRUE(Fails(session.OnNumbered(Numbered(2), Ignore), absl::StatusCode::kResourceExhausted,
                    {"it acknowledges nothing"}));
}

// --- beside an oracle ---------------------------------------------------------------------------

enum class Act : uint8_t { kUp, kDown, kEnd, kRenew, kHello, kPush, kSend, kAck, kReceive, kTick };
constexpr int kActs = 10;

// What has happened, in order. The rules are asked of that alone.
class History {
 public:
  explicit History(Time made) : made_(made) {}
  void Add(Act act, Time at) { happened_.push_back({act, at}); }

  uint64_t number() const { return kFirst + Count(Act::kRenew, -1); }
  uint64_t links() const { return Count(Act::kUp, -1) - Count(Act::kDown, -1); }
  bool over() const { return Last(Act::kEnd) > Last(Act::kRenew); }
  bool was_up() const { return Last(Act::kUp) > Last(Act::kRenew); }
  bool knows_peer() const { return Last(Act::kHello) > Last(Act::kRenew); }
  // The last time at which a session lost its last link, or ended with one.
  Time unlinked() const {
    if (links() > 0 && !over()) return Time{};
    Time since = made_;
    uint64_t up = 0;
    bool ended = false;
    for (const Entry& entry : happened_) {
      if (entry.act == Act::kRenew) ended = false;
      if (entry.act == Act::kUp) ++up;
      if (entry.act == Act::kDown && --up == 0 && !ended) since = entry.at;
      if (entry.act == Act::kEnd && up > 0 && !ended) since = entry.at;
      if (entry.act == Act::kEnd) ended = true;
    }
    return since;
  }
  // Of the present session.
  uint64_t pushed() const { return Count(Act::kPush, Last(Act::kRenew)); }
  uint64_t received() const { return Count(Act::kReceive, Last(Act::kRenew)); }
  // Frames that were handed over at any time in this session.
  uint64_t sent() const {
    const int renewed = Last(Act::kRenew);
    return Last(Act::kSend) > renewed ? Between(Act::kPush, renewed, Last(Act::kSend)) : 0;
  }
  uint64_t acknowledged() const {
    const int renewed = Last(Act::kRenew);
    const int acked = Last(Act::kAck);
    if (acked < renewed) return 0;
    int handed = -1;  // the last that was handed over before the acknowledgement
    for (int i = renewed + 1; i < acked; ++i) {
      if (happened_[static_cast<size_t>(i)].act == Act::kSend) handed = i;
    }
    return handed < 0 ? 0 : Between(Act::kPush, renewed, handed);
  }
  // How many are handed over now.
  uint64_t to_send() const {
    const int from = std::max(Last(Act::kRenew), Rewound());
    const bool handed = Last(Act::kSend) > from;
    const uint64_t begin = handed ? sent() : 0;
    return pushed() - std::max(begin, acknowledged());
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
  // The last loss, or first connection.
  int Rewound() const {
    int last = -1;
    int up = 0;
    for (int i = 0; i < static_cast<int>(happened_.size()); ++i) {
      const Act act = happened_[static_cast<size_t>(i)].act;
      if (act == Act::kDown) --up;
      if (act == Act::kDown || (act == Act::kUp && up++ == 0)) last = i;
    }
    return last;
  }
  uint64_t Between(Act act, int after, int before) const {
    uint64_t count = 0;
    for (int i = after + 1; i < before; ++i) {
      count += happened_[static_cast<size_t>(i)].act == act ? 1 : 0;
    }
    return count;
  }
  uint64_t Count(Act act, int after) const {
    return Between(act, after, static_cast<int>(happened_.size()));
  }

  Time made_;
  std::vector<Entry> happened_{};
};

struct World {
  Session session = Made();
  History known{At(1)};
  Time now = At(1);
};

void Check(const World& world, const std::string& path) {
  const auto& [session, known, now] = world;
  EXPECT_EQ(session.number(), known.number()) << path;
  EXPECT_EQ(session.peer_number(), known.knows_peer() ? kTheirs : 0) << path;
  EXPECT_EQ(session.unlinked(), known.unlinked()) << path;
  const State idle = known.was_up() ? State::kUnlinked : State::kNew;
  EXPECT_EQ(session.state(),
            known.over() ? State::kEnding : (known.links() > 0 ? State::kLinked : idle))
      << path;
  EXPECT_EQ(session.renewable(), known.over() && known.links() == 0) << path;
  EXPECT_EQ(session.channel().received(), known.received()) << path;
  const bool kept = known.pushed() > known.acknowledged();
  EXPECT_EQ(session.channel().kept() > 0, kept) << path;
  const bool away = known.was_up() && known.links() == 0 && !known.over();
  for (const bool waits : {false, true}) {
    EXPECT_EQ(session.abandon_at(waits), away && waits ? known.unlinked() + kAbandon : Time::max())
        << path;
  }
  EXPECT_EQ(session.Precedes(now), now <= known.unlinked()) << path;
  EXPECT_FALSE(session.Precedes(now + Duration(1))) << path;
}

bool May(const World& world, Act act) {
  const History& known = world.known;
  switch (act) {
    case Act::kUp:
    case Act::kHello:
      return !known.over();
    case Act::kDown:
      return known.links() > 0;
    case Act::kRenew:
      return known.over() && known.links() == 0;
    default:
      return true;
  }
}

void Apply(World& world, Act act, const std::string& path) {
  auto& [session, known, now] = world;
  switch (act) {
    case Act::kUp:
      session.OnLinkUp();
      break;
    case Act::kDown:
      session.OnLinkDown(now);
      break;
    case Act::kEnd:
      session.End(now);
      break;
    case Act::kRenew:
      session.Renew();
      break;
    case Act::kHello:
      EXPECT_EQ(session.OnHello(TheirHello(kTheirs, 0)), Session::Meaning::kTaken) << path;
      break;
    case Act::kPush:
      session.channel().Push(FrameType::kQuiet, QuietFrame{});
      break;
    case Act::kSend:
      EXPECT_EQ(SendAll(session.channel()), known.to_send()) << path;
      break;
    case Act::kAck:
      EXPECT_OK(session.channel().OnAck(known.sent())) << path;
      EXPECT_FALSE(session.channel().OnAck(known.sent() + 1).ok()) << path;
      break;
    case Act::kReceive:
      EXPECT_OK(session.OnNumbered(Numbered(known.received() + 1), Ignore)) << path;
      break;
    case Act::kTick:
      now += kMs;
      break;
  }
  known.Add(act, now);
}

void Walk(const World& world, const std::string& path, int depth, uint64_t& steps) {
  Check(world, path);
  if (depth == 0 || ::testing::Test::HasFailure()) return;
  for (int act = 0; act < kActs; ++act) {
    if (!May(world, static_cast<Act>(act))) continue;
    World next = world;
    const std::string further = absl::StrCat(path, act);
    Apply(next, static_cast<Act>(act), further);
    ++steps;
    Walk(next, further, depth - 1, steps);
  }
}

TEST(SessionExhaustive, EverySequenceOfEvents) {
  uint64_t steps = 0;
  Walk(World(), "", kSanitized ? 4 : 6, steps);
  std::printf("%llu steps\n", static_cast<unsigned long long>(steps));
}

TEST(SessionRandom, LongSequencesOfEvents) {
  for (int round = 0; round < Scaled(500); ++round) {
    std::mt19937_64 random(TestSeed() * 10'000 + static_cast<uint64_t>(round));
    World world;
    std::string path = absl::StrCat("round ", round, ": ");
    for (int step = 0; step < 60 && !::testing::Test::HasFailure(); ++step) {
      const int act = static_cast<int>(random() % kActs);
      if (!May(world, static_cast<Act>(act))) continue;
      absl::StrAppend(&path, act);
      Apply(world, static_cast<Act>(act), path);
      Check(world, path);
    }
  }
}

}  // namespace
}  // namespace kvxfer::testing
