// The protocol by example. arrival_tracker_exhaustive_test and _random_test hold it to an oracle;
// here is one stanza a rule, and every protocol error.

#include "src/core/protocol/arrival_tracker.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvxfer::testing {
namespace {

constexpr SlotTable::SessionId kOwner = 1;

class ArrivalTrackerTest : public ::testing::Test {
 protected:
  ArrivalTrackerTest() : tracker_(&table_, kOwner) { table_.Grant(kOwner); }

  static SlotRef Slot(uint32_t slot, uint32_t generation = 0) {
    return {.slot = slot, .generation = generation};
  }
  static OpenFrame Open(uint64_t transfer, uint64_t order, std::vector<LaneFrame> lanes) {
    return {.transfer = transfer,
            .order = order,
            .notice = Notice::kNotification,
            .lanes = std::move(lanes),
            .notification = "n" + std::to_string(transfer)};
  }
  static AbortFrame Abort(uint64_t transfer, uint64_t order, bool opened,
                          std::vector<SlotRef> slots = {}) {
    return {.transfer = transfer, .order = order, .opened = opened, .slots = std::move(slots)};
  }
  // Transfers delivered since the last look, in order.
  std::vector<uint64_t> Delivered() {
    tracker_.TakeActions(last_);
    std::vector<uint64_t> ids;
    for (const auto& delivered : last_.deliver) {
      EXPECT_EQ(delivered.notification, "n" + std::to_string(delivered.transfer));
      ids.push_back(delivered.transfer);
    }
    return ids;
  }
  static void ExpectRefused(const absl::Status& status, const char* words) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(status.message()).find(words), std::string::npos) << status;
  }
  using Ids = std::vector<uint64_t>;
  using Arrived = decltype(ReleasedFrame::arrived);

  SlotTable table_;
  ArrivalTracker tracker_;
  ArrivalTracker::Actions last_;
};

TEST_F(ArrivalTrackerTest, ArrivalsCountBeforeAndAfterOpen) {
  EXPECT_TRUE(tracker_.OnImmediate(Slot(3)).ok());
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {{Slot(3), 2}, {Slot(4), 1}})).ok());
  EXPECT_TRUE(tracker_.OnImmediate(Slot(3)).ok());
  EXPECT_EQ(Delivered(), Ids{});
  EXPECT_EQ(last_.released.freed, std::vector<SlotRef>{Slot(3)});
  EXPECT_TRUE(tracker_.OnImmediate(Slot(4)).ok());
  EXPECT_EQ(Delivered(), Ids{1});
  EXPECT_EQ(last_.released.arrived, Arrived{1});
  EXPECT_EQ(last_.released.freed, std::vector<SlotRef>{Slot(4)});
  EXPECT_EQ(tracker_.active(), 0u);
}

TEST_F(ArrivalTrackerTest, NotificationsComeInOrderAndAnyOrderAtOnce) {
  EXPECT_TRUE(tracker_.OnOpen(Open(2, 2, {})).ok());
  EXPECT_TRUE(tracker_.OnOpen(Open(3, 0, {})).ok());
  EXPECT_EQ(Delivered(), Ids{3});
  EXPECT_EQ(last_.released.arrived, (Arrived{2, 3}));  // arrived, though not its turn
  EXPECT_EQ(tracker_.waiting_in_order(), 1u);
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {})).ok());
  EXPECT_EQ(Delivered(), (Ids{1, 2}));
  EXPECT_EQ(tracker_.waiting_in_order(), 0u);
}

TEST_F(ArrivalTrackerTest, HeldUntilGivenOutOrAborted) {
  const auto expect_held = [&](uint64_t notifications) {
    EXPECT_EQ(tracker_.held_notifications(), notifications);
    EXPECT_EQ(tracker_.held_bytes(), notifications * 2);
  };
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {{Slot(0), 1}})).ok());
  EXPECT_TRUE(tracker_.OnOpen(Open(2, 2, {})).ok());
  EXPECT_TRUE(tracker_.OnOpen(Open(3, 3, {{Slot(1), 1}})).ok());
  expect_held(3);  // arrived, but not its turn, is held as well
  EXPECT_TRUE(tracker_.OnAbort(Abort(3, 3, true, {Slot(1)})).ok());
  expect_held(2);
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0)).ok());
  EXPECT_EQ(Delivered(), (Ids{1, 2}));
  expect_held(0);
  EXPECT_TRUE(tracker_.OnAbort(Abort(4, 4, false, {Slot(2)})).ok());
  expect_held(0);
}

