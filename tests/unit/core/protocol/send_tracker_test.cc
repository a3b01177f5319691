// What a transfer goes through at the initiator, by example. Every small schedule together with the
// target's half is in arrival_tracker_exhaustive_test.cc.

#include "src/core/protocol/send_tracker.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

using Kind = SendTracker::Action::Kind;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Duration kGrace = seconds(1);
constexpr uint64_t kLink = 3;
const Time kNow = Time(seconds(100));
const std::string kText = "payload";
const absl::Status kWhy = absl::UnavailableError("why");

class SendTrackerTest : public ::testing::Test {
 protected:
  using Transfer = SendTracker::Transfer;

  void SetUp() override {
    tracker_.credit().OnCredit({.notifications = 10, .bytes = 1000});
    ASSERT_OK(tracker_.slots().OnGrant({.range = {.first = 0, .count = 4}}));
  }

  // Write, with a notification that has a number, of a target that counts.
  static SendTracker::Request Counted(uint64_t id) {
    SendTracker::Request request = Copied(id);
    request.lanes.emplace(2, false);
    return request;
  }
  // Of which the initiator copies the bytes itself.
  static SendTracker::Request Copied(uint64_t id) {
    return {.id = id,
            .link = kLink,
            .moves = true,
            .ordered = true,
            .notice = Notice::kNotification,
            .notification = &kText,
            .posted = kNow,
            .deadline = kNow + seconds(30)};
  }
  static SendTracker::Request Silent(SendTracker::Request request) {
    request.ordered = false;
    request.notification = nullptr;
    return request;
  }
  SendTracker::Request Leased(uint64_t id) {
    SendTracker::Request request = Silent(Copied(id));
    request.lease = &lease_;
    return request;
  }

  Transfer& Begin(SendTracker::Request request) { return tracker_.Begin(std::move(request), kNow); }
  // Posts the next slice on `rail`; the op is in flight then.
  void Post(Transfer& transfer, uint32_t rail, bool last = true) {
    ASSERT_TRUE(transfer.MayPost());
    transfer.Prepare(last);
    ASSERT_TRUE(transfer.Offer(rail, tracker_.slots()).has_value());
    transfer.OnAccepted(rail);
    tracker_.FinishPosting(transfer);
  }
  // In one slice, on rail 0, whose op has completed.
  Transfer& Whole(SendTracker::Request request) {
    Transfer& transfer = Begin(std::move(request));
    Complete(transfer);
    return transfer;
  }
  void Complete(Transfer& transfer) {
    Post(transfer, 0);
    tracker_.OnCompleted(transfer, kNow);
  }
  // Frames that were pushed since the last call.
  std::vector<FrameType> Said() {
    std::vector<FrameType> types;
    while (const std::string* message = channel_.NextToSend()) {
      const auto envelope = DecodeEnvelope(std::as_bytes(std::span(*message)));
      EXPECT_OK(envelope);
      types.push_back(envelope->type);
      body_.assign(reinterpret_cast<const char*>(envelope->body.data()), envelope->body.size());
      channel_.MessageSent();
    }
    return types;
  }
  template <typename Frame>
  Frame LastSaid() const {
    auto frame = Decode<Frame>(std::as_bytes(std::span(body_)));
    EXPECT_OK(frame);
    return *std::move(frame);
  }
  // What is to be done, the ends kept by transfer; forgets as it is told.
  std::vector<Kind> Done() {
    std::vector<Kind> kinds;
    std::vector<SendTracker::Action> actions;
    tracker_.TakeActions(actions);
    for (const auto& action : actions) {
      kinds.push_back(action.kind);
      if (action.kind == Kind::kEnd) ends_.emplace(action.transfer->id(), action);
      if (action.kind == Kind::kForget) tracker_.Forget(*action.transfer);
    }
    return kinds;
  }
  const SendTracker::Action& EndOf(uint64_t id) const { return ends_.at(id); }
  absl::Status Arrived(uint64_t id) {
    ReleasedFrame frame;
    frame.arrived = {id};
    return tracker_.OnReleased(frame, kNow);
  }
  absl::Status Aborted(uint64_t id, bool delivered = false) {
    ReleasedFrame frame;
    frame.aborted = {{.transfer = id, .delivered = delivered}};
    return tracker_.OnReleased(frame, kNow);
  }
  void Cancel(Transfer& transfer) {
    tracker_.End(transfer, TransferState::kCancelled, kWhy, EndCause::kStopped, kNow);
  }

