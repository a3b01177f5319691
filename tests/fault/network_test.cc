// Paths that carry nothing, or carry it badly: unreachable, black hole, a slow rail.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <string>
#include <vector>

#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/machine_delay.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/tcp_proxy.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class Network : public ::testing::TestWithParam<Flavour> {};

// Expect that the transfers to a peer that is gone before the first connection end in time and
// say whom they did not reach.
TEST_P(Network, Unreachable) {
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(GetParam(), 64 * 1024));
  pair.b.agent.reset();
  TransferOptions brief = Telling("x");
  brief.deadline = milliseconds(500);
  const MachineDelay machine;
  const Time start = Now();
  ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                       BlockSet({}, pair.a.memory.address(), pair.b.memory.address())
                           .Write(*pair.a.agent, "b", brief));
  const absl::Status end = transfer.Wait(kAmple);
  EXPECT_LE(Now() - start, brief.deadline + Bound(brief.deadline / 10) + machine.so_far());
  EXPECT_FALSE(end.ok());
  EXPECT_NE(end.message().find("b"), std::string::npos) << end;
  EXPECT_NE(end.message().find(GetParam().inner()), std::string::npos) << end;
  EXPECT_FALSE(transfer.quarantined());
  EXPECT_EQ(transfer.delivery(), Delivery::kNotDelivered);
  EXPECT_EQ(FirstNonZero(pair.b.memory.bytes()), kNoMismatch);
}

// Expect that nothing waits for ever when everything vanishes on the way without an error.
TEST_P(Network, BlackHole) {
  Flavour flavour = GetParam();
  flavour.backend = "faulty:" + flavour.backend;
  flavour.faults.blackhole_after = 200;
  AgentOptions options = OptionsFor(flavour, "a");
  options.heartbeat = milliseconds(50);
  options.suspect_after = milliseconds(200);
  options.cancel_grace = milliseconds(100);
  ASSERT_OK_AND_ASSIGN(Pair pair,
                       Pair::Create(flavour, options, OptionsFor(flavour, "b"), 64 * 1024));
  const Shape shape{.block_bytes = 512, .ids = 16};
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  TransferOptions brief = Telling("x");
  brief.deadline = milliseconds(500);
  int done = 0;
  bool swallowed = false;
  for (int i = 0; i < 1000 && !swallowed; ++i) {
    const MachineDelay machine;
    const Time start = Now();
    const absl::StatusOr<Transfer> transfer = blocks.Write(*pair.a.agent, "b", brief);
    ASSERT_OK(transfer);
    const absl::Status end = transfer->Wait(kAmple);
    EXPECT_LE(Now() - start, brief.deadline + Bound(brief.deadline / 10) + machine.so_far()) << end;
    swallowed = !end.ok();
    done += end.ok() ? 1 : 0;
    if (swallowed) {
      EXPECT_NE(transfer->Poll(), TransferState::kActive);
    }
  }
  EXPECT_TRUE(swallowed) << "the black hole never opened";
  std::printf("%s: %d transfers before the black hole\n", flavour.name.c_str(), done);
  // Quiesce at the target ends too.
  const MachineDelay machine;
  const Time start = Now();
  EXPECT_OK(pair.b.agent->Quiesce({.peer = "a", .regions = {}}, milliseconds(100)));
  EXPECT_LE(Now() - start, Bound(milliseconds(200)) + machine.so_far());
}

// Expect that one slow rail slows a transfer down and harms nothing.
TEST_P(Network, SlowRail) {
  Flavour flavour = GetParam();
  flavour.backend = "faulty:" + flavour.backend;
  flavour.faults.slow_rail = 0;
  flavour.faults.slow_rail_delay = milliseconds(20);
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(flavour, 2 << 20));
  Pattern(1).Fill(pair.a.memory.bytes());
  const Shape shape{.block_bytes = 8192, .ids = 128};
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  for (int i = 0; i < 5; ++i) {
    pair.b.memory.Clear();
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         blocks.Write(*pair.a.agent, "b", Telling(std::to_string(i))));
    ASSERT_OK_AND_ASSIGN(const Notification n, pair.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(n.payload, std::to_string(i));
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, 1, pair.b.memory.bytes()));
    EXPECT_OK(transfer.Wait(kAmple));
  }
}

INSTANTIATE_TEST_SUITE_P(Plain, Network, ::testing::ValuesIn(PlainFlavours()), FlavourName);