TEST_F(ArrivalTrackerTest, GivesOutWhatWasWholeWhenTheSessionEnds) {
  EXPECT_TRUE(tracker_.OnOpen(Open(4, 4, {})).ok());
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {{Slot(0), 1}})).ok());
  EXPECT_TRUE(tracker_.OnAbort(Abort(3, 3, false)).ok());
  EXPECT_TRUE(tracker_.OnOpen(Open(2, 2, {})).ok());
  EXPECT_EQ(Delivered(), Ids{});
  // Expect number 1, which never came whole, to be left out.
  const auto given = tracker_.GiveOut();
  ASSERT_EQ(given.size(), 2u);
  EXPECT_EQ(given[0].transfer, 2u);
  EXPECT_EQ(given[1].transfer, 4u);
  EXPECT_EQ(given[1].notification, "n4");
}

TEST_F(ArrivalTrackerTest, AbortedNumberIsSkippedAtOnce) {
  EXPECT_TRUE(tracker_.OnOpen(Open(2, 2, {})).ok());
  EXPECT_TRUE(tracker_.OnAbort(Abort(1, 1, false, {Slot(0)})).ok());
  EXPECT_EQ(Delivered(), Ids{2});
  EXPECT_EQ(last_.fence, Ids{1});
  EXPECT_TRUE(last_.released.aborted.empty());
  // Expect what still comes to be swallowed until the fence.
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0)).ok());
  EXPECT_TRUE(tracker_.OnFenced(1).ok());
  EXPECT_EQ(Delivered(), Ids{});
  EXPECT_EQ(last_.released.aborted, (std::vector<AbortAck>{{.transfer = 1, .delivered = false}}));
  EXPECT_EQ(last_.released.freed, std::vector<SlotRef>{Slot(0)});
  EXPECT_EQ(table_.Find(0)->arrivals, 0u);
}

TEST_F(ArrivalTrackerTest, AbortOfWhatArrivedIsAnsweredDelivered) {
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {})).ok());
  EXPECT_TRUE(tracker_.OnAbort(Abort(1, 1, true)).ok());
  EXPECT_EQ(Delivered(), Ids{1});
  EXPECT_EQ(last_.released.aborted, (std::vector<AbortAck>{{.transfer = 1, .delivered = true}}));
  EXPECT_TRUE(last_.fence.empty());
}

TEST_F(ArrivalTrackerTest, DiscardedLaneWaitsForItsDrainAndItsReplacement) {
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {{Slot(0), 1}, {Slot(1), 2}})).ok());
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0)).ok());
  EXPECT_TRUE(tracker_.OnDiscard({.transfer = 1, .slots = {Slot(0), Slot(1)}}).ok());
  EXPECT_EQ(Delivered(), Ids{});
  // Expect the exact lane to be answered at once; the other counts no more.
  EXPECT_EQ(last_.released.discarded,
            (std::vector<DiscardAck>{{.transfer = 1, .ref = Slot(0), .complete = true}}));
  EXPECT_TRUE(tracker_.OnImmediate(Slot(1)).ok());
  EXPECT_TRUE(tracker_.OnImmediate(Slot(1)).ok());
  EXPECT_EQ(Delivered(), Ids{});
  EXPECT_TRUE(last_.released.freed.empty()) << "others may not use its slot before it is drained";
  EXPECT_TRUE(tracker_.OnLanesDrained(1).ok());
  EXPECT_EQ(Delivered(), Ids{});
  EXPECT_EQ(last_.released.discarded,
            (std::vector<DiscardAck>{{.transfer = 1, .ref = Slot(1), .complete = false}}));
  EXPECT_TRUE(tracker_.OnImmediate(Slot(2)).ok());
  EXPECT_TRUE(tracker_.OnAmend({.transfer = 1, .lanes = {{Slot(2), 1}}}).ok());
  EXPECT_EQ(Delivered(), Ids{1});
}

