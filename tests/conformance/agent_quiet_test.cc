// G4 where nothing goes wrong: Quiesce, its tokens, and deregistration while transfers are under
// way.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "src/core/protocol/metadata.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/memory_view.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

class AgentQuiet : public ::testing::TestWithParam<Flavour> {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(GetParam(), 20 * kMiB));
    Pattern(1).Fill(pair_.a.memory.bytes());
  }
  absl::StatusOr<Transfer> Post(const Shape& shape, const TransferOptions& options) {
    return BlockSet(shape, pair_.a.memory.address(), pair_.b.memory.address())
        .Write(*pair_.a.agent, "b", options);
  }

  Pair pair_;
};

TEST_P(AgentQuiet, QuietWhereNothingIsUnderWay) {
  ASSERT_OK_AND_ASSIGN(const QuiesceResult nobody, pair_.b.agent->Quiesce({}, kAmple));
  EXPECT_TRUE(nobody.quiet);
  EXPECT_EQ(nobody.token, QuiesceToken::kNone);
  ASSERT_OK_AND_ASSIGN(const Transfer good, Post({}, Unhurried()));
  ASSERT_OK(good.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const QuiesceResult after,
                       pair_.b.agent->Quiesce({.peer = "a", .regions = {pair_.b.region}}, kAmple));
  EXPECT_TRUE(after.quiet) << after.pending;
  EXPECT_TRUE(Fails(pair_.b.agent->IsQuiet(QuiesceToken{12345}), absl::StatusCode::kNotFound));
}

// Expect that Quiesce waits for what is under way, and that its token clears when that has ended.
TEST_P(AgentQuiet, WaitsForWhatIsUnderWay) {
  const Shape shape{.block_bytes = 64 * 1024, .ids = 256};
  for (const Duration timeout : {Duration(0), Duration(milliseconds(1)), kAmple}) {
    ASSERT_OK_AND_ASSIGN(const Transfer first, Post({}, Unhurried()));
    ASSERT_OK(first.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Transfer large, Post(shape, Unhurried()));
    ASSERT_OK_AND_ASSIGN(const QuiesceResult result,
                         pair_.b.agent->Quiesce({.peer = "a", .regions = {}}, timeout));
    if (result.quiet) {
      // What began before the call has ended, at the initiator too.
      EXPECT_OK(large.Wait(Bound(milliseconds(50))));
      continue;
    }
    EXPECT_NE(timeout, kAmple) << "still waits for " << result.pending;
    EXPECT_NE(result.token, QuiesceToken::kNone);
    EXPECT_NE(result.pending.find('a'), std::string::npos) << result.pending;
    EXPECT_TRUE(Eventually(kAmple, [&] {
      const absl::StatusOr<bool> quiet = pair_.b.agent->IsQuiet(result.token);
      EXPECT_OK(quiet);
      return !quiet.ok() || *quiet;
    }));
    EXPECT_TRUE(Fails(pair_.b.agent->IsQuiet(result.token), absl::StatusCode::kNotFound));
    EXPECT_OK(large.Wait(kAmple));
  }
}

TEST_P(AgentQuiet, LocalRegionInUseIsNotDeregistered) {
  std::atomic<uint32_t> ready{0};
  TransferOptions held = Telling("held");
  held.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Post({}, held));
  EXPECT_TRUE(Fails(pair_.a.agent->DeregisterMemory(pair_.a.region, milliseconds(20)), kTimedOut));
  EXPECT_EQ(transfer.Poll(), TransferState::kActive);
  ready.store(1, std::memory_order_release);
  ASSERT_OK(transfer.Wait(kAmple));
  EXPECT_TRUE(AllArrived({}, Side::kRemote, 1, pair_.b.memory.bytes()));
  ASSERT_OK(pair_.a.agent->DeregisterMemory(pair_.a.region, kAmple));
  EXPECT_TRUE(
      Fails(pair_.a.agent->DeregisterMemory(pair_.a.region, kAmple), absl::StatusCode::kNotFound));
  EXPECT_TRUE(Fails(Post({}, Unhurried()), absl::StatusCode::kInvalidArgument));
}

