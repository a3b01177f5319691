// A session as its two halves share it: which link its frames take, for which half each frame is,
// and how it ends for both.

#include "src/agent/session/shared_session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

using State = Session::State;
using Ends = SessionHalf::Ends;

Session::Party PartyOf(uint8_t first, const std::string& name) {
  Session::Party party{.name = name};
  party.incarnation.bytes[0] = first;
  return party;
}

// The peer is pinged every 10 s, which is later than any of these tests, but for those of
// PeerWatch.
constexpr PeerWatch::Pace kSlow{.heartbeat = std::chrono::hours(24),
                                .suspect_after = std::chrono::hours(72)};

// A connection as the session sees it.
class BareLink : public SessionLink {
 public:
  BareLink(size_t backend_index, bool dialled_here, bool carries_control = true)
      : SessionLink(backend_index, dialled_here, carries_control,
                    std::make_unique<FakeEndpoint>()) {}
  void OnEvent(Event& /*event*/) override {}
  bool open() const override { return is_open; }
  void Close(const absl::Status& why) override {
    is_open = false;
    closed = why;
  }
  FakeEndpoint& wire() { return static_cast<FakeEndpoint&>(*endpoint); }
  // The types of the messages that were sent over it since the last call.
  std::vector<FrameType> Sent() {
    std::vector<FrameType> types;
    messages = wire().sent.size();
    for (const std::string& message : std::exchange(wire().sent, {})) {
      for (std::span<const std::byte> left = std::as_bytes(std::span(message)); !left.empty();) {
        types.push_back(DecodeEnvelope(TakeFrame(left))->type);
      }
    }
    return types;
  }
  bool is_open = true;
  absl::Status closed{};
  size_t messages = 0;  // in which they came
};

// Both halves: what has happened to them, in order, in one list.
class Half : public InitiatorHalf {
 public:
  Half(std::string name, std::vector<std::string>* log) : name_(std::move(name)), log_(log) {}
  void Mark() override { ++marks; }
  bool Awaits() const override { return awaits; }
  absl::Status OnFrame(const ReliableChannel::Incoming& frame) override {
    log_->push_back(name_ + " takes " + std::to_string(static_cast<int>(frame.type)));
    return answer;
  }
  void OnFramesTaken() override { log_->push_back(name_ + " acts"); }
  void OnSessionEnd(const absl::Status& why, Ends which) override {
    log_->push_back(name_ + (which == Ends::kAll ? " ends all: " : " ends: ") +
                    std::string(why.message()));
  }
  void OnSessionRenewed() override { log_->push_back(name_ + " begins"); }
  absl::Status answer{};
  int marks = 0;
  bool awaits = false;

 private:
  const std::string name_;
  std::vector<std::string>* const log_;
};

class SharedSessionTest : public ::testing::Test, public SharedSession::User {
 protected:
  // What happened since the last call.
  std::vector<std::string> Log() { return std::exchange(log_, {}); }
  using Lines = std::vector<std::string>;

  Envelope Numbered(FrameType type) { return {.type = type, .sequence = ++sequence_}; }
  void Say(size_t frames = 1) {
    for (size_t i = 0; i < frames; ++i) {
      shared_.session().channel().Push(FrameType::kQuiet, QuietFrame{});
    }
  }
  void Lose(const SessionLink& link) {
    shared_.OnLinkDown(link, absl::UnavailableError("cut"), Now());
  }

  std::vector<std::string> log_;
  Time silent_since_{};
  uint64_t sequence_ = 0;
  TimerHeap timers_;
  SharedSession shared_{&timers_, this, PartyOf(1, "here"), PartyOf(2, "there"), kSlow};
  Half target_{"target", &log_};
  Half initiator_{"initiator", &log_};

 private:
  void OnSilent(SharedSession& /*shared*/, Time heard) override {
    log_.emplace_back("silent");
    silent_since_ = heard;
  }
  void OnUnlinked(SharedSession& /*shared*/, const absl::Status& why) override {
    log_.push_back("unlinked: " + std::string(why.message()));
  }
  void OnOver(SharedSession& shared) override {
    EXPECT_TRUE(shared.session().renewable());
    log_.emplace_back("over");
  }
};