TEST_F(ArrivalTrackerTest, DiscardBeforeOpenLeavesNothingBehind) {
  EXPECT_TRUE(tracker_.OnDiscard({.transfer = 1, .slots = {Slot(0)}}).ok());
  EXPECT_EQ(tracker_.active(), 1u);
  EXPECT_TRUE(tracker_.OnLanesDrained(1).ok());
  EXPECT_EQ(tracker_.active(), 0u);
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {{Slot(0, 1), 1}})).ok());
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0, 1)).ok());
  EXPECT_EQ(Delivered(), Ids{1});
}

TEST_F(ArrivalTrackerTest, DiscardThatCrossesArrivedIsAnsweredComplete) {
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0)).ok());
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {{Slot(0), 1}})).ok());
  EXPECT_TRUE(tracker_.OnDiscard({.transfer = 1, .slots = {Slot(0)}}).ok());
  EXPECT_EQ(Delivered(), Ids{1});
  EXPECT_TRUE(last_.released.discarded.at(0).complete);
  EXPECT_EQ(tracker_.active(), 0u);
}

TEST_F(ArrivalTrackerTest, DiscardAfterAbortIsAnsweredByTheAbort) {
  EXPECT_TRUE(tracker_.OnAbort(Abort(1, 0, false, {Slot(0)})).ok());
  EXPECT_TRUE(tracker_.OnDiscard({.transfer = 1, .slots = {Slot(0)}}).ok());
  EXPECT_TRUE(tracker_.OnLanesDrained(1).ok());
  EXPECT_TRUE(tracker_.OnFenced(1).ok());
  EXPECT_EQ(Delivered(), Ids{});
  EXPECT_TRUE(last_.released.discarded.empty());
  EXPECT_EQ(last_.released.freed.size(), 1u);
}

// Expect an ABORT that still names a lane freed long ago to leave the slot's later lanes alone.
TEST_F(ArrivalTrackerTest, AbortMayNameALaneWhoseSlotOthersUsedSince) {
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 0, {{Slot(0), 1}, {Slot(1), 1}})).ok());
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0)).ok());
  for (uint32_t generation = 1; generation <= 3; ++generation) {
    EXPECT_TRUE(tracker_.OnOpen(Open(1 + generation, 0, {{Slot(0, generation), 1}})).ok());
    EXPECT_TRUE(tracker_.OnImmediate(Slot(0, generation)).ok());
  }
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0, 4)).ok());
  EXPECT_TRUE(tracker_.OnAbort(Abort(1, 0, true, {Slot(0), Slot(1)})).ok());
  EXPECT_TRUE(tracker_.OnFenced(1).ok());
  EXPECT_EQ(Delivered(), (Ids{2, 3, 4}));
  EXPECT_EQ(last_.released.freed.back(), Slot(1));
  EXPECT_TRUE(tracker_.OnOpen(Open(9, 0, {{Slot(0, 4), 1}})).ok());
  EXPECT_EQ(Delivered(), Ids{9});
}