  const LeasedRead lease_{.lease = "lease", .readers = 2};
  ReliableChannel channel_;
  SendTracker tracker_{&channel_, kGrace};
  std::string body_;
  std::map<uint64_t, SendTracker::Action> ends_;
};

using Kinds = std::vector<Kind>;
using Types = std::vector<FrameType>;

TEST(SendStates, OnlyTheTransitionsOfTheTableAreLegal) {
  using enum SendState;
  const std::vector<std::pair<SendState, std::vector<SendState>>> table = {
      {kLeasing, {kSending, kSent, kAborting, kStopping}},
      {kSending, {kSent, kAborting, kStopping}},
      {kSent, {kSending, kConfirming, kOpened, kGone, kAborting, kStopping}},
      {kConfirming, {kSent, kAborting, kStopping}},
      {kOpened, {kAmending, kArrived, kGone, kAborting, kStopping}},
      {kAmending, {kOpened, kAborting, kStopping}},
      {kArrived, {kGone, kAborting, kStopping}},
      {kAborting, {kStopping, kOrphaned, kUnanswered}},
      {kStopping, {kMoving, kGone}},
      {kOrphaned, {kStopping, kMoving, kGone}},
      {kUnanswered, {kMoving, kGone}},
      {kMoving, {kGone}},
      {kGone, {}},
  };
  for (const auto& [from, legal] : table) {
    for (const auto& [to, unused] : table) {
      EXPECT_EQ(IsLegal(from, to), std::ranges::find(legal, to) != legal.end())
          << static_cast<int>(from) << " to " << static_cast<int>(to);
    }
  }
}

