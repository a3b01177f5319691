// How long the end of a transfer may take, and what becomes of it meanwhile.
#include "src/core/protocol/send_end.h"

#include <gtest/gtest.h>

namespace kvxfer {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(SendEnd, OneRuleForItsTime) {
  const Time now = Time(seconds(100));
  const Duration grace = seconds(1);
  const Time deadline = now + seconds(30);
  EXPECT_EQ(EndBy(EndCause::kStopped, now, deadline, grace, now), now + grace);
  EXPECT_EQ(EndBy(EndCause::kStopped, now, deadline, grace, deadline), deadline);
  EXPECT_EQ(EndBy(EndCause::kLate, now, deadline, grace, deadline), deadline + milliseconds(50));
  EXPECT_EQ(EndBy(EndCause::kLate, now, now + milliseconds(100), grace, now),
            now + milliseconds(5));
  EXPECT_EQ(EndBy(EndCause::kLost, now, deadline, grace, now), now);
}

TEST(SendEnd, TheTimeOnlyShrinks) {
  SendEnd end;
  const Time by = Time(seconds(10));
  end.Begin(TransferState::kCancelled, absl::CancelledError("why"), by);
  end.Shorten(by + seconds(1));
  EXPECT_EQ(end.by(0), by);
  end.Shorten(by - seconds(1));
  EXPECT_EQ(end.by(0), by - seconds(1));
  EXPECT_FALSE(end.late(by - seconds(2)));
  EXPECT_TRUE(end.late(by - seconds(1)));
}

TEST(SendEnd, OpsHaveATimeOfTheirOwn) {
  SendEnd end;
  const Time by = Time(seconds(10));
  end.Begin(TransferState::kFailed, absl::AbortedError("why"), by);
  EXPECT_EQ(end.by(1), by) << "nothing waits for them";
  end.WaitForOps(by + seconds(2));
  end.WaitForOps(by + seconds(3));
  EXPECT_EQ(end.by(1), by + seconds(2));
  EXPECT_EQ(end.by(0), by) << "they are over";
  EXPECT_TRUE(end.ops_in_time(by + seconds(1)));
  EXPECT_FALSE(end.ops_in_time(by + seconds(2)));
}

TEST(SendEnd, WhatTheTargetHadDeliveredIsDoneUnlessItRefusedIt) {
  SendEnd end;
  end.Begin(TransferState::kCancelled, absl::CancelledError("why"), {});
  end.BecomeDelivered(absl::OkStatus());
  EXPECT_EQ(end.state(), TransferState::kDone);
  EXPECT_TRUE(end.why().ok());
  end.BecomeDelivered(absl::FailedPreconditionError("another shape"));
  EXPECT_EQ(end.state(), TransferState::kFailed);
  EXPECT_EQ(end.why(), absl::FailedPreconditionError("another shape"));
}

}  // namespace
}  // namespace kvxfer
