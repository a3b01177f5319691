// When answers to the peer wait for the one of the application, and when they do not.
#include "src/agent/engine/answer_hold.h"

#include <gtest/gtest.h>

namespace kvxfer::testing {
namespace {

constexpr Duration kInTime = AnswerHold::kAnswersWithin;
constexpr Duration kTooLate = AnswerHold::kAnswersWithin + Duration(1);

class AnswerHoldTest : public ::testing::Test {
 protected:
  // The driver leaves, and the answer comes after `delay`.
  void Answer(Duration delay) {
    EXPECT_TRUE(hold_.Holds(true, now_));
    now_ += delay;
    EXPECT_FALSE(hold_.Holds(false, now_));
  }

  AnswerHold hold_;
  Time now_ = Time{} + std::chrono::hours(1);
};

TEST_F(AnswerHoldTest, OnlyADriverThatLeavesHolds) {
  EXPECT_FALSE(hold_.Holds(false, now_));
  EXPECT_TRUE(hold_.Holds(true, now_));
  EXPECT_FALSE(hold_.Holds(false, now_)) << "it has answered";
}

TEST_F(AnswerHoldTest, TheTimeBeginsWithTheFirst) {
  EXPECT_TRUE(hold_.Holds(true, now_));
  EXPECT_TRUE(hold_.Holds(true, now_ + kInTime));
  EXPECT_FALSE(hold_.Holds(true, now_ + kTooLate));
  // Expect the next one to have its own time.
  EXPECT_TRUE(hold_.Holds(true, now_ + kTooLate));
  EXPECT_TRUE(hold_.Holds(true, now_ + kTooLate + kInTime));
}

TEST_F(AnswerHoldTest, OneLateAnswerChangesNothing) {
  for (int i = 0; i < 10; ++i) {
    Answer(kTooLate);
    Answer(kInTime);
  }
}

TEST_F(AnswerHoldTest, LateAnswersInARowMakeItEagerForAWhile) {
  for (uint32_t i = 0; i < AnswerHold::kLate; ++i) Answer(kTooLate);
  // Expect that what nobody would have held back does not count.
  for (int i = 0; i < 10; ++i) EXPECT_FALSE(hold_.Holds(false, now_));
  for (uint32_t i = 0; i < AnswerHold::kEager; ++i) EXPECT_FALSE(hold_.Holds(true, now_)) << i;
  Answer(kTooLate);
  Answer(kInTime);
  Answer(kTooLate);
  EXPECT_TRUE(hold_.Holds(true, now_));
}

}  // namespace
}  // namespace kvxfer::testing
