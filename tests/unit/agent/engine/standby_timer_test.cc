#include "src/agent/engine/standby_timer.h"

#include <gtest/gtest.h>

#include <thread>

namespace kvxfer {
namespace {

TEST(StandbyTimer, FiresAfterTheIntervalAndNotBefore) {
  StandbyTimer timer;
  ASSERT_TRUE(timer.Open().ok());
  const Time start = Now();
  timer.PutOff(start);
  timer.Wait();
  EXPECT_GE(Now() - start, StandbyTimer::kInterval);
}

// However long ago it was set first, and whatever it would have done since.
TEST(StandbyTimer, IsPutOffByWhoComesInTime) {
  StandbyTimer timer;
  ASSERT_TRUE(timer.Open().ok());
  const Time start = Now();
  Time last = start;
  timer.PutOff(start);
  while (last - start < 5 * StandbyTimer::kInterval) {
    last = Now();
    timer.PutOff(last);
  }
  timer.Wait();
  EXPECT_GE(Now() - last, StandbyTimer::kInterval / 8);
}

// Who leaves the seat may have looked at the clock before the timer fired.
TEST(StandbyTimer, IsSetAgainAfterItFiredByAnOldTime) {
  StandbyTimer timer;
  ASSERT_TRUE(timer.Open().ok());
  const Time start = Now();
  timer.PutOff(start);
  timer.Wait();
  timer.Fired();
  timer.PutOff(start);
  timer.Wait();
  EXPECT_GE(Now() - start, 2 * StandbyTimer::kInterval);
}

TEST(StandbyTimer, FiresAtOnceWhereToldTo) {
  StandbyTimer timer;
  ASSERT_TRUE(timer.Open().ok());
  std::thread waiter([&] { timer.Wait(); });
  timer.Fire();
  waiter.join();
  // Having been told so does not keep it from being set again.
  const Time start = Now();
  timer.PutOff(start);
  timer.Wait();
  EXPECT_GE(Now() - start, StandbyTimer::kInterval);
}

}  // namespace
}  // namespace kvxfer
