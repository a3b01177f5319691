// What a call of Agent::Write does by itself, with nobody driving.

#include <gtest/gtest.h>

#include <chrono>

#include "tests/support/send_path.h"

namespace kvxfer::testing {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

// The backend copies a small write while it is posted. Where the background thread sleeps nobody
// has to be woken for the rest. It may be awake at any one call.
TEST(AgentSubmit, AWriteThatIsCopiedAtOnceEndsWithinTheCall) {
  auto path = SendPath::Create({.ids = 1});
  ASSERT_TRUE(path.ok()) << path.status();
  ASSERT_TRUE((*path)->Send().ok());  // connects
  bool within = false;
  for (const auto start = steady_clock::now();
       !within && steady_clock::now() - start < seconds(20);) {
    const auto transfer = (*path)->Submit();
    ASSERT_TRUE(transfer.ok()) << transfer.status();
    within = transfer->Poll() == TransferState::kDone;
    ASSERT_TRUE(transfer->Wait(seconds(20)).ok());
  }
  EXPECT_TRUE(within);
}

}  // namespace
}  // namespace kvxfer::testing
