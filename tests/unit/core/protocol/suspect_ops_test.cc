// Ops that a failing rail may explain.
#include "src/core/protocol/suspect_ops.h"

#include <gtest/gtest.h>

namespace kvxfer {
namespace {

TEST(SuspectOps, TheFailureOfTheirRailExplainsThem) {
  SuspectOps ops;
  EXPECT_TRUE(ops.empty());
  ops.Add(1, absl::UnavailableError("a"));
  ops.Add(2, absl::UnavailableError("b"));
  ops.Explain(3);
  ops.Explain(1);
  EXPECT_EQ(ops.TakeUnexplained(1), std::nullopt);
  EXPECT_FALSE(ops.empty());
  ops.Explain(2);
  EXPECT_TRUE(ops.empty());
}

// Expect the first reason: the ops behind it fail because it did.
TEST(SuspectOps, WhereTheRailDidNotFailTheFirstSaysWhy) {
  SuspectOps ops;
  ops.Add(1, absl::UnavailableError("first"));
  ops.Add(1, absl::AbortedError("second"));
  EXPECT_EQ(ops.TakeUnexplained(0), std::nullopt);
  EXPECT_EQ(ops.TakeUnexplained(1), absl::UnavailableError("first"));
  EXPECT_TRUE(ops.empty()) << "all of the rail";
}

}  // namespace
}  // namespace kvxfer
