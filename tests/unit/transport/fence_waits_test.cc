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

constexpr Time kFenceStart{std::chrono::hours(1)};
constexpr Duration kFencePatience = milliseconds(100);

TEST(StoppingTransfers, IsQuietWithTheLastOp) {
  StoppingTransfers stopping(kFencePatience);
  EXPECT_FALSE(stopping.OnOpDone(7));
  stopping.Add(7, 2, {0, 0}, kFenceStart);
  EXPECT_TRUE(stopping.contains(7));
  EXPECT_FALSE(stopping.OnOpDone(8));
  EXPECT_FALSE(stopping.OnOpDone(7));
  EXPECT_TRUE(stopping.OnOpDone(7));
  EXPECT_FALSE(stopping.contains(7));
  EXPECT_EQ(stopping.deadline(), std::nullopt);
}

TEST(StoppingTransfers, ARailIsStuckThatMakesNoProgressWhateverOthersDo) {
  StoppingTransfers stopping(kFencePatience);
  stopping.Add(7, 2, {5, 5}, kFenceStart);
  EXPECT_EQ(stopping.deadline(), kFenceStart + kFencePatience);
  EXPECT_THAT(stopping.TakeStuck(kFenceStart + kFencePatience - milliseconds(1), {5, 5}),
              IsEmpty());
  EXPECT_THAT(stopping.TakeStuck(kFenceStart + kFencePatience, {6, 5}), ElementsAre(Pair(1, 7)));
  // Another look comes after the same time, and compares with this one.
  EXPECT_EQ(stopping.deadline(), kFenceStart + 2 * kFencePatience);
  EXPECT_THAT(stopping.TakeStuck(kFenceStart + 2 * kFencePatience, {6, 6}),
              ElementsAre(Pair(0, 7)));
}

TEST(ConfirmedFences, IsAnsweredOnceThePeerSaysThatTheTransferIsQuiet) {
  ConfirmedFences fences;
  EXPECT_EQ(fences.Ask(7, kFenceStart), 0u);
  EXPECT_EQ(fences.OnQuiet(7), 1u);
  EXPECT_EQ(fences.deadline(), std::nullopt);
  // The peer may be the first.
  EXPECT_EQ(fences.OnQuiet(8), 0u);
  EXPECT_EQ(fences.Ask(8, kFenceStart), 1u);
  EXPECT_THAT(fences.unanswered(), IsEmpty());
}

TEST(ConfirmedFences, APeerThatSaysNothingIsLate) {
  ConfirmedFences fences;
  EXPECT_EQ(fences.Ask(7, kFenceStart), 0u);
  EXPECT_EQ(fences.Ask(8, kFenceStart + milliseconds(1)), 0u);
  const Time end = kFenceStart + ConfirmedFences::kPatience;
  EXPECT_EQ(fences.deadline(), end);
  EXPECT_FALSE(fences.late(end - milliseconds(1)));
  EXPECT_TRUE(fences.late(end));
  EXPECT_THAT(fences.unanswered(), ElementsAre(7, 8));
  fences.Clear();
  EXPECT_FALSE(fences.late(end));
}

}  // namespace
}  // namespace kvxfer