TEST_F(SharedSessionTest, FramesTakeTheFirstBackendWhoeverDialled) {
  BareLink slow(3, true);
  BareLink fast(1, false);
  Say();
  shared_.Flush(nullptr);
  EXPECT_FALSE(shared_.linked());
  shared_.OnLinkUp(slow);
  shared_.Flush(nullptr);
  EXPECT_EQ(slow.Sent().size(), 1u);
  EXPECT_FALSE(shared_.PeerDialled());
  shared_.OnLinkUp(fast);
  EXPECT_TRUE(shared_.PeerDialled());
  Say(2);
  shared_.Flush(nullptr);
  EXPECT_EQ(fast.Sent().size(), 2u);
  EXPECT_EQ(fast.messages, 1u) << "they go together";
  EXPECT_TRUE(slow.Sent().empty());
  // Expect what goes together with data to take the data's link.
  Say();
  shared_.Flush(&slow);
  EXPECT_EQ(slow.Sent().size(), 1u);
  // Expect nothing over a link that closes.
  fast.is_open = false;
  EXPECT_FALSE(shared_.PeerDialled());
  Say();
  shared_.Flush(nullptr);
  EXPECT_EQ(slow.Sent().size(), 1u);
  EXPECT_TRUE(fast.Sent().empty());
}

// So that both sides speak over the same one.
TEST_F(SharedSessionTest, OfTwoLinksThatOfTheSmallerIncarnationIsTaken) {
  for (const bool smaller : {true, false}) {
    SharedSession shared(&timers_, this, PartyOf(smaller ? 1 : 3, "here"), PartyOf(2, "there"),
                         kSlow);
    BareLink own(0, true);
    BareLink theirs(0, false);
    shared.OnLinkUp(theirs);
    shared.OnLinkUp(own);
    shared.session().channel().Push(FrameType::kQuiet, QuietFrame{});
    shared.Flush(nullptr);
    EXPECT_EQ(own.Sent().size(), smaller ? 1u : 0u);
    EXPECT_EQ(theirs.Sent().size(), smaller ? 0u : 1u);
  }
}

// AgentOptions::control may keep frames from a link; data it moves all the same.
TEST_F(SharedSessionTest, WhatCarriesNoFramesIsNotTaken) {
  BareLink data(0, true, false);
  BareLink carrier(1, false);
  shared_.OnLinkUp(data);
  EXPECT_FALSE(shared_.linked());
  Say();
  shared_.Flush(nullptr);
  shared_.Flush(&data);
  EXPECT_TRUE(data.Sent().empty());
  shared_.OnLinkUp(carrier);
  EXPECT_TRUE(shared_.linked());
  shared_.Flush(&data);
  EXPECT_EQ(carrier.Sent().size(), 1u);
  Say();
  shared_.Flush(nullptr);
  EXPECT_EQ(carrier.Sent().size(), 1u);
  EXPECT_TRUE(data.Sent().empty());
}

TEST_F(SharedSessionTest, WithTheLastCarrierTheOtherLinksGo) {
  BareLink data(0, true, false);
  BareLink more(0, false, false);
  BareLink first(1, true);
  BareLink second(1, false);
  for (BareLink* link : {&data, &more, &first, &second}) shared_.OnLinkUp(*link);
  Lose(first);
  EXPECT_OK(data.closed);
  Lose(second);
  for (const BareLink* link : {&data, &more}) {
    EXPECT_THAT(std::string(link->closed.message()),
                ::testing::AllOf(::testing::HasSubstr("carried control frames"),
                                 ::testing::HasSubstr("cut")));
  }
  EXPECT_TRUE(Log().empty());
  Lose(data);
  Lose(more);
  EXPECT_EQ(Log(), (Lines{"unlinked: cut"}));
}

TEST_F(SharedSessionTest, WhatALinkHadTakenGoesAgainOverAnother) {
  BareLink own(0, true);
  BareLink theirs(0, false);
  shared_.OnLinkUp(own);
  shared_.OnLinkUp(theirs);
  Say(3);
  shared_.Flush(nullptr);
  EXPECT_EQ(own.Sent().size(), 3u);
  Lose(own);
  shared_.Flush(nullptr);
  EXPECT_EQ(theirs.Sent().size(), 3u);
  EXPECT_TRUE(Log().empty()) << "it is still linked";
}