// Expect memory for what is unfinished only: neighbouring skipped numbers are one run.
TEST_F(ArrivalTrackerTest, FinishedTransfersLeaveNoState) {
  for (uint64_t id = 2; id <= 100'000; ++id) {
    ASSERT_TRUE(tracker_.OnAbort(Abort(id, id, false)).ok());
    ASSERT_TRUE(tracker_.OnFenced(id).ok());
    tracker_.TakeActions(last_);
  }
  EXPECT_EQ(tracker_.waiting_in_order(), 1u);
  EXPECT_TRUE(tracker_.OnOpen(Open(100'002, 100'002, {})).ok());
  EXPECT_EQ(tracker_.waiting_in_order(), 2u);
  EXPECT_TRUE(tracker_.OnAbort(Abort(100'001, 100'001, false)).ok());
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {})).ok());
  EXPECT_EQ(Delivered(), (Ids{1, 100'002}));
  EXPECT_EQ(tracker_.waiting_in_order(), 0u);
}

TEST_F(ArrivalTrackerTest, ImmediateOfAnotherSessionGenerationOrNoSlotIsRefused) {
  table_.Grant(2);
  ExpectRefused(tracker_.OnImmediate(Slot(kRangeSlots)), "not granted");
  ExpectRefused(tracker_.OnImmediate(Slot((1u << kSlotBits) - 1)), "not granted");
  ExpectRefused(tracker_.OnImmediate(Slot(0, 1)), "generation 0, not 1");
  ExpectRefused(tracker_.OnImmediate(Slot(0, kGenerationMask)), "generation 0, not 4095");
}

TEST_F(ArrivalTrackerTest, MoreArrivalsThanExpectedAreRefused) {
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0)).ok());
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0)).ok());
  ExpectRefused(tracker_.OnOpen(Open(1, 1, {{Slot(0), 1}})), "2 arrivals where 1 are expected");
}

TEST_F(ArrivalTrackerTest, ArrivalAfterTheLastIsRefused) {
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {{Slot(0), 1}})).ok());
  EXPECT_TRUE(tracker_.OnImmediate(Slot(0)).ok());
  ExpectRefused(tracker_.OnImmediate(Slot(0)), "slot 0 is at generation 1, not 0");
}

TEST_F(ArrivalTrackerTest, FramesThatContradictEarlierOnesAreRefused) {
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {{Slot(0), 1}})).ok());
  ExpectRefused(tracker_.OnOpen(Open(1, 2, {})), "open already");
  ExpectRefused(tracker_.OnOpen(Open(2, 2, {{Slot(0), 1}})), "is a lane already");
  ExpectRefused(tracker_.OnOpen(Open(3, 3, {{Slot(5), 0}})), "expects no arrival");
  ExpectRefused(tracker_.OnAmend({.transfer = 9, .lanes = {}}), "not open");
  ExpectRefused(tracker_.OnAmend({.transfer = 1, .lanes = {{Slot(6), 1}}}), "0 are missing");
  ExpectRefused(tracker_.OnAbort(Abort(1, 1, false)), "does not agree");
  ExpectRefused(tracker_.OnAbort(Abort(1, 7, true)), "does not agree");
  ExpectRefused(tracker_.OnDiscard({.transfer = 4, .slots = {Slot(0)}}), "no lane of transfer 4");
  ExpectRefused(tracker_.OnDiscard({.transfer = 4, .slots = {Slot(1, 9)}}), "no lane of transfer");
  ExpectRefused(tracker_.OnAbort(Abort(5, 0, false, {Slot(0)})), "no lane of transfer 5");
  ExpectRefused(tracker_.OnFenced(1), "no abort of it");
}

TEST_F(ArrivalTrackerTest, NumberOrAnswerUsedTwiceIsRefused) {
  EXPECT_TRUE(tracker_.OnOpen(Open(1, 1, {})).ok());
  ExpectRefused(tracker_.OnOpen(Open(2, 1, {})), "past already");
  EXPECT_TRUE(tracker_.OnOpen(Open(3, 3, {})).ok());
  ExpectRefused(tracker_.OnAbort(Abort(4, 3, false)), "used twice");
  EXPECT_TRUE(tracker_.OnAbort(Abort(5, 5, false)).ok());
  ExpectRefused(tracker_.OnAbort(Abort(5, 5, false)), "aborted already");
  EXPECT_TRUE(tracker_.OnDiscard({.transfer = 6, .slots = {Slot(0)}}).ok());
  ExpectRefused(tracker_.OnDiscard({.transfer = 6, .slots = {Slot(0)}}), "discarded already");
}

}  // namespace
}  // namespace kvxfer::testing