// Expect that an initiator whose only path is refused for a while carries on when it is there:
// the proxy has no target at first.
TEST(NetworkTcp, TargetComesLate) {
  TcpProxy proxy;
  const Flavour flavour = TcpFlavour();
  AgentOptions b = OptionsFor(flavour, "b");
  b.advertise = proxy.address();
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(flavour, OptionsFor(flavour, "a"), b, 64 * 1024));
  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  TransferOptions brief = Unhurried();
  brief.deadline = milliseconds(200);
  ASSERT_OK_AND_ASSIGN(const Transfer early, blocks.Write(*pair.a.agent, "b", brief));
  EXPECT_FALSE(early.Wait(kAmple).ok());
  ASSERT_FALSE(pair.b.agent->listen_address().empty());
  proxy.SetTarget(pair.b.agent->listen_address());
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const absl::StatusOr<Transfer> transfer = blocks.Write(*pair.a.agent, "b", Unhurried());
    return transfer.ok() && transfer->Wait(kAmple).ok();
  }));
}

// Expect a backend that failed to be tried again while another one carries, and to be taken again.
TEST(NetworkTcp, TargetComesLateBesideAnotherPath) {
  TcpProxy proxy;
  AgentOptions a = OptionsFor(TcpFlavour(), "a");
  a.backends = {"tcp", "shm"};
  // It is tried again after 30 of these.
  a.connect_timeout = milliseconds(kEmulated ? 1000 : kSanitized ? 600 : 300);
  AgentOptions b = a;
  b.name = "b";
  b.advertise = proxy.address();
  ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(TcpFlavour(), a, b, 64 * 1024));
  const BlockSet blocks({}, pair.a.memory.address(), pair.b.memory.address());
  const auto carried = [&]() -> std::string {
    const absl::StatusOr<Transfer> transfer = blocks.Write(*pair.a.agent, "b", Unhurried());
    return transfer.ok() && transfer->Wait(kAmple).ok() ? transfer->stats().path : "nothing";
  };
  for (int i = 0; i < 10; ++i) EXPECT_EQ(carried(), "shm");
  proxy.SetTarget(pair.b.agent->listen_address());
  EXPECT_TRUE(Eventually(kAmple, [&] { return carried() == "tcp"; }));
}

// Both agents have dialled, each through a proxy, and one of the two lets nothing pass any more.
class HalfOpen : public ::testing::Test {
 protected:
  void SetUp() override {
    for (size_t i = 0; i < 2; ++i) {
      AgentOptions options = OptionsFor(TcpFlavour(), kNames[i]);
      options.advertise = proxies_[i].address();
      ASSERT_OK_AND_ASSIGN(nodes_[i], Node::Create(options, MemoryType::kAttached, 2 * kBytes));
      proxies_[i].SetTarget(agent(i).listen_address());
    }
    for (size_t i = 0; i < 2; ++i) {
      ASSERT_OK(Introduce(agent(i), agent(1 - i)));
    }
    for (size_t i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Writes(i, "both"));
  }
  Agent& agent(size_t i) { return *nodes_[i].agent; }
  absl::StatusOr<Transfer> Write(size_t i, const std::string& word) {
    return WriteAcross(nodes_[i], nodes_[1 - i], word);
  }
  void Writes(size_t i, const std::string& word) {
    ASSERT_OK_AND_ASSIGN(const Transfer write, Write(i, word));
    ASSERT_OK(write.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Notification told, agent(1 - i).WaitNotification(kAmple));
    EXPECT_EQ(told.payload, word);
  }

  static constexpr size_t kBytes = 64 * 1024;
  static constexpr std::array<const char*, 2> kNames{"left", "right"};
  std::array<TcpProxy, 2> proxies_;
  std::array<Node, 2> nodes_;
};

// Expect the side whose own connection passes to go on, whichever of the two carries the control
// frames, and the other one to go on when its connection passes again.
TEST_F(HalfOpen, TheOtherDirectionGoesOn) {
  for (size_t dead = 0; dead < 2; ++dead) {
    SCOPED_TRACE(dead);
    proxies_[1 - dead].Hold(true);  // `dead` has dialled it
    ASSERT_OK_AND_ASSIGN(const Transfer waits, Write(dead, "late"));
    const MachineDelay machine;
    const Time start = Now();
    for (int i = 0; i < Scaled(20); ++i) {
      ASSERT_NO_FATAL_FAILURE(Writes(1 - dead, std::to_string(i)));
    }
    // Found once at each side, not with each transfer.
    EXPECT_LE(Now() - start, Bound(seconds(3)) + machine.so_far());
    EXPECT_EQ(waits.Poll(), TransferState::kActive);
    proxies_[1 - dead].Hold(false);
    EXPECT_OK(waits.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Notification told, agent(1 - dead).WaitNotification(kAmple));
    EXPECT_EQ(told.payload, "late");
    for (size_t i = 0; i < 2; ++i) ASSERT_NO_FATAL_FAILURE(Writes(i, "both"));
  }
}

}  // namespace
}  // namespace kvxfer::testing
