// What the book declares to the target is what the rails carried, for every small way of posting.

#include "src/core/protocol/lane_book.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "src/core/protocol/wire_format.h"

namespace kvxfer::testing {
namespace {

// Posts slice i on rail `rails_of[i]` and closes what is left; the immediates each slot carried.
std::map<uint32_t, uint32_t> PostAll(LaneBook& book, const std::vector<uint32_t>& rails_of) {
  std::map<uint32_t, uint32_t> carried;
  const auto post = [&](uint32_t rail, bool last) {
    const std::optional<uint32_t> immediate = book.ImmediateFor(rail, last);
    if (immediate.has_value()) ++carried[DecodeImmediate(*immediate).slot];
    book.OnPosted(rail, last);
  };
  uint32_t next_slot = 10;
  for (size_t i = 0; i < rails_of.size(); ++i) {
    const uint32_t rail = rails_of[i];
    if (book.NeedsSlot(rail)) book.OpenLane(rail, {.slot = next_slot++, .generation = 5});
    EXPECT_FALSE(book.NextToClose().has_value()) << "before the last slice";
    post(rail, i + 1 == rails_of.size());
  }
  for (auto rail = book.NextToClose(); rail.has_value(); rail = book.NextToClose()) {
    post(*rail, true);
  }
  return carried;
}

// Every way to spread 1 to 6 slices over 1 to 3 rails.
TEST(LaneBookTest, DeclaresExactlyWhatIsSent) {
  int ways = 0;
  for (const bool keeps_order : {false, true}) {
    for (uint32_t rails = 1; rails <= 3; ++rails) {
      for (size_t slices = 1; slices <= 6; ++slices) {
        std::vector<uint32_t> rails_of(slices, 0);
        for (bool more = true; more; ++ways) {
          LaneBook book(rails, keeps_order);
          const auto carried = PostAll(book, rails_of);
          std::map<uint32_t, uint32_t> declared;
          for (const LaneFrame& lane : book.Lanes()) declared[lane.ref.slot] = lane.arrivals;
          // Expect the counts to agree, at least one a lane, and exactly one where order is kept.
          ASSERT_EQ(declared, carried);
          ASSERT_EQ(book.Slots().size(), declared.size());
          uint32_t sum = 0;
          for (const auto& [slot, count] : declared) {
            sum += count;
            ASSERT_GE(count, 1u);
            ASSERT_TRUE(!keeps_order || count == 1);
          }
          ASSERT_TRUE(keeps_order || sum == slices);
          more = false;
          for (uint32_t& rail : rails_of) {
            if (++rail < rails) {
              more = true;
              break;
            }
            rail = 0;
          }
        }
      }
    }
  }
  EXPECT_EQ(ways, 2 * (6 + 126 + 1092));
}

TEST(LaneBookTest, LaneOpenedAndNeverPostedToIsClosedByAnEmptyWrite) {
  for (const bool keeps_order : {false, true}) {
    LaneBook book(2, keeps_order);
    book.OpenLane(1, {.slot = 3, .generation = 0});
    book.OpenLane(0, {.slot = 4, .generation = 0});
    EXPECT_FALSE(book.NextToClose().has_value());
    book.OnPosted(0, true);
    ASSERT_EQ(book.NextToClose(), 1u);
    EXPECT_EQ(book.ImmediateFor(1, true), EncodeImmediate({.slot = 3, .generation = 0}));
    book.OnPosted(1, true);
    EXPECT_FALSE(book.NextToClose().has_value());
    const std::vector<LaneFrame> lanes{{.ref = {.slot = 4, .generation = 0}, .arrivals = 1},
                                       {.ref = {.slot = 3, .generation = 0}, .arrivals = 1}};
    EXPECT_EQ(book.Lanes(), lanes);
  }
}

TEST(LaneBookTest, OnlyTheLastOpOfAnOrderedLaneCarriesAnImmediate) {
  LaneBook book(1, true);
  book.OpenLane(0, {.slot = 9, .generation = 4095});
  EXPECT_FALSE(book.ImmediateFor(0, false).has_value());
  EXPECT_EQ(book.ImmediateFor(0, true), (9u << 12) | 4095u);
}

TEST(LaneBookTest, DiscardedLaneIsForgottenAndItsRailMayBeOpenedAgain) {
  LaneBook book(2, false);
  book.OpenLane(0, {.slot = 1, .generation = 0});
  book.OnPosted(0, false, 5);
  book.OpenLane(1, {.slot = 2, .generation = 0});
  book.OnPosted(1, false, 6);
  const auto discarded = book.Discard(0);
  ASSERT_TRUE(discarded.has_value());
  EXPECT_EQ(discarded->slot, (SlotRef{.slot = 1, .generation = 0}));
  // Expect what it carried, and nothing of the other lane's.
  EXPECT_EQ(discarded->slices.Next(0), 5u);
  EXPECT_EQ(discarded->slices.Next(6), kNoSlice);
  // Expect no second DISCARD for it, and no mention in OPEN or ABORT.
  EXPECT_FALSE(book.Discard(0).has_value());
  EXPECT_EQ(book.Slots(), (std::vector<SlotRef>{{.slot = 2, .generation = 0}}));
  EXPECT_TRUE(book.NeedsSlot(0));
  book.OpenLane(0, {.slot = 3, .generation = 7});
  book.OnPosted(0, true);
  const std::vector<LaneFrame> lanes{{.ref = {.slot = 3, .generation = 7}, .arrivals = 1},
                                     {.ref = {.slot = 2, .generation = 0}, .arrivals = 1}};
  EXPECT_EQ(book.Lanes(), lanes);
}

TEST(LaneBookTest, FreedLaneIsNeitherDiscardedNorNamedByAbort) {
  LaneBook book(1, true);
  book.OpenLane(0, {.slot = 1, .generation = 0});
  book.OnPosted(0, true);
  // Expect another generation of the slot to be no news of this lane.
  book.OnFreed({.slot = 1, .generation = 1});
  EXPECT_EQ(book.Slots().size(), 1u);
  book.OnFreed({.slot = 1, .generation = 0});
  EXPECT_TRUE(book.Slots().empty());
  EXPECT_FALSE(book.Discard(0).has_value());
  EXPECT_EQ(book.Lanes().size(), 1u);
}

TEST(LaneBookTest, TransferWithoutSlicesHasNoLanes) {
  LaneBook book(2, true);
  EXPECT_TRUE(book.Lanes().empty());
  EXPECT_FALSE(book.NextToClose().has_value());
}

}  // namespace
}  // namespace kvxfer::testing
