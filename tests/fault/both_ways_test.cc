// Two agents that write to each other have one session. Both dial at once; a firewall may let
// connections pass in one direction only; either side may end the session at any moment.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>

#include "src/core/protocol/metadata.h"
#include "tests/support/agents.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr size_t kBytes = 4096;

class BothWays : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    AgentOptions options;
    options.backends = {GetParam()};
    options.cancel_grace = std::chrono::milliseconds(100);
    for (size_t i = 0; i < 2; ++i) {
      options.name = kNames[i];
      ASSERT_OK_AND_ASSIGN(nodes_[i], Node::Create(options, MemoryType::kAttached, 2 * kBytes));
    }
    // Over tcp nobody is at its address once it is gone.
    options.name = "gone";
    ASSERT_OK_AND_ASSIGN(const auto gone, Agent::Create(options));
    nowhere_ = MetadataOf(*gone).backends.front().address;
  }

  static AgentMetadata MetadataOf(const Agent& agent) { return *DecodeMetadata(*agent.Metadata()); }
  Agent& agent(size_t i) { return *nodes_[i].agent; }

  // `i` learns of the other one; `blocked`: with an address at which it cannot be dialled.
  void Learn(size_t i, bool blocked) {
    AgentMetadata metadata = MetadataOf(agent(1 - i));
    if (blocked) metadata.backends.front().address = nowhere_;
    ASSERT_OK(agent(i).AddPeer(EncodeMetadata(metadata)));
  }
  absl::StatusOr<Transfer> Write(size_t i, const std::string& word) {
    return WriteAcross(nodes_[i], nodes_[1 - i], word);
  }
  void ExpectNotified(size_t i, const std::string& word) {
    ASSERT_OK_AND_ASSIGN(const Notification notified, agent(i).WaitNotification(kAmple));
    EXPECT_EQ(notified.payload, word);
  }

  static constexpr std::array<const char*, 2> kNames{"left", "right"};
  std::array<Node, 2> nodes_;
  std::string nowhere_;
};

// Over tcp one of the two cannot dial in every other round. Expect the other one not to notice, and
// in each round what was removed to be gone: each word comes once.
TEST_P(BothWays, BothDialAtOnceManyTimes) {
  const bool blocks = std::string(GetParam()) == "tcp";
  for (int round = 0; round < Scaled(1000); ++round) {
    SCOPED_TRACE(round);
    std::array<bool, 2> blocked{};
    if (blocks && round % 2 == 1) blocked[static_cast<size_t>(round / 2 % 2)] = true;
    std::array<Transfer, 2> writes;
    for (size_t i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Learn(i, blocked[i]));
    const std::string word = std::to_string(round);
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_OK_AND_ASSIGN(writes[i], Write(i, word));
    }
    for (size_t i = 0; i < 2; ++i) {
      if (blocked[i]) {
        EXPECT_TRUE(absl::IsUnavailable(writes[i].Wait(kAmple))) << writes[i].status();
        EXPECT_NE(writes[i].Poll(), TransferState::kActive);
        continue;
      }
      ASSERT_OK(writes[i].Wait(kAmple));
      ASSERT_NO_FATAL_FAILURE(ExpectNotified(1 - i, word));
    }
    // Once more, over what is up by now.
    for (size_t i = 0; i < 2; ++i) {
      if (blocked[i]) continue;
      ASSERT_OK_AND_ASSIGN(const Transfer more, Write(i, word + " again"));
      ASSERT_OK(more.Wait(kAmple));
      ASSERT_NO_FATAL_FAILURE(ExpectNotified(1 - i, word + " again"));
    }
    for (size_t i = 0; i < 2; ++i) ASSERT_OK(agent(i).RemovePeer(kNames[1 - i]));
    if (::testing::Test::HasFailure()) return;
  }
  for (size_t i = 0; i < 2; ++i) EXPECT_FALSE(agent(i).PollNotification().has_value());
}

// One side ends the session again and again while the other one writes. Expect every transfer to
// end, no word to come twice, and all to be well once it stops.
TEST_P(BothWays, OneSideEndsTheSessionUnderTheOthersTransfers) {
  for (size_t i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Learn(i, false));
  std::array<int, 2> last{-1, -1};
  const auto take = [&](size_t i) {
    while (const auto told = agent(i).PollNotification()) {
      const int word = std::stoi(told->payload);
      EXPECT_GT(word, last[i]);
      last[i] = word;
    }
  };
  std::vector<Transfer> writes;
  for (int round = 0; round < Scaled(100); ++round) {
    for (int k = 0; k < 4; ++k) {
      for (size_t i = 0; i < 2; ++i) {
        ASSERT_OK_AND_ASSIGN(Transfer write, Write(i, std::to_string(4 * round + k)));
        writes.push_back(std::move(write));
      }
    }
    if (round % 3 == 0) writes.back().Wait(kAmple).IgnoreError();
    ASSERT_OK(agent(1).RemovePeer(kNames[0]));
    ASSERT_NO_FATAL_FAILURE(Learn(1, false));
    for (size_t i = 0; i < 2; ++i) take(i);
  }
  for (const Transfer& write : writes) {
    write.Wait(kAmple).IgnoreError();
    EXPECT_NE(write.Poll(), TransferState::kActive);
  }
  for (size_t i = 0; i < 2; ++i) take(i);
  for (size_t i = 0; i < 2; ++i) {
    const std::string word = std::to_string(1'000'000);
    EXPECT_TRUE(Eventually(kAmple, [&] {
      const auto write = Write(i, word);
      return write.ok() && write->Wait(kAmple).ok();
    }));
  }
}

INSTANTIATE_TEST_SUITE_P(Over, BothWays, ::testing::Values("loopback", "tcp"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace kvxfer::testing
