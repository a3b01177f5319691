// Options that no agent and no transfer can have.
#include "src/agent/engine/check_options.h"

#include <gtest/gtest.h>

#include <string>

#include "kvxfer/notification.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

TEST(CheckOptions, DecorationsOfABackend) {
  EXPECT_EQ(Undecorated("tcp"), "tcp");
  EXPECT_EQ(Undecorated("faulty:tcp"), "tcp");
}

TEST(CheckOptions, DurationsHaveBounds) {
  AgentOptions options{.name = "a"};
  EXPECT_OK(CheckAgentOptions(options));
  options.connect_timeout = kLongest;
  EXPECT_OK(CheckAgentOptions(options));
  options.connect_timeout = kLongest + Duration(1);
  EXPECT_TRUE(Fails(CheckAgentOptions(options), absl::StatusCode::kInvalidArgument,
                    {"connect_timeout", "a year"}));
  options.connect_timeout = Duration::zero();
  EXPECT_TRUE(Fails(CheckAgentOptions(options), absl::StatusCode::kInvalidArgument,
                    {"connect_timeout", "positive"}));
  options = {.name = "a"};
  options.suspect_after = options.heartbeat;
  EXPECT_TRUE(
      Fails(CheckAgentOptions(options), absl::StatusCode::kInvalidArgument, {"suspect_after"}));
}

TEST(CheckOptions, SectionsOfBackendsThatExist) {
  AgentOptions options{.name = "a"};
  options.backend["tpc"]["streams"] = "2";
  EXPECT_TRUE(Fails(CheckAgentOptions(options), absl::StatusCode::kInvalidArgument,
                    {"\"tpc\"", "did you mean tcp"}));
  options.backend.clear();
  options.backend["faulty"]["seed"] = "2";
  EXPECT_OK(CheckAgentOptions(options));
  options.backends = {"faulty:mine"};
  options.backend["mine"]["x"] = "2";
  EXPECT_OK(CheckAgentOptions(options)) << "a plugin that was named";
}

TEST(CheckOptions, OfATransfer) {
  TransferOptions options;
  options.notification = std::string(kMaxNotificationBytes, 'x');
  EXPECT_OK(CheckTransferOptions(options));
  options.notification->push_back('x');
  EXPECT_TRUE(Fails(CheckTransferOptions(options), absl::StatusCode::kInvalidArgument, {"64 KiB"}));
  options.notification.reset();
  options.deadline = kLongest + Duration(1);
  EXPECT_TRUE(Fails(CheckTransferOptions(options), absl::StatusCode::kInvalidArgument,
                    {"deadline", "year"}));
}

}  // namespace
}  // namespace kvxfer::testing
