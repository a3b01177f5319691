// When a side asks whether a link still lets frames through, and what it does about the answer.

#include "src/core/protocol/frame_watch.h"

#include <gtest/gtest.h>

namespace kvxfer {
namespace {

using Step = FrameWatch::Step;
using Carrier = FrameWatch::Carrier;

constexpr Carrier kGood{};
constexpr Carrier kOwes{.owes = true};
constexpr Carrier kAvoided{.owes = true, .avoided = true};
constexpr Duration kLook = FrameWatch::kLook;
const Time kStart = Time(1000 * kLook);

TEST(FrameWatch, AFrameThatWaitsIsAskedAboutAtTheSecondLook) {
  FrameWatch watch;
  EXPECT_LE(watch.NextLook(kGood), kStart) << "the first look is due at once";
  EXPECT_EQ(watch.Look(7, kGood, kStart), Step::kNone);
  EXPECT_EQ(watch.Look(8, kGood, kStart + kLook), Step::kNone) << "7 is acknowledged";
  EXPECT_EQ(watch.Look(8, kGood, kStart + 2 * kLook), Step::kPing);
  // Expect a frame behind it to be asked about by itself.
  EXPECT_EQ(watch.Look(9, kOwes, kStart + 3 * kLook), Step::kNone);
  EXPECT_EQ(watch.Look(9, kOwes, kStart + 4 * kLook), Step::kPing);
}

// Also where an earlier ping has had no answer: there may have been no room for it.
TEST(FrameWatch, ALinkHasItsTimeToAnswer) {
  FrameWatch watch;
  watch.Look(7, kOwes, kStart);
  const Time pinged = kStart + kLook;
  EXPECT_EQ(watch.Look(7, kOwes, pinged), Step::kPing);
  EXPECT_EQ(watch.Look(7, kOwes, pinged + FrameWatch::kAnswersWithin - Duration(1)), Step::kNone);
  EXPECT_EQ(watch.Look(7, kOwes, pinged + FrameWatch::kAnswersWithin), Step::kAvoid);
  EXPECT_EQ(watch.Look(7, kAvoided, pinged + 2 * FrameWatch::kAnswersWithin), Step::kNone);
}

TEST(FrameWatch, AFrameThatTheLinkDidNotHaveIsSentAgain) {
  FrameWatch watch;
  watch.Look(7, kGood, kStart);
  EXPECT_EQ(watch.Look(7, kGood, kStart + kLook), Step::kPing);
  EXPECT_EQ(watch.Look(7, kGood, kStart + 2 * kLook), Step::kSendAgain);
  watch.Restart();
  EXPECT_EQ(watch.Look(7, kGood, kStart + 3 * kLook), Step::kNone);
  EXPECT_EQ(watch.Look(7, kGood, kStart + 4 * kLook), Step::kPing);
}

TEST(FrameWatch, LooksAreOnAGridAndEndWhereNoLinkAnswers) {
  FrameWatch watch;
  for (const Duration late : {Duration(0), Duration(1), kLook / 2, kLook - Duration(1)}) {
    watch.Look(7, kGood, kStart + late);
    const Time next = watch.NextLook(kGood);
    EXPECT_EQ(next, kStart + (late == Duration(0) ? 1 : 2) * kLook);
    EXPECT_EQ(watch.NextLook(kOwes), next);
  }
  EXPECT_EQ(watch.NextLook(kAvoided), Time::max());
}

}  // namespace
}  // namespace kvxfer