TEST_F(SendTrackerTest, TheTargetIsToldWhenAllIsPosted) {
  Transfer& write = Begin(Counted(1));
  Post(write, 0, false);
  EXPECT_EQ(Said(), Types{});
  Post(write, 1);
  EXPECT_EQ(Said(), Types{FrameType::kOpen});
  const auto open = LastSaid<OpenFrame>();
  EXPECT_EQ(open.lanes.size(), 2u);
  EXPECT_EQ(open.order, 1u);
  EXPECT_EQ(open.notification, kText);
  ASSERT_OK(Arrived(1));
  EXPECT_EQ(write.state(), SendState::kArrived) << "its ops have not completed";
  tracker_.OnCompleted(write, kNow);
  EXPECT_EQ(Done(), Kinds{});
  tracker_.OnCompleted(write, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
  EXPECT_EQ(EndOf(1).state, TransferState::kDone);
  EXPECT_EQ(EndOf(1).delivery, Delivery::kDelivered);
  EXPECT_FALSE(EndOf(1).quarantined);
  EXPECT_EQ(tracker_.size(), 0u);
}

TEST_F(SendTrackerTest, WhatTheInitiatorCopiesIsToldWhenItIsThere) {
  Transfer& write = Begin(Copied(1));
  Post(write, 0);
  EXPECT_EQ(write.state(), SendState::kSent);
  EXPECT_EQ(Said(), Types{});
  tracker_.OnCompleted(write, kNow);
  EXPECT_EQ(Said(), Types{FrameType::kOpen});
  Whole(Silent(Copied(2)));
  EXPECT_EQ(Said(), Types{});
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
  EXPECT_EQ(EndOf(2).delivery, Delivery::kNone);
}

TEST_F(SendTrackerTest, ANotificationAloneWaitsForNothing) {
  SendTracker::Request request = Copied(1);
  request.moves = false;
  Begin(request);
  EXPECT_EQ(Said(), Types{FrameType::kOpen});
  request.id = 2;
  request.held = true;
  Transfer& held = Begin(request);
  EXPECT_FALSE(tracker_.FinishPosting(held));
  EXPECT_EQ(Said(), Types{});
  tracker_.Unhold(held);
  EXPECT_EQ(Said(), Types{FrameType::kOpen});
  EXPECT_EQ(LastSaid<OpenFrame>().order, 2u);
}

TEST_F(SendTrackerTest, CreditIsTakenAndComesBackWhereTheTargetNeverHadIt) {
  const std::string large(994, 'x');
  EXPECT_TRUE(tracker_.credit().Has(nullptr));
  EXPECT_TRUE(tracker_.credit().Has(&large));
  Transfer& first = Begin(Counted(1));
  EXPECT_FALSE(tracker_.credit().Has(&large)) << "bytes";
  Cancel(first);
  EXPECT_FALSE(tracker_.credit().Has(&large)) << "the target may have it";
  ASSERT_OK(Aborted(1, false));
  EXPECT_TRUE(tracker_.credit().Has(&large));
  SendTracker::Request unordered = Counted(2);
  unordered.ordered = false;
  Transfer& second = Begin(unordered);
  EXPECT_FALSE(tracker_.credit().Has(&large));
  Cancel(second);
  EXPECT_TRUE(tracker_.credit().Has(&large)) << "of which the target has seen nothing";
  for (uint64_t id = 3; id < 13; ++id) Begin(Counted(id));
  EXPECT_FALSE(tracker_.credit().Has(&kText)) << "number";
  tracker_.credit().OnCredit({.notifications = 11, .bytes = 50});
  EXPECT_TRUE(tracker_.credit().Has(&kText)) << "totals do not shrink";
  Transfer& last = Begin(Counted(13));
  Cancel(last);
  ASSERT_OK(tracker_.OnReleased({}, kNow));
  EXPECT_FALSE(tracker_.credit().Has(&kText));
}

TEST_F(SendTrackerTest, SlotsAreAskedForOnce) {
  for (uint64_t id = 1; id <= 2; ++id) {
    Transfer& write = Begin(Counted(id));
    Post(write, 0, false);
    Post(write, 1, false);
  }
  Transfer& third = Begin(Counted(3));
  third.Prepare(true);
  EXPECT_FALSE(third.Offer(0, tracker_.slots()).has_value());
  EXPECT_EQ(Said(), Types{FrameType::kSlotRequest});
  EXPECT_FALSE(third.Offer(1, tracker_.slots()).has_value());
  EXPECT_EQ(Said(), Types{});
  ASSERT_OK(tracker_.slots().OnGrant({.range = {.first = 64, .count = 1}}));
  EXPECT_TRUE(third.Offer(1, tracker_.slots()).has_value());
  EXPECT_FALSE(tracker_.slots().OnGrant({.range = {.first = 64, .count = 1}}).ok());
}

// --- leases ---

TEST_F(SendTrackerTest, NothingIsReadBeforeTheLeaseAndItIsConfirmedAfterTheLastByte) {
  Transfer& read = Begin(Leased(1));
  EXPECT_EQ(Said(), Types{FrameType::kLeaseRead});
  EXPECT_EQ(LastSaid<LeaseReadFrame>().within_nanos, 30'000'000'000u);
  EXPECT_FALSE(read.MayPost());
  EXPECT_TRUE(read.unposted());
  ASSERT_OK(tracker_.OnLease(read, absl::OkStatus(), kNow));
  Post(read, 0);
  EXPECT_EQ(Said(), Types{});
  tracker_.OnCompleted(read, kNow);
  EXPECT_EQ(Said(), Types{FrameType::kFetchEnd});
  EXPECT_EQ(LastSaid<FetchEndFrame>().readers, 2u);
  EXPECT_EQ(Done(), Kinds{});
  ASSERT_OK(tracker_.OnLease(read, absl::OkStatus(), kNow));
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
  EXPECT_EQ(EndOf(1).state, TransferState::kDone);
}

TEST_F(SendTrackerTest, ALeaseThatDoesNotHoldFailsTheRead) {
  Transfer& refused = Begin(Leased(1));
  Said();
  ASSERT_OK(tracker_.OnLease(refused, kWhy, kNow));
  EXPECT_EQ(Done(), (Kinds{Kind::kStop, Kind::kEnd, Kind::kForget}));
  EXPECT_EQ(EndOf(1).status, kWhy);
  // In the middle of the read.
  Transfer& read = Begin(Leased(2));
  ASSERT_OK(tracker_.OnLease(read, absl::OkStatus(), kNow));
  EXPECT_FALSE(tracker_.OnLease(read, absl::OkStatus(), kNow).ok()) << "nobody asked";
  Post(read, 0);
  ASSERT_OK(tracker_.OnLease(read, kWhy, kNow));
  EXPECT_EQ(Done(), Kinds{Kind::kStop}) << "an op is in flight";
  tracker_.OnCompleted(read, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
  Transfer& plain = Begin(Copied(3));
  EXPECT_FALSE(tracker_.OnLease(plain, absl::OkStatus(), kNow).ok());
}

TEST_F(SendTrackerTest, TheOwnerIsToldOfAReadThatIsGivenUp) {
  Cancel(Begin(Leased(1)));
  EXPECT_EQ(Said(), (Types{FrameType::kLeaseRead, FrameType::kFetchEnd}));
  EXPECT_EQ(LastSaid<FetchEndFrame>().readers, 0u);
  Transfer& asked = Begin(Leased(2));
  ASSERT_OK(tracker_.OnLease(asked, absl::OkStatus(), kNow));
  Complete(asked);
  Said();
  Cancel(asked);
  EXPECT_EQ(Said(), Types{}) << "it was asked, and answers in any case";
}

// --- ends ---

TEST_F(SendTrackerTest, AnEndIsToldWhenBothSidesAreQuiet) {
  Transfer& write = Begin(Counted(1));
  Post(write, 0);
  Cancel(write);
  EXPECT_EQ(Said(), (Types{FrameType::kOpen, FrameType::kAbort}));
  const auto abort = LastSaid<AbortFrame>();
  EXPECT_TRUE(abort.opened);
  EXPECT_EQ(abort.order, 1u);
  EXPECT_EQ(abort.slots.size(), 1u);
  EXPECT_EQ(Done(), Kinds{Kind::kStop});
  EXPECT_EQ(tracker_.NextTimer(), kNow + kGrace + kOpsReturnWithin);
  ASSERT_OK(Aborted(1));
  EXPECT_EQ(write.state(), SendState::kStopping);
  EXPECT_EQ(Done(), Kinds{});
  tracker_.OnFailed(write, kWhy, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
  EXPECT_EQ(EndOf(1).state, TransferState::kCancelled);
  EXPECT_EQ(EndOf(1).delivery, Delivery::kNotDelivered);
  EXPECT_FALSE(EndOf(1).quarantined);
  EXPECT_EQ(tracker_.NextTimer(), Time::max());
}

TEST_F(SendTrackerTest, WhatArrivedBeforeItsAbortIsDone) {
  for (const bool refused : {false, true}) {
    const uint64_t id = refused ? 2 : 1;
    Transfer& write = Whole(Counted(id));
    if (refused) write.OnRefused(kWhy);
    Cancel(write);
    ASSERT_OK(Aborted(id, true));
    Done();
    EXPECT_EQ(EndOf(id).state, refused ? TransferState::kFailed : TransferState::kDone);
    EXPECT_EQ(EndOf(id).status, refused ? kWhy : absl::OkStatus());
  }
  EXPECT_EQ(EndOf(1).delivery, Delivery::kDelivered);
  Transfer& refused = Whole(Counted(3));
  refused.OnRefused(kWhy);
  ASSERT_OK(Arrived(3));
  Done();
  EXPECT_EQ(EndOf(3).state, TransferState::kFailed);
  EXPECT_EQ(EndOf(3).delivery, Delivery::kNotDelivered);
}

TEST_F(SendTrackerTest, AnEndComesOnTimeAndIsQuietLater) {
  Transfer& write = Whole(Counted(1));
  Cancel(write);
  tracker_.OnTime(kNow + kGrace - Duration(1));
  EXPECT_EQ(Done(), Kinds{Kind::kStop});
  tracker_.OnTime(kNow + kGrace);
  EXPECT_EQ(Done(), Kinds{Kind::kEnd});
  EXPECT_TRUE(EndOf(1).quarantined);
  EXPECT_EQ(EndOf(1).delivery, Delivery::kUnknown);
  EXPECT_EQ(tracker_.NextTimer(), Time::max());
  ASSERT_OK(Aborted(1));
  EXPECT_EQ(Done(), (Kinds{Kind::kQuiet, Kind::kForget}));
}

TEST_F(SendTrackerTest, AnEndThatIsUnderWayOnlyBecomesShorter) {
  Transfer& write = Begin(Counted(1));
  Cancel(write);
  tracker_.End(write, TransferState::kFailed, absl::InternalError("other"), kNow + seconds(20),
               kNow);
  EXPECT_EQ(tracker_.NextTimer(), kNow + kGrace);
  tracker_.End(write, TransferState::kFailed, absl::InternalError("other"), EndCause::kLost, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kStop, Kind::kEnd}));
  EXPECT_EQ(EndOf(1).status, kWhy);
  EXPECT_FALSE(EndOf(1).quarantined) << "nothing of it was sent";
  EXPECT_EQ(EndOf(1).delivery, Delivery::kNotDelivered);
}

TEST_F(SendTrackerTest, OpsAreWaitedForAndNotForEver) {
  Transfer& write = Begin(Copied(1));
  Post(write, 0);
  Cancel(write);
  const Time by = kNow + kGrace + kOpsReturnWithin;
  ASSERT_OK(Aborted(1));
  tracker_.OnTime(by - Duration(1));
  EXPECT_EQ(Done(), Kinds{Kind::kStop}) << "its source is still read";
  EXPECT_EQ(tracker_.NextTimer(), by) << "and not before: a driver would not sleep";
  tracker_.OnTime(by);
  EXPECT_EQ(Done(), Kinds{Kind::kEnd});
  EXPECT_TRUE(EndOf(1).quarantined);
  EXPECT_EQ(write.state(), SendState::kMoving);
  EXPECT_EQ(tracker_.NextTimer(), Time::max());
  tracker_.OnCompleted(write, by);
  EXPECT_EQ(Done(), (Kinds{Kind::kQuiet, Kind::kForget}));
}

TEST_F(SendTrackerTest, CopiesOfAGpuAreWaitedForAsLongAsTheEndMayTake) {
  SendTracker::Request request = Copied(2);
  request.may_hang = true;
  Transfer& copy = Begin(request);
  Post(copy, 0);
  tracker_.End(copy, TransferState::kFailed, kWhy, EndCause::kLost, kNow);
  EXPECT_EQ(Done(), Kinds{Kind::kStop}) << "where there is no time it gets that of a stopped one";
  EXPECT_EQ(copy.end().by(copy.ops()), kNow + kGrace);
  tracker_.OnTime(kNow + kGrace);
  EXPECT_EQ(Done(), Kinds{Kind::kEnd});
  EXPECT_TRUE(EndOf(2).quarantined);
  ASSERT_OK(Aborted(2));
  EXPECT_EQ(copy.state(), SendState::kMoving);
  Done();
  tracker_.OnCompleted(copy, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kQuiet, Kind::kForget}));
}

