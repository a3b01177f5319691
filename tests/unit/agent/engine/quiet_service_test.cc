// What Drain waits for, and what it refuses from then on.
#include "src/agent/engine/quiet_service.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "tests/unit/agent/engine/engine_parts.h"

namespace kvxfer::testing {
namespace {

class QuietServiceTest : public ::testing::Test, public EngineParts {
 protected:
  static constexpr auto kLate = absl::StatusCode::kOutOfRange;

  QuietService service_{
      {.runtime = &runtime_, .gate = &gate_, .views = &views_, .inbound = &inbound_}};
};

TEST_F(QuietServiceTest, WithoutInitiatorsItIsQuiet) {
  ASSERT_OK_AND_ASSIGN(const QuiesceResult result, service_.Quiesce({}, Duration::zero()));
  EXPECT_TRUE(result.quiet);
  EXPECT_EQ(result.token, QuiesceToken::kNone);
  EXPECT_TRUE(Fails(service_.IsQuiet(QuiesceToken{1}), absl::StatusCode::kNotFound));
}

TEST_F(QuietServiceTest, DrainWaitsForLeases) {
  const Time now = Now();
  ASSERT_OK(runtime_.leases.Grant("a", {.hash = 7}, now + 100 * kTimeout, now));
  EXPECT_TRUE(Fails(service_.Drain(kMs), kLate, {"1 KV leases"}));
  ASSERT_OK(gate_.CallFor<absl::Status>([&] { return runtime_.leases.Release("a", Now()); }));
  EXPECT_OK(service_.Drain(100 * kTimeout));
}

TEST_F(QuietServiceTest, DrainWaitsForTransfers) {
  const auto queued = std::make_shared<std::atomic<uint32_t>>(2);
  views_.Publish(std::make_shared<const PeerView>(PeerView{.name = "b", .queued = queued}));
  EXPECT_TRUE(Fails(service_.Drain(kMs), kLate, {"2 transfers to b", "call again"}));
  EXPECT_FALSE(gate_.CheckTakesWork().ok());
  queued->store(0);
  EXPECT_OK(service_.Drain(100 * kTimeout));
  EXPECT_FALSE(gate_.CheckTakesWork().ok()) << "no new work is ever accepted again";
}

TEST_F(QuietServiceTest, NothingToAskOnceTheAgentIsClosed) {
  runtime_.loop.Stop();
  for (const absl::Status& status : {service_.Drain(kMs), service_.Quiesce({}, kMs).status(),
                                     service_.IsQuiet(QuiesceToken{1}).status()}) {
    EXPECT_TRUE(Fails(status, absl::StatusCode::kFailedPrecondition, {"closed"}));
  }
}

}  // namespace
}  // namespace kvxfer::testing