TEST_F(SharedSessionTest, AFullLinkIsTriedAgain) {
  BareLink link(0, true);
  shared_.OnLinkUp(link);
  link.wire().messages = 1;
  Say();
  shared_.Flush(nullptr);
  Say(2);
  shared_.Flush(nullptr);
  EXPECT_EQ(link.Sent().size(), 1u);
  link.wire().messages = 100;
  shared_.Flush(nullptr);
  EXPECT_EQ(link.Sent().size(), 2u);
}

// What is large goes by itself.
TEST_F(SharedSessionTest, FramesGoTogetherWhereTheyAreSmall) {
  BareLink link(0, true);
  shared_.OnLinkUp(link);
  ReliableChannel& channel = shared_.session().channel();
  for (const size_t bytes : std::vector<size_t>{100, 100, 10'000, 100, 10'000, 10'000}) {
    channel.Push(FrameType::kOpen, std::string(bytes, 'x'));
  }
  shared_.Flush(nullptr);
  EXPECT_EQ(link.Sent().size(), 6u);
  EXPECT_EQ(link.messages, 5u);
  EXPECT_EQ(channel.NextToSend(), nullptr);
}

// The answers may go together with what the application answers.
TEST_F(SharedSessionTest, AnswersWaitForWhatThisSideInitiates) {
  BareLink link(0, true);
  shared_.OnLinkUp(link);
  ReliableChannel& channel = shared_.session().channel();
  channel.Push(FrameType::kReleased, ReleasedFrame{});
  shared_.Flush(nullptr, true);
  EXPECT_TRUE(link.Sent().empty());
  channel.Push(FrameType::kOpen, OpenFrame{.transfer = 1});
  shared_.Flush(nullptr, true);
  EXPECT_EQ(link.Sent(), (std::vector<FrameType>{FrameType::kReleased, FrameType::kOpen}));
  EXPECT_EQ(link.messages, 1u);
  channel.Push(FrameType::kReleased, ReleasedFrame{});
  shared_.Flush(nullptr);
  EXPECT_EQ(link.Sent().size(), 1u);
}

// --- links that answer nothing ---

class Silence : public SharedSessionTest {
 protected:
  Silence() {
    shared_.OnLinkUp(best_);
    shared_.OnLinkUp(other_);
    Say();
    shared_.Flush(nullptr);
    EXPECT_EQ(best_.Sent(), kFrame);
  }
  // Its timers, for as long as there are any.
  void Pass(Duration time) {
    const Time end = now_ + time;
    while (timers_.next() <= end) {
      now_ = std::max(now_, timers_.next());
      timers_.Run(now_);
    }
    now_ = end;
  }
  void Pong(BareLink& link, uint64_t acknowledged) {
    EXPECT_OK(shared_.OnMessage(
        link,
        {.type = FrameType::kPong, .ack = acknowledged, .body = std::as_bytes(std::span(body_))}));
  }
  void Ping(BareLink& link) {
    EXPECT_OK(shared_.OnMessage(
        link, {.type = FrameType::kPing, .body = std::as_bytes(std::span(body_))}));
  }

  using Types = std::vector<FrameType>;
  const Types kFrame{FrameType::kQuiet};
  const Types kPing{FrameType::kPing};
  const std::string body_ = Encode(PingFrame{.nonce = 1});
  // The session reads the clock itself; looks at links are on a grid.
  const Time begin_ = Now();
  Time now_ = begin_ - begin_.time_since_epoch() % FrameWatch::kLook;
  // No look at a link is due: what is, an idle ping or a sweep, is far away.
  bool NothingWaits() const { return timers_.next() >= now_ + 10 * FrameWatch::kLook; }
  BareLink best_{0, true};
  BareLink other_{0, false};
};

TEST_F(Silence, FramesAreSentAgainOverALinkThatAnswers) {
  Pass(FrameWatch::kLook);
  EXPECT_EQ(best_.Sent(), kPing);
  Pass(FrameWatch::kAnswersWithin - Duration(1));
  EXPECT_TRUE(other_.Sent().empty());
  Pass(FrameWatch::kLook);
  EXPECT_EQ(other_.Sent(), kFrame);
  EXPECT_TRUE(best_.Sent().empty());
  // Expect what follows to take the same link, until the first one answers.
  Say();
  shared_.Flush(nullptr);
  EXPECT_EQ(other_.Sent(), kFrame);
  Pong(best_, 2);
  Say();
  shared_.Flush(nullptr);
  EXPECT_EQ(best_.Sent(), kFrame);
}

TEST_F(Silence, AnAnswerIsEnough) {
  Pass(FrameWatch::kLook);
  EXPECT_EQ(best_.Sent(), kPing);
  Pong(best_, 1);
  Pass(2 * FrameWatch::kLook);
  EXPECT_TRUE(NothingWaits());
  // Expect one question for each frame that waits, not for each look.
  for (int i = 0; i < 10; ++i) {
    Say();
    shared_.Flush(nullptr);
    EXPECT_EQ(best_.Sent(), kFrame);
    Pass(2 * FrameWatch::kLook);
    EXPECT_EQ(best_.Sent(), kPing);
    Pong(best_, 2 + static_cast<uint64_t>(i));
  }
  Pass(std::chrono::seconds(1));
  EXPECT_TRUE(best_.Sent().empty());
  EXPECT_TRUE(other_.Sent().empty());
}

// Expect no question where its answer would change nothing.
TEST_F(Silence, WithoutAChoiceNobodyIsAsked) {
  other_.is_open = false;
  const auto expect_none = [this] {
    Pass(std::chrono::seconds(1));
    EXPECT_TRUE(NothingWaits());
    EXPECT_TRUE(best_.Sent().empty());
  };
  expect_none();
  Lose(other_);
  expect_none();
  BareLink data(0, false, false);
  shared_.OnLinkUp(data);
  expect_none();
  // Expect the question when there is a choice.
  BareLink control(0, false);
  shared_.OnLinkUp(control);
  Pass(2 * FrameWatch::kLook);
  EXPECT_EQ(best_.Sent(), kPing);
}

// The peer has stopped. Expect the frames over each link once, not again and again.
TEST_F(Silence, NoLinkAnswers) {
  Pass(std::chrono::seconds(10));
  EXPECT_EQ(best_.Sent(), kPing);
  EXPECT_EQ(other_.Sent(), (Types{FrameType::kQuiet, FrameType::kPing}));
  Pong(other_, 0);
  Say();
  shared_.Flush(nullptr);
  EXPECT_EQ(other_.Sent(), kFrame);
}

// OPEN goes over the link of its bytes; the link that is asked did not have it.
TEST_F(Silence, WhatWentOverAnotherLinkIsSentAgain) {
  Pong(best_, 1);
  Say();
  shared_.Flush(&other_);
  EXPECT_EQ(other_.Sent(), kFrame);
  Pass(2 * FrameWatch::kLook);
  EXPECT_EQ(best_.Sent(), kPing);
  Pong(best_, 1);
  Pass(FrameWatch::kLook);
  EXPECT_EQ(best_.Sent(), kFrame);
}

// Expect the rest of what is sent again to be sent when there is room.
TEST_F(Silence, WhereThereIsNoRoomToSendAgainBothHalvesTry) {
  Pong(best_, 1);
  shared_.SetTarget(&target_);
  Say();
  shared_.Flush(&other_);
  Pass(2 * FrameWatch::kLook);
  EXPECT_EQ(best_.Sent(), kPing);
  Pong(best_, 1);
  best_.wire().messages = 0;
  target_.marks = 0;
  Pass(FrameWatch::kLook);
  EXPECT_EQ(target_.marks, 1);
  best_.wire().messages = 1;
  EXPECT_TRUE(shared_.Flush(nullptr));
  EXPECT_EQ(best_.Sent(), kFrame);
  shared_.SetTarget(nullptr);
}

// Expect what goes with data to take another link than the data while that link is silent.
TEST_F(Silence, DataDoesNotTakeItsFrameOverASilentLink) {
  other_.Ping(shared_.session(), now_);
  EXPECT_EQ(other_.Sent(), kPing);
  Say();
  shared_.Flush(&other_);
  EXPECT_EQ(best_.Sent(), kFrame);
  Pong(other_, 2);
  Say();
  shared_.Flush(&other_);
  EXPECT_EQ(other_.Sent(), kFrame);
}

// A ping for which there was no room is never answered, so it is sent again once the peer is heard.
TEST_F(Silence, AFullLinkIsFoundToAnswerAgain) {
  best_.wire().messages = 0;
  Pass(std::chrono::seconds(1));
  EXPECT_EQ(other_.Sent(), (Types{FrameType::kQuiet, FrameType::kPing}));
  best_.wire().messages = 100;
  Ping(best_);
  EXPECT_EQ(best_.Sent(), (Types{FrameType::kPong, FrameType::kPing}));
  Pong(best_, 1);
  Say();
  shared_.Flush(nullptr);
  EXPECT_EQ(best_.Sent(), kFrame);
}

TEST_F(Silence, APingIsAnsweredOverItsLink) {
  Ping(other_);
  EXPECT_EQ(other_.Sent(), Types{FrameType::kPong});
  EXPECT_FALSE(shared_.OnMessage(other_, {.type = FrameType::kPing}).ok());
}

// --- a peer that says nothing ---

class SilentPeer : public SharedSessionTest {
 protected:
  SilentPeer() {
    for (BareLink* link : {&own_, &theirs_, &data_}) {
      link->heard = now_;
      watched_.OnLinkUp(*link);
    }
    watched_.SetTarget(&target_);
    watched_.Enter(&initiator_);
  }

 public:
  ~SilentPeer() override {
    watched_.SetTarget(nullptr);
    watched_.Leave(&initiator_);
  }

 protected:
  void Pass(Duration time) {
    const Time end = now_ + time;
    while (timers_.next() <= end) {
      now_ = std::max(now_, timers_.next());
      timers_.Run(now_);
      if (speaks_ != nullptr) speaks_->heard = now_ + kMs;
    }
    now_ = end;
  }
  static size_t Pings(BareLink& link) { return link.Sent().size(); }

  const PeerWatch::Pace pace_{};
  SharedSession watched_{&timers_, this, PartyOf(1, "here"), PartyOf(2, "there"), pace_};
  Time now_ = Now();
  BareLink own_{0, true};
  BareLink theirs_{0, false};
  BareLink data_{1, true, false};
  BareLink* speaks_ = nullptr;  // answers pings
};

TEST_F(SilentPeer, IsPingedOverEveryLinkWhileEitherHalfWaits) {
  for (Half* half : {&initiator_, &target_}) {
    half->awaits = true;
    watched_.Await(now_);
    Pass(pace_.heartbeat);
    for (BareLink* link : {&own_, &theirs_, &data_}) EXPECT_EQ(Pings(*link), 1u);
    half->awaits = false;
    own_.heard = now_ + kMs;
    Pass(4 * pace_.heartbeat);
    Pings(own_);
    Pings(data_);
    EXPECT_EQ(Pings(theirs_), 0u);
  }
}

// Its own links it keeps alive itself.
TEST_F(SilentPeer, IsPingedOverTheLinksOfThisSideWhenIdle) {
  speaks_ = &own_;
  Pass(std::chrono::minutes(1));
  EXPECT_GT(Pings(own_), 5u);
  EXPECT_GT(Pings(data_), 5u);
  EXPECT_EQ(Pings(theirs_), 0u);
  EXPECT_TRUE(Log().empty());
}

TEST_F(SilentPeer, IsReportedInTime) {
  target_.awaits = true;
  const Time since = now_;
  watched_.Await(now_);
  Pass(pace_.suspect_after);
  ASSERT_FALSE(Log().empty());
  EXPECT_EQ(silent_since_, since);
}

TEST_F(SilentPeer, IsNotSilentIfItSpeaksOverAnyLink) {
  for (BareLink* link : {&own_, &theirs_, &data_}) {
    speaks_ = link;
    initiator_.awaits = true;
    watched_.Await(now_);
    Pass(5 * pace_.suspect_after);
    EXPECT_TRUE(Log().empty());
  }
}

TEST_F(SilentPeer, IsNotLookedAtWithoutALink) {
  target_.awaits = true;
  for (const BareLink* link : {&own_, &theirs_, &data_}) {
    watched_.OnLinkDown(*link, absl::UnavailableError("cut"), now_);
  }
  Log();
  Pass(std::chrono::seconds(30));
  EXPECT_TRUE(Log().empty());
}

// Expect each half to be told of what it has to send or has to do, and of every link.
TEST_F(SharedSessionTest, MarksWhoHasSomethingToDo) {
  const auto marks = [this] {
    return std::pair(std::exchange(initiator_.marks, 0), std::exchange(target_.marks, 0));
  };
  shared_.Enter(&initiator_);
  Say();
  EXPECT_EQ(marks(), std::pair(1, 0));
  shared_.session().channel().Push(FrameType::kReleased, ReleasedFrame{});
  EXPECT_EQ(marks(), std::pair(1, 0)) << "there is nobody else to flush it";
  shared_.SetTarget(&target_);
  shared_.session().channel().Push(FrameType::kReleased, ReleasedFrame{});
  EXPECT_EQ(marks(), std::pair(0, 1));
  BareLink link(0, true);
  shared_.OnLinkUp(link);
  EXPECT_EQ(marks(), std::pair(1, 1));
  EXPECT_OK(shared_.OnMessage(link, Numbered(FrameType::kOpen)));
  EXPECT_EQ(marks(), std::pair(0, 1));
  EXPECT_OK(shared_.OnMessage(link, Numbered(FrameType::kReleased)));
  EXPECT_EQ(marks(), std::pair(1, 0));
  Lose(link);
  EXPECT_EQ(marks(), std::pair(1, 1));
  // Expect the session that follows to tell too.
  shared_.End(absl::UnavailableError("over"), Ends::kAll);
  marks();
  Say();
  EXPECT_EQ(marks(), std::pair(1, 0));
  // Expect whoever has waited behind the first to be told that it is its turn.
  Half next("next", &log_);
  shared_.Enter(&next);
  shared_.Leave(&initiator_);
  EXPECT_EQ(next.marks, 1);
  shared_.Leave(&next);
  shared_.SetTarget(nullptr);
}

TEST_F(SharedSessionTest, SaysWhenThereIsNoRoom) {
  BareLink link(0, true);
  Say();
  EXPECT_TRUE(shared_.Flush(nullptr)) << "a link that comes up marks both halves";
  shared_.OnLinkUp(link);
  link.wire().messages = 0;
  EXPECT_FALSE(shared_.Flush(nullptr));
  link.wire().messages = 1;
  EXPECT_TRUE(shared_.Flush(nullptr));
  EXPECT_EQ(link.Sent(), std::vector<FrameType>{FrameType::kQuiet});
}

TEST_F(SharedSessionTest, WhatNobodyConnectsEnds) {
  shared_.SetTarget(&target_);
  BareLink link(0, true);
  shared_.OnLinkUp(link);
  Lose(link);
  const Time due = shared_.session().unlinked() + SharedSession::kSweepAfter;
  timers_.Run(due - Duration(1));
  EXPECT_EQ(shared_.session().state(), State::kUnlinked);
  EXPECT_EQ(timers_.next(), due);
  // Expect a session that was linked in between to have its whole time.
  shared_.OnLinkUp(link);
  timers_.Run(due);
  EXPECT_EQ(shared_.session().state(), State::kLinked);
  Lose(link);
  timers_.Run(due);
  EXPECT_EQ(shared_.session().state(), State::kUnlinked);
  timers_.Run(timers_.next());
  EXPECT_EQ(shared_.session().state(), State::kNew);
  shared_.SetTarget(nullptr);
}

// Frames of either half are acknowledged together, and an acknowledgement is not acknowledged.
TEST_F(SharedSessionTest, OneStreamOfAcknowledgements) {
  BareLink link(0, true);
  shared_.SetTarget(&target_);
  shared_.Enter(&initiator_);
  shared_.OnLinkUp(link);
  for (uint64_t i = 0; i < ReliableChannel::kAckEvery; ++i) {
    shared_.Flush(nullptr);
    EXPECT_TRUE(link.Sent().empty());
    const FrameType type = i % 2 == 0 ? FrameType::kOpen : FrameType::kReleased;
    EXPECT_OK(shared_.OnMessage(link, Numbered(type)));
  }
  // Expect one that is held back not to be forgotten.
  EXPECT_FALSE(shared_.Flush(nullptr, true));
  EXPECT_TRUE(link.Sent().empty());
  EXPECT_TRUE(shared_.Flush(nullptr));
  EXPECT_EQ(link.Sent(), std::vector<FrameType>{FrameType::kAck});
  shared_.Flush(nullptr);
  EXPECT_TRUE(link.Sent().empty());
}

TEST_F(SharedSessionTest, EachFrameIsForOneHalf) {
  BareLink link(0, false);
  shared_.SetTarget(&target_);
  shared_.Enter(&initiator_);
  shared_.OnLinkUp(link);
  EXPECT_OK(shared_.OnMessage(link, Numbered(FrameType::kOpen)));
  EXPECT_EQ(Log(), (Lines{"target takes 4", "target acts"}));
  EXPECT_OK(shared_.OnMessage(link, Numbered(FrameType::kReleased)));
  EXPECT_EQ(Log(), (Lines{"initiator takes 10", "initiator acts", "target acts"}));
  // Expect an answer to be told before what the peer began after it, also where both waited for a
  // frame before them.
  const Envelope missing = Numbered(FrameType::kOpen);
  EXPECT_OK(shared_.OnMessage(link, Numbered(FrameType::kReleased)));
  EXPECT_OK(shared_.OnMessage(link, Numbered(FrameType::kOpen)));
  EXPECT_EQ(Log(), (Lines{"target acts", "target acts"}));
  EXPECT_OK(shared_.OnMessage(link, missing));
  EXPECT_EQ(Log(), (Lines{"target takes 4", "initiator takes 10", "initiator acts",
                          "target takes 4", "target acts"}));
}

TEST_F(SharedSessionTest, FramesForAHalfThatIsNotThere) {
  BareLink link(0, false);
  shared_.OnLinkUp(link);
  EXPECT_FALSE(shared_.OnMessage(link, Numbered(FrameType::kOpen)).ok());
  EXPECT_FALSE(shared_.OnMessage(link, Numbered(FrameType::kReleased)).ok());
}

TEST_F(SharedSessionTest, ItEndsForBothHalvesAndBeginsAgainWhenItsLinksAreDown) {
  BareLink own(0, true);
  BareLink theirs(0, false);
  shared_.SetTarget(&target_);
  shared_.Enter(&initiator_);
  shared_.OnLinkUp(own);
  shared_.OnLinkUp(theirs);
  const uint64_t number = shared_.session().number();
  shared_.End(absl::UnavailableError("enough"), Ends::kPreceding);
  EXPECT_EQ(Log(), (Lines{"initiator ends: enough", "target ends: enough"}));
  // Expect it to end once, and nothing of it to be sent or taken.
  shared_.End(absl::UnavailableError("again"), Ends::kAll);
  shared_.Fail(absl::InvalidArgumentError("nonsense"));
  Say();
  shared_.Flush(nullptr);
  EXPECT_TRUE(own.Sent().empty());
  EXPECT_FALSE(shared_.linked());
  EXPECT_OK(shared_.OnMessage(own, Numbered(FrameType::kOpen)));
  EXPECT_EQ(Log(), (Lines{"target acts"}));
  Lose(own);
  EXPECT_TRUE(Log().empty());
  EXPECT_EQ(shared_.session().number(), number);
  Lose(theirs);
  EXPECT_EQ(Log(), (Lines{"over", "initiator begins"}));
  EXPECT_EQ(shared_.session().number(), number + 1);
  EXPECT_EQ(shared_.session().state(), State::kNew);
}

TEST_F(SharedSessionTest, WithoutALinkItEndsAtOnce) {
  BareLink link(0, true);
  shared_.Enter(&initiator_);
  shared_.OnLinkUp(link);
  Lose(link);
  EXPECT_EQ(Log(), (Lines{"unlinked: cut"}));
  shared_.Fail(absl::InvalidArgumentError("nonsense"));
  EXPECT_EQ(Log(), (Lines{"initiator ends all: peer there broke the protocol: nonsense", "over",
                          "initiator begins"}));
}

TEST_F(SharedSessionTest, APeerThatIsAddedAgainWaitsForTheOneBefore) {
  Half heir("heir", &log_);
  BareLink link(0, true);
  shared_.Enter(&initiator_);
  shared_.Enter(&heir);
  EXPECT_TRUE(shared_.IsActive(&initiator_));
  EXPECT_FALSE(shared_.IsActive(&heir));
  shared_.OnLinkUp(link);
  shared_.End(absl::CancelledError("removed"), Ends::kAll);
  shared_.Leave(&initiator_);
  EXPECT_TRUE(shared_.IsActive(&heir));
  EXPECT_EQ(Log(), (Lines{"initiator ends all: removed"}));
  Lose(link);
  EXPECT_EQ(Log(), (Lines{"over", "heir begins"}));
  shared_.Leave(&heir);
  EXPECT_TRUE(shared_.in_use());
  shared_.LetGo();
  shared_.LetGo();
  EXPECT_FALSE(shared_.in_use());
}

}  // namespace
}  // namespace kvxfer::testing
