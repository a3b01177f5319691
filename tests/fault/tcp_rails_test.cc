// Agents whose tcp data streams break, one at a time, while they transfer: every transfer is done,
// each byte of it is there when it is told, and it is told once and in order.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/agent_rails.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/open_files.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/tcp_proxy.h"
#include "tests/support/tcp_streams.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Shape kShape{.block_bytes = 64 * 1024, .ids = 64};
constexpr Shape kLarge{.block_bytes = 256 * 1024, .ids = 128};

class TcpRailFaults : public ::testing::Test {
 protected:
  // `proxied`: every stream goes through proxy_.
  void Start(bool proxied, const Shape& shape = kShape) {
    shape_ = shape;
    const Flavour flavour = TcpFlavour();
    AgentOptions a = OptionsFor(flavour, "a");
    AgentOptions b = OptionsFor(flavour, "b");
    a.stripe_from = 64 * 1024;
    b.max_notifications = 100'000;
    if (proxied) b.advertise = proxy_.address();
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(flavour, a, b, shape_.memory_bytes()));
    if (proxied) proxy_.SetTarget(pair_.b.agent->listen_address());
  }

  // One transfer, told and looked at; done while `meanwhile` runs.
  template <typename Fn>
  void Move(uint64_t number, Fn meanwhile) {
    Pattern(number).Fill(pair_.a.memory.bytes());
    pair_.b.memory.Clear();
    const BlockSet blocks(shape_, pair_.a.memory.address(), pair_.b.memory.address());
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         blocks.Write(*pair_.a.agent, "b", Telling(std::to_string(number))));
    meanwhile();
    ASSERT_OK(transfer.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Notification told, pair_.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(told.payload, std::to_string(number));
    EXPECT_TRUE(AllArrived(shape_, Side::kRemote, number, pair_.b.memory.bytes()));
    EXPECT_FALSE(pair_.b.agent->WaitNotification(milliseconds(0)).ok()) << "told twice";
  }
  void Move(uint64_t number) {
    Move(number, [] {});
  }

  std::vector<RailExplanation> Rails() const { return testing::Rails(*pair_.a.agent, "b", "tcp"); }
  size_t RailsUp() const { return testing::RailsUp(*pair_.a.agent, "b", "tcp"); }

  TcpProxy proxy_;
  Pair pair_;
  Shape shape_;
};

TEST_F(TcpRailFaults, AStreamThatIsResetInMidTransferIsDoneWithoutAndUsedAgain) {
  ASSERT_NO_FATAL_FAILURE(Start(/*proxied=*/true, kLarge));
  ASSERT_NO_FATAL_FAILURE(Move(1));
  ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
  const size_t links = proxy_.links();
  uint64_t number = 2;
  for (const uint32_t rail : {0u, 1u}) {
    ASSERT_NO_FATAL_FAILURE(Move(number++, [&] {
      std::this_thread::sleep_for(milliseconds(2));
      EXPECT_EQ(proxy_.CutRail(rail), 1u);
    }));
    ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
    EXPECT_NE(Rails()[rail].why.find("data stream " + std::to_string(rail)), std::string::npos)
        << Rails()[rail].why;
    ASSERT_NO_FATAL_FAILURE(Move(number++));
  }
  EXPECT_EQ(proxy_.links(), links) << "the connection was lost";
}

TEST_F(TcpRailFaults, FlappingStreamsUnderLoadLoseNothingAndLeaveNothingBehind) {
  ASSERT_NO_FATAL_FAILURE(Start(/*proxied=*/true));
  ASSERT_NO_FATAL_FAILURE(Move(1));
  ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
  const size_t links = proxy_.links();
  const size_t descriptors = OpenFiles();
  const int wanted = Scaled(100);
  std::atomic<int> cuts{0};
  std::jthread cutter([&](const std::stop_token& stop) {
    for (uint32_t rail = 0; cuts < wanted && !stop.stop_requested(); rail = 1 - rail) {
      std::this_thread::sleep_for(milliseconds(10));
      cuts += static_cast<int>(proxy_.CutRail(rail));
    }
  });
  uint64_t number = 2;
  while (cuts < wanted) ASSERT_NO_FATAL_FAILURE(Move(number++));
  cutter.join();
  std::printf("%d streams cut in %llu transfers\n", cuts.load(),
              static_cast<unsigned long long>(number - 2));
  EXPECT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
  ASSERT_NO_FATAL_FAILURE(Move(number));
  EXPECT_EQ(proxy_.links(), links) << "the connection was lost";
  EXPECT_TRUE(Eventually(kAmple, [&] { return OpenFiles() <= descriptors; }))
      << OpenFiles() << " descriptors, " << descriptors << " before";
}

// Expect a stream into a black hole to cost the time in which that is found, and no more.
TEST_F(TcpRailFaults, AStreamIntoABlackHoleDoesNotHoldTheTransferUp) {
  ASSERT_NO_FATAL_FAILURE(Start(/*proxied=*/false));
  ASSERT_NO_FATAL_FAILURE(Move(1));
  ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
  const std::vector<StreamEnd> ends = OneDataStream();
  ASSERT_EQ(ends.size(), 2u);
  Blackhole(ends);
  const Time start = Now();
  ASSERT_NO_FATAL_FAILURE(Move(2));
  EXPECT_LT(Now() - start, Bound(seconds(6)));
  EXPECT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
  ASSERT_NO_FATAL_FAILURE(Move(3));
}

// Expect a cancel, whose fence meets a stream that is dead, to be quiet in bounded time.
TEST_F(TcpRailFaults, AFenceThatMeetsADeadStreamIsQuietInBoundedTime) {
  ASSERT_NO_FATAL_FAILURE(Start(/*proxied=*/true, kLarge));
  ASSERT_NO_FATAL_FAILURE(Move(1));
  for (uint32_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
    pair_.b.memory.Clear();
    const BlockSet blocks(shape_, pair_.a.memory.address(), pair_.b.memory.address());
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair_.a.agent, "b", Telling("x")));
    std::this_thread::sleep_for(milliseconds(i % 4));
    proxy_.CutRail(i % 2);
    const Time start = Now();
    transfer.Cancel();
    const absl::Status end = transfer.Wait(kAmple);
    EXPECT_LT(Now() - start, Bound(seconds(2)));
    EXPECT_FALSE(transfer.quarantined()) << end;
    ASSERT_OK_AND_ASSIGN(const QuiesceResult quiet, pair_.b.agent->Quiesce({}, kAmple));
    EXPECT_TRUE(quiet.quiet) << quiet.pending;
    // Nothing lands any more.
    Pattern(77).Fill(pair_.b.memory.bytes());
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(Pattern(77).Mismatch(pair_.b.memory.bytes()), kNoMismatch);
    if (end.ok()) {
      ASSERT_OK(pair_.b.agent->WaitNotification(kAmple));
    }
    while (pair_.b.agent->WaitNotification(milliseconds(0)).ok()) {
    }
  }
}

}  // namespace
}  // namespace kvxfer::testing