TEST_F(SendTrackerTest, StagedOpsAreAbandonedOnTime) {
  SendTracker::Request request = Copied(1);
  request.staged = true;
  Transfer& write = Begin(request);
  Post(write, 0, false);
  Post(write, 0);
  Cancel(write);
  ASSERT_OK(Aborted(1));
  EXPECT_EQ(Done(), Kinds{Kind::kStop});
  tracker_.OnTime(kNow + kGrace);
  EXPECT_EQ(Done(), Kinds{Kind::kAbandon});
  tracker_.OnAbandoned(write, 2, kNow + kGrace);
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
}

// --- rails and connections ---

// The target lends the buffer to others as soon as this side gives it back. Expect it to be asked
// first whether it still sends out of it.
TEST_F(SendTrackerTest, ALentBufferIsReadUntilTheTargetSaysOtherwise) {
  const auto lent = [](uint64_t id) {
    SendTracker::Request request = Silent(Copied(id));
    request.from_lent = true;
    return request;
  };
  // One whose reads are over at this side.
  Transfer& read = Begin(lent(1));
  Post(read, 0);
  Cancel(read);
  EXPECT_EQ(Said(), Types{FrameType::kAbort});
  tracker_.OnCompleted(read, kNow);
  EXPECT_EQ(Done(), Kinds{Kind::kStop}) << "the answer is awaited";
  ASSERT_OK(Aborted(1));
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
  EXPECT_FALSE(EndOf(1).lent_in_use);
  // One that has read nothing.
  Cancel(Begin(lent(2)));
  EXPECT_EQ(Said(), Types{});
  EXPECT_EQ(Done(), (Kinds{Kind::kStop, Kind::kEnd, Kind::kForget}));
  EXPECT_FALSE(EndOf(2).lent_in_use);
  // Two without an answer in time: one has it later, the session of the other is lost.
  for (const uint64_t id : {3u, 4u}) {
    Transfer& late = Begin(lent(id));
    Post(late, 0);
    Cancel(late);
    tracker_.OnCompleted(late, kNow);
  }
  Done();
  tracker_.OnTime(kNow + kGrace);
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kEnd}));
  for (const uint64_t id : {3u, 4u}) {
    EXPECT_TRUE(EndOf(id).lent_in_use);
    EXPECT_FALSE(EndOf(id).quarantined) << "nothing comes to this side any more";
  }
  ASSERT_OK(Aborted(3));
  EXPECT_EQ(Done(), (Kinds{Kind::kQuiet, Kind::kForget}));
  tracker_.OnSessionLost(kWhy, kNow + kGrace);
  EXPECT_EQ(Done(), (Kinds{Kind::kQuiet, Kind::kForget}));
  // With its session the buffer is the target's own again.
  Transfer& lost = Begin(lent(5));
  Post(lost, 0);
  tracker_.OnSessionLost(kWhy, kNow);
  tracker_.OnCompleted(lost, kNow);
  Done();
  EXPECT_FALSE(EndOf(5).lent_in_use);
}

