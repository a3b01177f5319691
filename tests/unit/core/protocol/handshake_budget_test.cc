#include "src/core/protocol/handshake_budget.h"

#include <gtest/gtest.h>

namespace kvxfer {
namespace {

constexpr Time At(int64_t ms) { return Time{} + std::chrono::milliseconds(ms); }

int64_t TakeAll(HandshakeBudget& budget, Time now) {
  int64_t taken = 0;
  while (taken < 10'000 && budget.Take(now)) ++taken;
  return taken;
}

TEST(HandshakeBudget, ABurstAndThenSoManyEachSecond) {
  HandshakeBudget budget;
  EXPECT_EQ(TakeAll(budget, At(1000)), HandshakeBudget::kBurst);
  EXPECT_EQ(TakeAll(budget, At(1000)), 0);
  EXPECT_EQ(TakeAll(budget, At(1100)), HandshakeBudget::kPerSecond / 10);
  // What was refused costs nothing.
  for (int i = 0; i < 10'000; ++i) EXPECT_FALSE(budget.Take(At(1100)));
  EXPECT_EQ(TakeAll(budget, At(1200)), HandshakeBudget::kPerSecond / 10);
}

TEST(HandshakeBudget, NoMoreThanABurstIsSaved) {
  HandshakeBudget budget;
  EXPECT_EQ(TakeAll(budget, At(1'000'000)), HandshakeBudget::kBurst);
}

}  // namespace
}  // namespace kvxfer
