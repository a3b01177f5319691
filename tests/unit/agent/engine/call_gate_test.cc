// Which calls of the application reach the driver, and which are refused.
#include "src/agent/engine/call_gate.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "src/agent/engine/dispatcher.h"
#include "tests/unit/agent/engine/engine_parts.h"

namespace kvxfer::testing {
namespace {

class CallGateTest : public ::testing::Test, public EngineParts {
 protected:
  static constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;
};

TEST_F(CallGateTest, CommandsReturnWhatTheySay) {
  bool ran = false;
  EXPECT_OK(gate_.Call([&] { ran = true; }));
  EXPECT_TRUE(ran);
  EXPECT_EQ(*gate_.CallFor<absl::StatusOr<int>>([] { return 7; }), 7);
  EXPECT_TRUE(Fails(gate_.CallFor<absl::Status>([] { return absl::NotFoundError("nobody"); }),
                    absl::StatusCode::kNotFound, {"nobody"}));
}

TEST_F(CallGateTest, AClosedAgentRunsNothing) {
  runtime_.loop.Stop();
  EXPECT_TRUE(Fails(gate_.Call([] { ADD_FAILURE(); }), kRefused, {"closed"}));
  EXPECT_TRUE(Fails(gate_.CallFor<absl::StatusOr<int>>([] { return 7; }), kRefused, {"closed"}));
}

TEST_F(CallGateTest, WaitingEndsWithWhatItWaitsForOrItsTime) {
  std::atomic<bool> done{false};
  const auto is_done = [&] { return done.load(); };
  EXPECT_FALSE(*gate_.WaitFor(&done, is_done, Now() + kMs));
  std::thread other([&] {
    done = true;
    runtime_.loop.Wake(&done);
  });
  EXPECT_TRUE(*gate_.WaitFor(&done, is_done, Time::max()));
  other.join();
  EXPECT_TRUE(*gate_.WaitFor(&done, is_done, Time{})) << "it was so before";
}

TEST_F(CallGateTest, WaitingEndsWhenTheAgentIsClosed) {
  std::thread closer([&] { runtime_.loop.Stop(); });
  EXPECT_TRUE(Fails(gate_.WaitFor(
                        this, [] { return false; }, Time::max()),
                    absl::StatusCode::kCancelled, {"closed"}));
  closer.join();
}

// Expect the refusal even where there is nothing to wait for.
TEST_F(CallGateTest, CallbacksMayNotWait) {
  EXPECT_OK(CallGate::RefuseInCallback("Drain"));
  Dispatcher dispatcher;
  std::promise<void> over;
  dispatcher.Run([&] {
    EXPECT_TRUE(Fails(CallGate::RefuseInCallback("Drain"), kRefused, {"Drain", "callback"}));
    EXPECT_TRUE(Fails(gate_.WaitFor(
                          this, [] { return true; }, Time::max()),
                      kRefused, {"callback"}));
    over.set_value();
  });
  over.get_future().wait();
}

TEST_F(CallGateTest, DrainingRefusesNewWorkAndNothingElse) {
  EXPECT_OK(gate_.CheckTakesWork());
  gate_.StopWork();
  EXPECT_TRUE(Fails(gate_.CheckTakesWork(), kRefused, {"here", "drained"}));
  EXPECT_OK(gate_.Call([] {}));
}

}  // namespace
}  // namespace kvxfer::testing