// One that was told with an op in flight, because its time was up.
class UnansweredTest : public SendTrackerTest, public ::testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    SendTrackerTest::SetUp();
    SendTracker::Request request = counted_ ? Counted(1) : Silent(Copied(1));
    request.from_lent = !counted_;
    transfer_ = &Begin(std::move(request));
    Post(*transfer_, 0);
    Cancel(*transfer_);
    tracker_.OnTime(kNow + kGrace + kOpsReturnWithin);
    EXPECT_EQ(Done(), (Kinds{Kind::kStop, Kind::kEnd}));
    EXPECT_TRUE(EndOf(1).quarantined);
    EXPECT_EQ(EndOf(1).lent_in_use, !counted_);
  }
  const bool counted_ = GetParam();
  Transfer* transfer_ = nullptr;
};

TEST_P(UnansweredTest, TheAnswerComesLast) {
  tracker_.OnCompleted(*transfer_, kNow);
  EXPECT_EQ(Done(), Kinds{});
  ASSERT_OK(Aborted(1));
  EXPECT_EQ(Done(), (Kinds{Kind::kQuiet, Kind::kForget}));
}

TEST_P(UnansweredTest, TheOpComesLast) {
  ASSERT_OK(Aborted(1));
  EXPECT_EQ(Done(), Kinds{});
  tracker_.OnCompleted(*transfer_, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kQuiet, Kind::kForget}));
}

