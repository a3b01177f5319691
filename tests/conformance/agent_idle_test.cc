// An idle agent costs next to nothing, however many peers are connected.
#include <gtest/gtest.h>
#include <time.h>

#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "src/agent/engine/agent_factory.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_backends.h"
#include "tests/support/test_peer.h"

namespace kvxfer::testing {
namespace {

constexpr int kPeers = 16;

// One agent in a process of its own, connected in both directions to sixteen in this one.
struct Hub {
  std::unique_ptr<TestPeer> peer;
  std::vector<Node> others;
};

void Connect(const Flavour& flavour, Hub& hub) {
  const Shape shape{.block_bytes = 512, .ids = 4};
  ASSERT_OK_AND_ASSIGN(hub.peer, TestPeer::Start(Where::kProcess));
  ASSERT_OK(hub.peer->Create(OptionsFor(flavour, "hub"), flavour.memory, 64 * 1024));
  ASSERT_OK_AND_ASSIGN(const uint64_t hub_base, hub.peer->MemoryAddress());
  for (int i = 0; i < kPeers; ++i) {
    const std::string name = "p" + std::to_string(i);
    ASSERT_OK_AND_ASSIGN(Node other,
                         Node::Create(OptionsFor(flavour, name), flavour.memory, 64 * 1024));
    ASSERT_OK(Introduce(*other.agent, *hub.peer));
    ASSERT_OK_AND_ASSIGN(const int to,
                         hub.peer->Post(false, name, other.memory.address(), shape, Unhurried()));
    ASSERT_OK_AND_ASSIGN(const TestTransferEnd end, hub.peer->WaitEnd(to, kAmple));
    ASSERT_OK(end.status);
    const BlockSet blocks(shape, other.memory.address(), hub_base);
    ASSERT_OK_AND_ASSIGN(const Transfer from, blocks.Write(*other.agent, "hub", Unhurried()));
    ASSERT_OK(from.Wait(kAmple));
    hub.others.push_back(std::move(other));
  }
}

TEST(AgentIdle, CostsLessThanAThousandthOfACpu) {
  // Both at once, for each takes ten seconds.
  const std::vector<Flavour> flavours = {TcpFlavour(), PlainFlavour("ShmMapped")};
  std::vector<Hub> hubs(flavours.size());
  std::vector<Duration> before;
  for (size_t i = 0; i < hubs.size(); ++i) {
    ASSERT_NO_FATAL_FAILURE(Connect(flavours[i], hubs[i]));
  }
  // What connecting leaves to do is no idleness yet.
  std::this_thread::sleep_for(std::chrono::seconds(1));
  for (const Hub& hub : hubs) {
    ASSERT_OK_AND_ASSIGN(const Duration cpu, hub.peer->CpuTime());
    before.push_back(cpu);
  }
  const Time start = Now();
  std::this_thread::sleep_for(std::chrono::seconds(10));
  for (size_t i = 0; i < hubs.size(); ++i) {
    ASSERT_OK_AND_ASSIGN(const Duration after, hubs[i].peer->CpuTime());
    const Duration wall = Now() - start;
    const Duration used = after - before[i];
    std::printf("%s: %.3f ms of CPU in %.0f ms with %d peers\n", flavours[i].name.c_str(),
                Milliseconds(used), Milliseconds(wall), kPeers);
    EXPECT_LT(used, Bound(wall / 1000)) << flavours[i].name;
    ASSERT_OK_AND_ASSIGN(const int to,
                         hubs[i].peer->Post(false, "p0", hubs[i].others[0].memory.address(),
                                            {.block_bytes = 512}, Unhurried()));
    ASSERT_OK_AND_ASSIGN(const TestTransferEnd end, hubs[i].peer->WaitEnd(to, kAmple));
    EXPECT_OK(end.status) << "after the idle time";
  }
}

class AgentNobodyThere : public ::testing::TestWithParam<Flavour> {};

Duration CpuOfThisProcess() {
  timespec used{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return std::chrono::seconds(used.tv_sec) + std::chrono::nanoseconds(used.tv_nsec);
}

// An agent to which nobody has connected sleeps.
TEST_P(AgentNobodyThere, ItSleeps) {
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Agent> alone,
      internal::AgentFactory::Create(OptionsFor(GetParam(), "alone"), MakeTestBackend));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // for what its start leaves to do
  const Time start = Now();
  const Duration before = CpuOfThisProcess();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(CpuOfThisProcess() - before, (Now() - start) / 10);
}

INSTANTIATE_TEST_SUITE_P(All, AgentNobodyThere, ::testing::ValuesIn(AllFlavours()), FlavourName);

}  // namespace
}  // namespace kvxfer::testing
