// What is waited for while a transfer is made quiet: the connecting side's last op, the accepting
// side's word from its peer.
#include "src/transport/fence_waits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvxfer {
namespace {

using std::chrono::milliseconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr Time kStart{std::chrono::hours(1)};
constexpr Duration kPatience = milliseconds(100);

TEST(StoppingTransfers, IsQuietWithTheLastOp) {
  StoppingTransfers stopping(kPatience);
  EXPECT_FALSE(stopping.OnOpDone(7));
  stopping.Add(7, 2, {0, 0}, kStart);
  EXPECT_TRUE(stopping.contains(7));
  EXPECT_FALSE(stopping.OnOpDone(8));
  EXPECT_FALSE(stopping.OnOpDone(7));
  EXPECT_TRUE(stopping.OnOpDone(7));
  EXPECT_FALSE(stopping.contains(7));
  EXPECT_EQ(stopping.deadline(), std::nullopt);
}

TEST(StoppingTransfers, ARailIsStuckThatMakesNoProgressWhateverOthersDo) {
  StoppingTransfers stopping(kPatience);
  stopping.Add(7, 2, {5, 5}, kStart);
  EXPECT_EQ(stopping.deadline(), kStart + kPatience);
  EXPECT_THAT(stopping.TakeStuck(kStart + kPatience - milliseconds(1), {5, 5}), IsEmpty());
  EXPECT_THAT(stopping.TakeStuck(kStart + kPatience, {6, 5}), ElementsAre(Pair(1, 7)));
  // Another look comes after the same time, and compares with this one.
  EXPECT_EQ(stopping.deadline(), kStart + 2 * kPatience);
  EXPECT_THAT(stopping.TakeStuck(kStart + 2 * kPatience, {6, 6}), ElementsAre(Pair(0, 7)));
}

TEST(ConfirmedFences, IsAnsweredOnceThePeerSaysThatTheTransferIsQuiet) {
  ConfirmedFences fences;
  EXPECT_EQ(fences.Ask(7, kStart), 0u);
  EXPECT_EQ(fences.OnQuiet(7), 1u);
  EXPECT_EQ(fences.deadline(), std::nullopt);
  // The peer may be the first.
  EXPECT_EQ(fences.OnQuiet(8), 0u);
  EXPECT_EQ(fences.Ask(8, kStart), 1u);
  EXPECT_THAT(fences.unanswered(), IsEmpty());
}

TEST(ConfirmedFences, APeerThatSaysNothingIsLate) {
  ConfirmedFences fences;
  EXPECT_EQ(fences.Ask(7, kStart), 0u);
  EXPECT_EQ(fences.Ask(8, kStart + milliseconds(1)), 0u);
  const Time end = kStart + ConfirmedFences::kPatience;
  EXPECT_EQ(fences.deadline(), end);
  EXPECT_FALSE(fences.late(end - milliseconds(1)));
  EXPECT_TRUE(fences.late(end));
  EXPECT_THAT(fences.unanswered(), ElementsAre(7, 8));
  fences.Clear();
  EXPECT_FALSE(fences.late(end));
}

}  // namespace
}  // namespace kvxfer