// What an initiator has written may land until the peer is back.
TEST_P(UnansweredTest, TheSessionIsLostAfterTheOp) {
  tracker_.OnCompleted(*transfer_, kNow);
  tracker_.OnSessionLost(kWhy, kNow);
  EXPECT_EQ(Done(), (Kinds{counted_ ? Kind::kOrphan : Kind::kQuiet, Kind::kForget}));
}

TEST_P(UnansweredTest, TheSessionIsLostBeforeTheOp) {
  tracker_.OnSessionLost(kWhy, kNow);
  EXPECT_EQ(Done(), counted_ ? Kinds{Kind::kOrphan} : Kinds{});
  tracker_.OnCompleted(*transfer_, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kQuiet, Kind::kForget}));
}

INSTANTIATE_TEST_SUITE_P(Both, UnansweredTest, ::testing::Bool(),
                         [](const auto& counted) { return counted.param ? "Write" : "LentRead"; });

TEST_F(SendTrackerTest, AnOpThatFailedAloneFailsItsTransfer) {
  Transfer& write = Begin(Counted(1));
  Post(write, 0, false);
  tracker_.OnSuspect(write, 0, 0, kWhy, kNow);
  EXPECT_FALSE(write.MayPost()) << "until it is explained";
  tracker_.OnRailCleared(kLink + 1, 0, kNow);
  tracker_.OnRailCleared(kLink, 1, kNow);
  EXPECT_FALSE(write.ending());
  tracker_.OnRailCleared(kLink, 0, kNow);
  EXPECT_TRUE(write.ending());
  EXPECT_EQ(write.end().why(), kWhy);
  Transfer& other = Begin(Copied(2));
  Post(other, 0);
  tracker_.OnFailed(other, kWhy, kNow);
  EXPECT_TRUE(other.ending());
}

