// The tcp backend over two pairs of network interfaces, of which one goes down. Runs in the RDMA
// guest only, as root: makes a network namespace for the peer, joined to the first one by three
// veth pairs, of which two carry data and the third the control stream.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/support/agent_rails.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Shape kLinkShape{.block_bytes = 64 * 1024, .ids = 64};

void OnHost(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

class TcpLinks : public ::testing::Test {
 protected:
  void SetUp() override {
    OnHost("ip netns add kvpeer");
    for (const char* n : {"0", "1", "2"}) {
      OnHost(absl::StrCat("ip link add kva", n, " type veth peer name kvb", n, " netns kvpeer"));
      OnHost(absl::StrCat("ip addr add 10.78.", n, ".1/24 dev kva", n, " && ip link set kva", n,
                          " up"));
      OnHost(absl::StrCat("ip -n kvpeer addr add 10.78.", n, ".2/24 dev kvb", n,
                          " && ip -n kvpeer link set kvb", n, " up"));
    }
  }
  void TearDown() override {
    pair_ = {};
    OnHost("ip netns del kvpeer");
  }

  static AgentOptions Options(const std::string& name, const std::string& host) {
    AgentOptions options{.name = name, .backends = {"tcp"}, .listen = "10.78.2." + host + ":0"};
    options.backend["tcp"]["addresses"] = "10.78.0." + host + ",10.78.1." + host;
    options.stripe_from = 64 * 1024;
    return options;
  }

  void Start() {
    ASSERT_OK_AND_ASSIGN(
        pair_.a, Node::Create(Options("a", "1"), MemoryType::kAttached, kLinkShape.memory_bytes()));
    absl::StatusOr<Node> made = absl::UnknownError("not made");
    // What accepts stays in the namespace of the thread that listened.
    std::thread([&] {
      const int there = open("/run/netns/kvpeer", O_RDONLY | O_CLOEXEC);
      ASSERT_EQ(setns(there, CLONE_NEWNET), 0);
      close(there);
      made = Node::Create(Options("b", "2"), MemoryType::kAttached, kLinkShape.memory_bytes());
    }).join();
    ASSERT_OK(made);
    pair_.b = *std::move(made);
    ASSERT_OK(Introduce(*pair_.a.agent, *pair_.b.agent));
    ASSERT_OK(Introduce(*pair_.b.agent, *pair_.a.agent));
  }

  void Move(uint64_t number) {
    Pattern(number).Fill(pair_.a.memory.bytes());
    pair_.b.memory.Clear();
    const BlockSet blocks(kLinkShape, pair_.a.memory.address(), pair_.b.memory.address());
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         blocks.Write(*pair_.a.agent, "b", Telling(std::to_string(number))));
    ASSERT_OK(transfer.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Notification told, pair_.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(told.payload, std::to_string(number));
    EXPECT_TRUE(AllArrived(kLinkShape, Side::kRemote, number, pair_.b.memory.bytes()));
    EXPECT_FALSE(pair_.b.agent->WaitNotification(milliseconds(0)).ok()) << "told twice";
  }

  size_t RailsUp() const { return testing::RailsUp(*pair_.a.agent, "b", "tcp"); }

  Pair pair_;
};

TEST_F(TcpLinks, AnInterfaceThatGoesDownInMidTransferIsDoneWithoutAndUsedAgainOnceItIsUp) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(Move(1));
  ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
  for (const char* set : {"ip link set kva0", "ip -n kvpeer link set kvb1"}) {
    SCOPED_TRACE(set);
    std::jthread cutter([set] {
      std::this_thread::sleep_for(milliseconds(15));
      OnHost(std::string(set) + " down");
    });
    uint64_t number = 2;
    for (; number < 12; ++number) ASSERT_NO_FATAL_FAILURE(Move(number));
    cutter.join();
    ASSERT_NO_FATAL_FAILURE(Move(number++));
    ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 1; }));
    // By now it is tried as seldom as ever.
    std::this_thread::sleep_for(seconds(2));
    OnHost(std::string(set) + " up");
    const Time up = Now();
    ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
    std::printf("rail up again %.0f ms after its interface\n", Milliseconds(Now() - up));
    // The pause, a connection that is given up, and the second after which the kernel asks anew who
    // has the address.
    EXPECT_LT(Now() - up, seconds(3));
    for (int i = 0; i < 5; ++i) ASSERT_NO_FATAL_FAILURE(Move(number++));
  }
}

}  // namespace
}  // namespace kvxfer::testing
