// The record of one transfer: where it begins, what may be posted, when all is.
#include "src/core/protocol/send_transfer.h"

#include <gtest/gtest.h>

#include <utility>

#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

class SendTransferTest : public ::testing::Test {
 protected:
  static SendTransfer::Request Counted() {
    SendTransfer::Request request{.id = 7, .moves = true};
    request.lanes.emplace(2, true);
    return request;
  }
  static SendTransfer Make(SendTransfer::Request request) {
    return SendTransfer(std::move(request), 0);
  }
  // The immediate of the slice.
  std::optional<uint32_t> Post(SendTransfer& transfer, uint32_t rail, bool last) {
    transfer.Prepare(last);
    const auto offered = transfer.Offer(rail, slots_);
    EXPECT_TRUE(offered.has_value());
    transfer.OnAccepted(rail);
    return offered->immediate;
  }

  ReliableChannel channel_;
  SlotSupply slots_{&channel_};
};

TEST_F(SendTransferTest, WhereItBegins) {
  EXPECT_EQ(Make(Counted()).state(), SendState::kSending);
  EXPECT_EQ(Make({}).state(), SendState::kSent) << "nothing to move";
  EXPECT_EQ(Make({.held = true}).state(), SendState::kSending);
  const LeasedRead lease;
  EXPECT_EQ(Make({.moves = true, .lease = &lease}).state(), SendState::kLeasing);
}

TEST_F(SendTransferTest, WithoutASlotItAsksAndTheSliceStays) {
  SendTransfer transfer = Make(Counted());
  transfer.Prepare(true);
  EXPECT_EQ(transfer.Offer(0, slots_), std::nullopt);
  EXPECT_TRUE(slots_.requested());
  EXPECT_TRUE(transfer.prepared().has_value());
  EXPECT_EQ(transfer.ops(), 0u);
}

// On rails that keep order: the last slice has its lane's immediate, the other lane is closed.
TEST_F(SendTransferTest, AllIsPostedOnceEachLaneIsClosed) {
  ASSERT_OK(slots_.OnGrant({.range = {.first = 0, .count = 4}}));
  SendTransfer transfer = Make(Counted());
  EXPECT_EQ(transfer.NextSlice(), 0u);
  EXPECT_EQ(Post(transfer, 0, false), std::nullopt);
  EXPECT_EQ(transfer.NextToClose(), std::nullopt) << "its last slice is not posted";
  EXPECT_EQ(transfer.NextSlice(), 1u);
  EXPECT_NE(Post(transfer, 1, true), std::nullopt);
  EXPECT_FALSE(transfer.MayPost());
  EXPECT_FALSE(transfer.AllPosted());
  ASSERT_NE(transfer.NextToClose(), std::nullopt);
  EXPECT_EQ(transfer.NextToClose()->rail, 0u);
  transfer.OnClosed(0);
  EXPECT_TRUE(transfer.AllPosted());
  EXPECT_EQ(transfer.slices(), 2u);
  EXPECT_EQ(transfer.ops(), 3u);
  transfer.OpsOver(3);
  EXPECT_EQ(transfer.ops(), 0u);
}

// A single slice may go together with its OPEN.
TEST_F(SendTransferTest, TheOnlySliceIsSole) {
  ASSERT_OK(slots_.OnGrant({.range = {.first = 0, .count = 4}}));
  SendTransfer one = Make(Counted());
  one.Prepare(true);
  EXPECT_TRUE(one.Offer(0, slots_)->sole);
  SendTransfer two = Make(Counted());
  two.Prepare(false);
  EXPECT_FALSE(two.Offer(0, slots_)->sole);
  two.OnAccepted(0);
  two.Prepare(true);
  EXPECT_FALSE(two.Offer(0, slots_)->sole);
}

TEST_F(SendTransferTest, NothingIsPostedWhileAnOpIsNotExplained) {
  SendTransfer transfer = Make({.id = 7, .moves = true});
  Post(transfer, 0, false);
  transfer.suspects().Add(0, absl::UnavailableError("why"));
  EXPECT_FALSE(transfer.MayPost());
  transfer.suspects().Explain(0);
  EXPECT_TRUE(transfer.MayPost());
}

TEST_F(SendTransferTest, AHeldOneHasNotPostedAll) {
  SendTransfer transfer = Make({.held = true});
  EXPECT_FALSE(transfer.AllPosted());
  transfer.Unhold();
  EXPECT_TRUE(transfer.AllPosted());
}

}  // namespace
}  // namespace kvxfer