TEST_F(SendTrackerTest, WhatWentOverAFailedRailGoesAgain) {
  Transfer& write = Begin(Counted(1));
  Post(write, 0);
  tracker_.OnSuspect(write, 0, 0, kWhy, kNow);
  tracker_.OnRailDown(kLink, 0);
  EXPECT_EQ(write.state(), SendState::kOpened);
  Said();
  tracker_.OnRailFenced(kLink, 1);
  tracker_.OnRailFenced(kLink + 1, 0);
  EXPECT_EQ(Said(), Types{});
  tracker_.OnRailFenced(kLink, 0);
  EXPECT_EQ(Said(), Types{FrameType::kDiscard});
  const SlotRef slot = LastSaid<DiscardFrame>().slots.at(0);
  ReleasedFrame released;
  released.freed = {slot};
  released.discarded = {{.transfer = 1, .ref = slot, .complete = false}};
  ASSERT_OK(tracker_.OnReleased(released, kNow));
  EXPECT_EQ(Done(), Kinds{Kind::kSend});
  EXPECT_EQ(write.state(), SendState::kAmending);
  EXPECT_FALSE(Arrived(1).ok()) << "the target misses a lane";
  Post(write, 1);
  EXPECT_EQ(Said(), Types{FrameType::kAmend});
}

TEST_F(SendTrackerTest, ASliceOfALaneThatIsTakenBackIsNotPrepared) {
  Transfer& write = Begin(Counted(1));
  Post(write, 0, false);
  Post(write, 0);
  tracker_.OnRailDown(kLink, 0);
  tracker_.OnRailFenced(kLink, 0);
  Said();
  const SlotRef slot = LastSaid<DiscardFrame>().slots.at(0);
  ReleasedFrame released;
  released.freed = {slot};
  released.discarded = {{.transfer = 1, .ref = slot, .complete = false}};
  ASSERT_OK(tracker_.OnReleased(released, kNow));
  // Its lane goes over rail 1 now, half of it.
  Post(write, 1);
  write.Prepare(true);
  tracker_.OnRailDown(kLink, 1);
  tracker_.OnRailFenced(kLink, 1);
  EXPECT_EQ(Said(), Types{FrameType::kDiscard});
  EXPECT_FALSE(write.prepared().has_value());
  EXPECT_FALSE(write.MayPost()) << "before the target has let go of the lane";
}

