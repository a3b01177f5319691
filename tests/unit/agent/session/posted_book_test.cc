// What a transfer holds from posting to its end.

#include "src/agent/session/posted_book.h"

#include <gtest/gtest.h>

#include "tests/unit/agent/session/fake_peer.h"

namespace kvxfer::testing {
namespace {

class PostedBookTest : public ::testing::Test, public FakePeer {
 protected:
  PostedBookTest() {
    Both("tcp");
    MakeRegions();
  }
  void Make(internal::TransferRecord& record, uint64_t id, Time deadline) {
    Plan(record, MemoryKind::kHost);
    record.id = id;
    record.deadline = deadline;
  }

  PostedBook book_{&runtime_};
};

TEST_F(PostedBookTest, ATransferCountsAndUsesItsRegionsUntilItsEnd) {
  internal::TransferRecord record;
  Make(record, 1, now_);
  EXPECT_OK(book_.Enter(record, absl::OkStatus()));
  EXPECT_EQ(book_.count()->load(), 1u);
  EXPECT_TRUE(runtime_.memory.InUse(kHostRegion));
  EXPECT_EQ(book_.next(), now_);
  book_.Leave(record);
  EXPECT_EQ(book_.count()->load(), 0u);
  EXPECT_EQ(book_.next(), Time::max());
  // Its ops may be in flight yet.
  EXPECT_TRUE(runtime_.memory.InUse(kHostRegion));
  book_.LetMemoryGo(record);
  EXPECT_FALSE(runtime_.memory.InUse(kHostRegion));
}

TEST_F(PostedBookTest, WhatIsRefusedHoldsItsPlaceOnly) {
  internal::TransferRecord refused;
  Make(refused, 1, now_);
  EXPECT_TRUE(Fails(book_.Enter(refused, absl::CancelledError("removed")),
                    absl::StatusCode::kCancelled, {"removed"}));
  internal::TransferRecord closed;
  Make(closed, 2, now_);
  ASSERT_OK(runtime_.memory.Close(kHostRegion));
  EXPECT_TRUE(Fails(book_.Enter(closed, absl::OkStatus()), absl::StatusCode::kFailedPrecondition,
                    {"was deregistered"}));
  EXPECT_EQ(book_.count()->load(), 2u);
  EXPECT_EQ(book_.next(), Time::max());
  for (internal::TransferRecord* record : {&refused, &closed}) {
    book_.LetMemoryGo(*record);
    book_.Leave(*record);
  }
  EXPECT_EQ(book_.count()->load(), 0u);
  EXPECT_FALSE(runtime_.memory.InUse(kHostRegion));
}

TEST_F(PostedBookTest, ANotificationUsesNoRegions) {
  internal::TransferRecord record;
  record.kind = TransferKind::kNotify;
  record.deadline = now_;
  EXPECT_OK(book_.Enter(record, absl::OkStatus()));
  book_.Leave(record);
  book_.LetMemoryGo(record);
  EXPECT_EQ(book_.count()->load(), 0u);
}

TEST_F(PostedBookTest, AChildBeginsThoughItsRegionIsClosed) {
  internal::TransferRecord whole;
  internal::TransferRecord child;
  Make(whole, 1, now_);
  Make(child, 2, now_);
  ASSERT_OK(book_.Enter(whole, absl::OkStatus()));
  ASSERT_OK(runtime_.memory.Close(kHostRegion));
  book_.EnterChild(child);
  EXPECT_EQ(book_.count()->load(), 2u);
  book_.Leave(whole);
  book_.LetMemoryGo(whole);
  EXPECT_TRUE(runtime_.memory.InUse(kHostRegion));
  book_.Leave(child);
  book_.LetMemoryGo(child);
  EXPECT_FALSE(runtime_.memory.InUse(kHostRegion));
}

TEST_F(PostedBookTest, DeadlinesComeInOrderAndOnce) {
  internal::TransferRecord late;
  internal::TransferRecord early;
  Make(late, 1, now_ + 2 * kMs);
  Make(early, 2, now_ + kMs);
  ASSERT_OK(book_.Enter(late, absl::OkStatus()));
  ASSERT_OK(book_.Enter(early, absl::OkStatus()));
  EXPECT_EQ(book_.next(), now_ + kMs);
  EXPECT_EQ(book_.TakeDue(now_ + kMs - Duration(1)), std::nullopt);
  EXPECT_EQ(book_.TakeDue(now_ + kMs), 2u);
  EXPECT_EQ(book_.TakeDue(now_ + kMs), std::nullopt);
  EXPECT_EQ(book_.TakeDue(now_ + 2 * kMs), 1u);
  EXPECT_EQ(book_.TakeDue(now_ + 3 * kMs), std::nullopt);
  for (internal::TransferRecord* record : {&late, &early}) {
    book_.Leave(*record);
    book_.LetMemoryGo(*record);
  }
}

}  // namespace
}  // namespace kvxfer::testing
