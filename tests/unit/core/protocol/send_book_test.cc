// What goes again after a rail has failed, and what the target is told of it, by example; the model
// of the protocol goes through every small case.

#include "src/core/protocol/send_book.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr uint64_t kHolder = 9;

SlotPool Pool(uint32_t slots) {
  SlotPool pool;
  EXPECT_OK(pool.AddGrant({.range = {.first = 0, .count = slots}}));
  return pool;
}

SendBook Counted(bool rail_keeps_order = true) { return SendBook(LaneBook(2, rail_keeps_order)); }

// Cuts the next of `total` slices and posts it on `rail`; the immediate that it carried.
std::optional<uint32_t> PostFresh(SendBook& book, uint32_t total, uint32_t rail, SlotPool& pool) {
  const SendBook::Slice slice = book.Cut(book.cut() + 1 == total);
  EXPECT_TRUE(book.OpenLane(slice, rail, pool, kHolder));
  const auto immediate = book.ImmediateFor(slice, rail);
  book.OnPosted(slice, rail);
  return immediate;
}

// The same for the next one that goes again; its number.
uint32_t PostAgain(SendBook& book, uint32_t rail, SlotPool& pool) {
  const SendBook::Slice slice = book.Next();
  EXPECT_TRUE(book.OpenLane(slice, rail, pool, kHolder));
  book.OnPosted(slice, rail);
  return slice.number;
}

// The target lets go of `slot` as of a lane that was not whole.
void LetGo(SendBook& book, SlotRef slot, SlotPool& pool, bool goes_again = true) {
  EXPECT_OK(pool.Free(slot));
  const auto again = book.OnDiscarded({.transfer = 1, .ref = slot}, pool);
  ASSERT_OK(again);
  EXPECT_EQ(*again, goes_again);
}

TEST(SendBookTest, WhatIsDiscardedBeforeTheLastSliceGoesAgainInTheFirstBook) {
  SlotPool pool = Pool(3);
  SendBook book = Counted();
  PostFresh(book, 3, 0, pool);
  PostFresh(book, 3, 1, pool);
  const std::vector<SlotRef> slots = book.Discard(0);
  ASSERT_EQ(slots.size(), 1u);
  EXPECT_TRUE(book.awaits_discarded());
  LetGo(book, slots[0], pool);
  // The last slice is posted, but is not the last any more.
  EXPECT_EQ(PostFresh(book, 3, 1, pool), std::nullopt);
  EXPECT_FALSE(book.posted());
  EXPECT_EQ(PostAgain(book, 1, pool), 0u);
  EXPECT_TRUE(book.posted());
  book.LetSlotsGo(pool);
  const std::vector<LaneFrame> lanes = book.TellAll();
  ASSERT_EQ(lanes.size(), 1u);
  EXPECT_EQ(lanes[0].arrivals, 1u);
  EXPECT_EQ(pool.available(), 2u) << "one lane is in use, nothing is kept back";
}

TEST(SendBookTest, ALaneThatOpenNamedIsMadeGoodByANewOne) {
  SlotPool pool = Pool(2);
  SendBook book = Counted();
  PostFresh(book, 2, 0, pool);
  PostFresh(book, 2, 0, pool);
  EXPECT_EQ(book.TellAll().size(), 1u);
  const std::vector<SlotRef> slots = book.Discard(0);
  ASSERT_EQ(slots.size(), 1u);
  EXPECT_TRUE(book.posted()) << "nothing goes again before the target has let go";
  LetGo(book, slots[0], pool);
  EXPECT_TRUE(book.TellNew().empty());
  EXPECT_EQ(book.BoundTo(book.Next()), std::nullopt);
  EXPECT_EQ(PostAgain(book, 1, pool), 0u);
  EXPECT_EQ(book.BoundTo(book.Next()), 1u);
  EXPECT_EQ(PostAgain(book, 1, pool), 1u);
  EXPECT_TRUE(book.posted());
  ASSERT_EQ(book.TellNew().size(), 1u);
  EXPECT_TRUE(book.TellNew().empty()) << "told once";
}

// A rail that refuses the first slice of such a lane has not got it.
TEST(SendBookTest, ALaneThatGoesAgainTakesTheRailThatAcceptsIt) {
  SlotPool pool = Pool(1);
  SendBook book = Counted();
  PostFresh(book, 1, 0, pool);
  book.TellAll();
  LetGo(book, book.Discard(0).at(0), pool);
  const SendBook::Slice slice = book.Next();
  EXPECT_TRUE(book.OpenLane(slice, 0, pool, kHolder));  // and is refused there
  EXPECT_EQ(book.BoundTo(slice), std::nullopt);
  EXPECT_TRUE(book.Discard(0).empty());
  EXPECT_EQ(PostAgain(book, 1, pool), 0u);
  EXPECT_TRUE(book.posted());
  EXPECT_EQ(book.TellNew().size(), 1u);
  EXPECT_EQ(pool.available(), 0u);
}

