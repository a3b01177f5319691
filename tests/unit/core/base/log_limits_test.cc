// Rate limits of log lines, cause by cause.
#include "src/core/base/log_limits.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvxfer {
namespace {

constexpr Time kStart{std::chrono::hours(1)};

// How many of `asked` are admitted at once.
int Admitted(LogLimits& limits, uint64_t cause, Time now, int asked) {
  int admitted = 0;
  for (int i = 0; i < asked; ++i) admitted += limits.Ask(cause, now).admitted;
  return admitted;
}

TEST(LogLimits, ABurstIsAdmittedAndThenOneAtATime) {
  LogLimits limits;
  EXPECT_EQ(Admitted(limits, 1, kStart, 1000), LogLimits::kBurst);
  for (int i = 1; i <= 10; ++i) {
    EXPECT_EQ(Admitted(limits, 1, kStart + i * LogLimits::kEvery, 1000), 1) << i;
  }
  // A pause fills it up again, and no further.
  EXPECT_EQ(Admitted(limits, 1, kStart + std::chrono::hours(1), 1000), LogLimits::kBurst);
}

TEST(LogLimits, TheNextLineSaysHowManyWereSuppressed) {
  LogLimits limits;
  EXPECT_EQ(Admitted(limits, 1, kStart, LogLimits::kBurst + 7), LogLimits::kBurst);
  const LogLimits::Answer next = limits.Ask(1, kStart + LogLimits::kEvery);
  EXPECT_TRUE(next.admitted);
  EXPECT_EQ(next.suppressed, 7u);
  EXPECT_EQ(limits.Ask(1, kStart + 2 * LogLimits::kEvery).suppressed, 0u);
}

TEST(LogLimits, OneCauseDoesNotSilenceAnother) {
  LogLimits limits;
  EXPECT_EQ(Admitted(limits, 1, kStart, 1000), LogLimits::kBurst);
  EXPECT_EQ(Admitted(limits, 2, kStart, 1000), LogLimits::kBurst);
}

TEST(LogLimits, CausesBeyondTheTableShareItsPlaces) {
  LogLimits limits;
  uint64_t admitted = 0;
  for (uint64_t cause = 1; cause <= 100'000; ++cause)
    admitted += limits.Ask(cause, kStart).admitted;
  EXPECT_GE(admitted, LogLimits::kCauses);
  EXPECT_LE(admitted, LogLimits::kCauses * LogLimits::kBurst);
}

}  // namespace
}  // namespace kvxfer
