// AgentOptions::backends: all by default, those that are named, or all but those with "^".
#include "src/agent/engine/backend_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;
using Names = std::vector<std::string>;

const Names kDefaults{"loopback", "shm", "verbs", "tcp"};

TEST(BackendList, IsTheDefaultsOrWhatIsNamed) {
  ASSERT_OK_AND_ASSIGN(const BackendList all, ChooseBackends({}, kDefaults));
  EXPECT_THAT(all.names, ElementsAre("loopback", "shm", "verbs", "tcp"));
  EXPECT_FALSE(all.strict);
  ASSERT_OK_AND_ASSIGN(const BackendList two, ChooseBackends(Names{"tcp", "ucx"}, kDefaults));
  EXPECT_THAT(two.names, ElementsAre("tcp", "ucx"));
  EXPECT_TRUE(two.strict);
}

TEST(BackendList, LeavesOut) {
  ASSERT_OK_AND_ASSIGN(const BackendList some, ChooseBackends(Names{"^shm", "^verbs"}, kDefaults));
  EXPECT_THAT(some.names, ElementsAre("loopback", "tcp"));
  EXPECT_FALSE(some.strict);
}

TEST(BackendList, BadListsAreExplained) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_TRUE(Fails(ChooseBackends(Names{"tcp", "tcp"}, kDefaults), kInvalid, {"tcp", "twice"}));
  EXPECT_TRUE(Fails(ChooseBackends(Names{"^tcp", "^tcp"}, kDefaults), kInvalid, {"tcp", "twice"}));
  EXPECT_TRUE(Fails(ChooseBackends(Names{"^tcp", "shm"}, kDefaults), kInvalid, {"one of the two"}));
  EXPECT_TRUE(Fails(ChooseBackends(Names{"^warp"}, kDefaults), kInvalid, {"^warp", "shm, verbs"}));
  EXPECT_TRUE(Fails(ChooseBackends(Names{"^"}, kDefaults), kInvalid, {"\"^\""}));
  EXPECT_TRUE(Fails(ChooseBackends(Names{"^tcp", "^shm", "^verbs", "^loopback"}, kDefaults),
                    kInvalid, {"every backend"}));
}

}  // namespace
}  // namespace kvxfer::testing
