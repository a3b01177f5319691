#include "src/agent/engine/wake_timer.h"

#include <gtest/gtest.h>
#include <poll.h>

namespace kvxfer {
namespace {

using std::chrono::milliseconds;

bool Readable(const WakeTimer& timer, milliseconds within) {
  pollfd fd{.fd = timer.fd(), .events = POLLIN, .revents = 0};
  return poll(&fd, 1, static_cast<int>(within.count())) == 1;
}

TEST(WakeTimer, FiresWhenItIsDueAndStaysReadable) {
  WakeTimer timer;
  ASSERT_TRUE(timer.Open().ok());
  const Time start = Now();
  timer.SleepUntil(start + milliseconds(5), start);
  ASSERT_TRUE(Readable(timer, milliseconds(10'000)));
  EXPECT_GE(Now() - start, milliseconds(5));
  EXPECT_TRUE(Readable(timer, milliseconds(0)));
}

// A later time leaves it alone; an earlier one does not.
TEST(WakeTimer, FiresNoLaterThanAsked) {
  WakeTimer timer;
  ASSERT_TRUE(timer.Open().ok());
  const Time start = Now();
  timer.SleepUntil(start + milliseconds(60'000), start);
  timer.SleepUntil(Time::max(), Now());
  timer.SleepUntil(start + milliseconds(5), Now());
  timer.SleepUntil(start + milliseconds(60'000), start);
  timer.SleepUntil(Time::max(), start);
  ASSERT_TRUE(Readable(timer, milliseconds(10'000)));
  EXPECT_GE(Now() - start, milliseconds(5));
}

// Else the sleep that follows would end at once, and so on.
TEST(WakeTimer, WhatHasFiredIsTakenBackByTheNextSleep) {
  WakeTimer timer;
  ASSERT_TRUE(timer.Open().ok());
  for (const Time next : {Time::max(), Now() + milliseconds(60'000)}) {
    const Time start = Now();
    timer.SleepUntil(start + milliseconds(1), start);
    ASSERT_TRUE(Readable(timer, milliseconds(10'000)));
    timer.SleepUntil(next, Now());
    EXPECT_FALSE(Readable(timer, milliseconds(0)));
  }
  const Time last = Now();
  timer.SleepUntil(last + milliseconds(5), last);
  ASSERT_TRUE(Readable(timer, milliseconds(10'000)));
  EXPECT_GE(Now() - last, milliseconds(5));
}

TEST(WakeTimer, DoesNotFireWhereNothingIsAwaited) {
  WakeTimer timer;
  ASSERT_TRUE(timer.Open().ok());
  timer.SleepUntil(Time::max(), Now());
  EXPECT_FALSE(Readable(timer, milliseconds(20)));
}

}  // namespace
}  // namespace kvxfer