TEST_F(SendTrackerTest, ASliceThatIsNotCountedGoesAgainAtOnce) {
  Transfer& read = Begin(Silent(Copied(1)));
  Post(read, 0);
  tracker_.OnSuspect(read, 0, 0, kWhy, kNow);
  EXPECT_EQ(read.state(), SendState::kSending);
  EXPECT_EQ(Done(), Kinds{Kind::kSend});
  EXPECT_FALSE(read.MayPost());
  tracker_.OnRailDown(kLink + 1, 0);
  EXPECT_FALSE(read.MayPost());
  tracker_.OnRailDown(kLink, 0);
  EXPECT_EQ(read.NextSlice(), 0u);
  Post(read, 1);
  tracker_.OnCompleted(read, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
}

TEST_F(SendTrackerTest, ALostConnectionFailsWhatHadDataOnIt) {
  Transfer& write = Whole(Counted(1));
  Transfer& copied = Whole(Copied(2));
  Transfer& leased = Begin(Leased(3));
  ASSERT_OK(tracker_.OnLease(leased, absl::OkStatus(), kNow));
  Complete(leased);
  SendTracker::Request elsewhere = Counted(4);
  elsewhere.link = kLink + 1;
  Transfer& other = Begin(elsewhere);
  tracker_.OnLinkLost(kLink, kWhy, kNow);
  EXPECT_TRUE(write.ended()) << "nobody is there to be asked";
  EXPECT_FALSE(copied.ending()) << "its bytes are there";
  EXPECT_FALSE(leased.ending()) << "only the owner's word is awaited";
  EXPECT_FALSE(other.ending());
  Done();
  EXPECT_TRUE(EndOf(1).quarantined);
  EXPECT_EQ(EndOf(1).status, kWhy);
}

// --- the session is lost ---

TEST_F(SendTrackerTest, ALostSessionEndsEverything) {
  Whole(Counted(1));
  Transfer& flying = Begin(Counted(2));
  Post(flying, 0);
  Begin(Silent(Copied(3)));
  tracker_.OnSessionLost(kWhy, kNow);
  tracker_.NewSession();
  EXPECT_EQ(Done(), (Kinds{Kind::kStop, Kind::kEnd, Kind::kStop, Kind::kStop, Kind::kEnd,
                           Kind::kForget, Kind::kOrphan, Kind::kForget}));
  EXPECT_TRUE(EndOf(1).quarantined);
  EXPECT_EQ(EndOf(1).delivery, Delivery::kUnknown);
  EXPECT_FALSE(EndOf(3).quarantined);
  EXPECT_EQ(flying.state(), SendState::kOrphaned);
  tracker_.OnCompleted(flying, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kOrphan, Kind::kForget}));
  EXPECT_TRUE(EndOf(2).quarantined);
  EXPECT_EQ(EndOf(2).delivery, Delivery::kUnknown);
  EXPECT_FALSE(tracker_.slots().any());
  EXPECT_FALSE(tracker_.credit().Has(&kText));
}

TEST_F(SendTrackerTest, APeerThatIsBackMakesOrphansQuiet) {
  Transfer& write = Begin(Counted(1));
  Post(write, 0);
  tracker_.OnSessionLost(kWhy, kNow);
  tracker_.OnQuiet();
  Done();
  EXPECT_EQ(write.state(), SendState::kStopping);
  tracker_.OnCompleted(write, kNow);
  EXPECT_EQ(Done(), (Kinds{Kind::kEnd, Kind::kForget}));
  EXPECT_FALSE(EndOf(1).quarantined);
  EXPECT_EQ(EndOf(1).delivery, Delivery::kUnknown);
}

// --- a peer that lies ---

TEST_F(SendTrackerTest, WordsThatCannotBeAreRefused) {
  EXPECT_FALSE(Arrived(7).ok()) << "no such transfer";
  EXPECT_FALSE(Aborted(7).ok());
  Transfer& write = Begin(Counted(1));
  EXPECT_FALSE(Arrived(1).ok()) << "it was not told of it";
  EXPECT_FALSE(Aborted(1).ok()) << "it was not asked to";
  Post(write, 0);
  ASSERT_OK(Arrived(1));
  EXPECT_FALSE(Arrived(1).ok()) << "twice";
  ReleasedFrame frame;
  frame.freed = {{.slot = 9, .generation = 1}};
  EXPECT_FALSE(tracker_.OnReleased(frame, kNow).ok()) << "a slot that is not in use";
  frame = {};
  Transfer& other = Begin(Counted(2));
  Post(other, 0);
  frame.discarded = {{.transfer = 2, .ref = {.slot = 1, .generation = 0}}};
  EXPECT_FALSE(tracker_.OnReleased(frame, kNow).ok()) << "a DISCARD that was not sent";
}

}  // namespace
}  // namespace kvxfer