// Expect that calls that time out leave no question to the peers behind, however many they are.
TEST_P(AgentQuiet, RetriedDeregistrationAsksOnce) {
  ASSERT_OK_AND_ASSIGN(const Transfer first, Post({}, Unhurried()));
  ASSERT_OK(first.Wait(kAmple));
  // Held by the owner itself, so that the first calls time out whatever the peers answer.
  std::atomic<uint32_t> ready{0};
  TransferOptions held = Unhurried();
  held.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer back,
                       BlockSet({}, pair_.b.memory.address(), pair_.a.memory.address())
                           .Write(*pair_.b.agent, "a", held));
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Fails(pair_.b.agent->DeregisterMemory(pair_.b.region, Duration(0)), kTimedOut,
                      {"still in use"}));
  }
  ready.store(1, std::memory_order_release);
  ASSERT_OK(back.Wait(kAmple));
  EXPECT_OK(pair_.b.agent->DeregisterMemory(pair_.b.region, kAmple));
  for (uint64_t token = 1; token <= 30; ++token) {
    EXPECT_TRUE(Fails(pair_.b.agent->IsQuiet(QuiesceToken{token}), absl::StatusCode::kNotFound))
        << token;
  }
}

// Expect that of two calls for one region the second is told, and does not say OK before its time.
TEST_P(AgentQuiet, DeregisteredByTwo) {
  std::atomic<uint32_t> ready{0};
  TransferOptions held = Unhurried();
  held.ready = &ready;
  ASSERT_OK_AND_ASSIGN(const Transfer transfer, Post({}, held));
  absl::Status first;
  std::thread one([&] { first = pair_.a.agent->DeregisterMemory(pair_.a.region, kAmple); });
  // Begun: metadata does not name the region any more.
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const absl::StatusOr<std::string> metadata = pair_.a.agent->Metadata();
    if (!metadata.ok()) return false;
    // What the agent itself has for staging stays.
    const auto of_application = [](const AgentMetadata::Region& region) { return !region.staging; };
    return std::ranges::none_of(DecodeMetadata(*metadata)->regions, of_application);
  }));
  EXPECT_TRUE(Fails(pair_.a.agent->DeregisterMemory(pair_.a.region, kAmple),
                    absl::StatusCode::kFailedPrecondition, {"another call"}));
  ready.store(1, std::memory_order_release);
  one.join();
  EXPECT_OK(first);
  EXPECT_OK(transfer.Wait(kAmple));
  EXPECT_TRUE(
      Fails(pair_.a.agent->DeregisterMemory(pair_.a.region, kAmple), absl::StatusCode::kNotFound));
}

// Expect that once the target's deregistration returns OK not one byte changes, however busy the
// initiator is; whoever comes too late fails and holds nothing up.
TEST_P(AgentQuiet, TargetDeregistersUnderLoad) {
  const Shape shape{.block_bytes = 16 * 1024, .ids = 64};
  for (int round = 0; round < Scaled(10); ++round) {
    ASSERT_OK_AND_ASSIGN(TestMemory memory,
                         TestMemory::Allocate(GetParam().memory, shape.memory_bytes()));
    ASSERT_OK_AND_ASSIGN(const RegionId region,
                         pair_.b.agent->RegisterMemory(memory.span(), Access::kRemoteWrite));
    ASSERT_OK(Introduce(*pair_.a.agent, *pair_.b.agent));
    const BlockSet blocks(shape, pair_.a.memory.address(), memory.address());
    std::atomic<bool> stop{false};
    std::atomic<int> posted{0};
    std::vector<Transfer> transfers;
    std::thread writer([&] {
      while (!stop && transfers.size() < 1000) {
        const absl::StatusOr<Transfer> transfer =
            blocks.Write(*pair_.a.agent, "b", Unhurried(NotifyOrder::kAnyOrder));
        if (transfer.ok()) transfers.push_back(*transfer);
        if (transfers.size() % 8 == 7) transfers.back().Wait(kAmple).IgnoreError();
        ++posted;
      }
    });
    EXPECT_TRUE(Eventually(kAmple, [&] { return posted > 10 + round; }));
    const absl::Status deregistered = pair_.b.agent->DeregisterMemory(region, kAmple);
    // Poison it; whatever lands now shows.
    FillWith(memory.bytes(), kPoison);
    stop = true;
    writer.join();
    ASSERT_OK(deregistered);
    for (const Transfer& transfer : transfers) {
      EXPECT_NE(transfer.Wait(kAmple).code(), absl::StatusCode::kDeadlineExceeded);
    }
    EXPECT_OK(pair_.b.agent->Quiesce({}, kAmple));
    const ReadView view(memory.bytes());
    for (const std::byte byte : view.bytes()) ASSERT_EQ(byte, kPoison);
  }
  ASSERT_OK_AND_ASSIGN(const Transfer good, Post(shape, Telling("good")));
  EXPECT_OK(good.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Notification n, pair_.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(n.payload, "good");
}

INSTANTIATE_TEST_SUITE_P(All, AgentQuiet, ::testing::ValuesIn(AllFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