TEST(SendBookTest, ALaneWithoutSlicesGoesAgainOnlyWhereOpenNamedIt) {
  for (const bool named : {false, true}) {
    SlotPool pool = Pool(2);
    SendBook book = Counted();
    const SendBook::Slice slice = book.Cut(true);
    EXPECT_TRUE(book.OpenLane(slice, 0, pool, kHolder));  // and is refused there
    EXPECT_TRUE(book.OpenLane(slice, 1, pool, kHolder));
    book.OnPosted(slice, 1);
    ASSERT_TRUE(book.NextToClose().has_value());
    EXPECT_EQ(book.NextToClose()->rail, 0u);
    if (named) {
      book.OnClosed(0);
      EXPECT_EQ(book.TellAll().size(), 2u);
    }
    LetGo(book, book.Discard(0).at(0), pool, named);
    EXPECT_EQ(book.posted(), !named);
    if (!named) continue;
    EXPECT_EQ(PostAgain(book, 1, pool), kNoSlice) << "an empty write";
    EXPECT_EQ(book.TellNew().at(0).arrivals, 1u);
  }
}

TEST(SendBookTest, WhatArrivedWholeOrWasFreedDoesNotGoAgain) {
  SlotPool pool = Pool(2);
  SendBook book = Counted();
  PostFresh(book, 2, 0, pool);
  PostFresh(book, 2, 1, pool);
  book.OnClosed(0);
  const std::vector<LaneFrame> lanes = book.TellAll();
  book.OnFreed(lanes[0].ref);
  EXPECT_TRUE(book.Discard(0).empty());
  const SlotRef slot = book.Discard(1).at(0);
  EXPECT_OK(pool.Free(slot));
  const auto again = book.OnDiscarded({.transfer = 1, .ref = slot, .complete = true}, pool);
  ASSERT_OK(again);
  EXPECT_FALSE(*again);
  EXPECT_TRUE(book.posted());
}

TEST(SendBookTest, AnAnswerThatWasNotAskedForIsRefused) {
  SlotPool pool = Pool(2);
  SendBook book = Counted();
  PostFresh(book, 1, 0, pool);
  book.TellAll();
  EXPECT_EQ(book.OnDiscarded({.transfer = 1}, pool).status().code(),
            absl::StatusCode::kInvalidArgument);
  // Neither is one whose slot is in use still.
  PostFresh(book, 1, 1, pool);
  const SlotRef slot = book.Discard(0).at(0);
  EXPECT_EQ(book.OnDiscarded({.transfer = 1, .ref = slot}, pool).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// The end gives back what was kept, and names every slot that may be on its way.
TEST(SendBookTest, EndGivesBackWhatWasKept) {
  SlotPool pool = Pool(4);
  SendBook book = Counted();
  PostFresh(book, 3, 0, pool);
  PostFresh(book, 3, 1, pool);
  LetGo(book, book.Discard(0).at(0), pool);
  EXPECT_EQ(pool.available(), 2u);
  EXPECT_EQ(book.End(pool).size(), 1u);
  EXPECT_EQ(pool.available(), 3u);

  SendBook other = Counted();
  PostFresh(other, 1, 0, pool);
  other.TellAll();
  LetGo(other, other.Discard(0).at(0), pool);
  EXPECT_EQ(pool.available(), 2u) << "one is in use, one is kept back";
  EXPECT_TRUE(other.End(pool).empty());
  EXPECT_EQ(pool.available(), 3u);
}

TEST(SendBookTest, WhereNobodyCountsSlicesOnlyGoAgain) {
  SlotPool pool = Pool(1);
  SendBook book{std::optional<LaneBook>()};
  EXPECT_FALSE(book.counted());
  EXPECT_EQ(PostFresh(book, 2, 0, pool), std::nullopt);
  EXPECT_EQ(PostFresh(book, 2, 1, pool), std::nullopt);
  EXPECT_TRUE(book.posted());
  EXPECT_TRUE(book.Discard(1).empty());
  book.Again(1);
  EXPECT_FALSE(book.posted());
  EXPECT_EQ(PostAgain(book, 0, pool), 1u);
  EXPECT_TRUE(book.posted());
  EXPECT_EQ(pool.available(), 1u);
}

}  // namespace
}  // namespace kvxfer::testing
