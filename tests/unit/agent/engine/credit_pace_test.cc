// How often credit goes back while the application takes notifications.
#include "src/agent/engine/credit_pace.h"

#include <gtest/gtest.h>

namespace kvxfer::testing {
namespace {

AgentOptions Limits(uint32_t notifications, uint64_t bytes) {
  AgentOptions options;
  options.max_notifications = notifications;
  options.max_notification_bytes = bytes;
  return options;
}

// Which of `many` notifications of `bytes` makes credit due; 0: none.
int FirstDue(CreditPace& pace, uint64_t bytes, int many = 100'000) {
  for (int i = 1; i <= many; ++i) {
    if (pace.OnDrained(bytes)) return i;
  }
  return 0;
}

TEST(CreditPace, AQuarterOfTheNumber) {
  CreditPace pace(Limits(400, 1 << 30));
  EXPECT_EQ(FirstDue(pace, 0), 100);
  EXPECT_EQ(FirstDue(pace, 0), 100);
}

TEST(CreditPace, ManyAtMostAndOneAtLeast) {
  CreditPace wide(Limits(1 << 20, 1 << 30));
  EXPECT_EQ(FirstDue(wide, 0), 256);
  CreditPace narrow(Limits(1, 1 << 30));
  EXPECT_EQ(FirstDue(narrow, 0), 1);
}

// Expect that no initiator runs out of bytes while the number of notifications would go on.
TEST(CreditPace, BytesCountToo) {
  constexpr uint64_t kMost = 1 << 20;
  CreditPace pace(Limits(1 << 20, kMost));
  const uint64_t step = CreditByteStep(kMost);
  ASSERT_LT(step, kMost);
  EXPECT_TRUE(pace.OnDrained(step));
  EXPECT_FALSE(pace.OnDrained(step - 1));
  EXPECT_TRUE(pace.OnDrained(1));
}

}  // namespace
}  // namespace kvxfer::testing
