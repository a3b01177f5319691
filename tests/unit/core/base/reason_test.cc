// What a program may act on beyond a code goes with a status through whatever is said about it.
#include "src/core/base/reason.h"

#include <gtest/gtest.h>

#include "src/core/base/strings.h"

namespace kvxfer::testing {
namespace {

TEST(Reason, GoesWithTheStatusThroughAnnotations) {
  for (const Reason reason : {Reason::kAddressInUse, Reason::kPeerRestarted, Reason::kPeerGone}) {
    const absl::Status why = WithReason(absl::UnavailableError("it is so"), reason);
    EXPECT_EQ(ReasonOf(why), reason);
    EXPECT_EQ(ReasonOf(Annotate(why, "peer a")), reason);
    EXPECT_EQ(ReasonOf(WithMessage(why, "something else")), reason);
    EXPECT_EQ(why.message(), "it is so");
    EXPECT_STRNE(ToString(reason), "unknown");
  }
}

TEST(Reason, TheLastOneCounts) {
  const absl::Status one = WithReason(absl::UnavailableError("x"), Reason::kPeerGone);
  EXPECT_EQ(ReasonOf(WithReason(one, Reason::kPeerRestarted)), Reason::kPeerRestarted);
}

TEST(Reason, OthersHaveNone) {
  EXPECT_EQ(ReasonOf(absl::OkStatus()), Reason::kNone);
  EXPECT_EQ(ReasonOf(absl::UnavailableError("peer gone")), Reason::kNone);
  absl::Status later = absl::UnavailableError("x");
  later.SetPayload("kvxfer/reason", absl::Cord("of a later version"));
  EXPECT_EQ(ReasonOf(later), Reason::kNone);
}

}  // namespace
}  // namespace kvxfer::testing
