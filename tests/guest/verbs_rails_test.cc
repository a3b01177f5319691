// The verbs backend on soft-RoCE devices whose links fail, lose packets and lie in two fabrics.
// Runs in the RDMA guest only, with RDMA_VM_FABRICS="2 2": rdma0 and rdma1 are the two ports of one
// fabric, rdma2 and rdma3 those of another. Changes the guest's links.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "src/backends/verbs/options.h"
#include "tests/support/agent_rails.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr Shape kShape{.block_bytes = 16 * 1024, .ids = 40, .gap = 64};

void Shell(const std::string& command) { ASSERT_EQ(std::system(command.c_str()), 0) << command; }

uint64_t PacketsSent(const std::string& device) {
  uint64_t packets = 0;
  std::ifstream("/sys/class/infiniband/" + device + "/ports/1/hw_counters/sent_pkts") >> packets;
  return packets;
}

class VerbsRails : public ::testing::Test {
 protected:
  void TearDown() override {
    for (int i = 0; i < 4; ++i) {
      const std::string netdev = "rdma" + std::to_string(i);
      Shell("tc qdisc del dev " + netdev + " root 2>/dev/null || true");
      Shell("ip link set " + netdev + " up");
    }
  }

  static AgentOptions Options(std::string name, std::vector<std::string> devices,
                              std::vector<std::string> fabrics = {}) {
    AgentOptions options{.name = std::move(name), .backends = {"verbs"}};
    // A lost link is given up soon: 4.096 us * 2^16 = 0.27 s an attempt.
    options.backend["verbs"] = WriteOptions(verbs::VerbsOptions{.devices = std::move(devices),
                                                                .fabrics = std::move(fabrics),
                                                                .timeout = 16,
                                                                .retry_count = 3});
    options.stripe_from = 64 * 1024;
    options.connect_timeout = seconds(20);  // the first time all code is cold, and emulated
    options.max_notifications = 10'000;
    return options;
  }

  void Start(const AgentOptions& a, const AgentOptions& b) {
    const Flavour flavour{
        .name = "Verbs", .backend = "verbs", .memory = MemoryType::kAttached, .faults = {}};
    ASSERT_OK_AND_ASSIGN(pair_, Pair::Create(flavour, a, b, kShape.memory_bytes()));
  }

  // One transfer, told and looked at. The destination is cleared before.
  void Move(uint64_t number, seconds deadline = seconds(60)) {
    Pattern(number).Fill(pair_.a.memory.bytes());
    FillWith(pair_.b.memory.bytes(), std::byte{0});
    const BlockSet blocks(kShape, pair_.a.memory.address(), pair_.b.memory.address());
    TransferOptions options = Telling(std::to_string(number));
    options.deadline = deadline;
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair_.a.agent, "b", options));
    ASSERT_OK(transfer.Wait(kAmple));
    ASSERT_OK_AND_ASSIGN(const Notification told, pair_.b.agent->WaitNotification(kAmple));
    EXPECT_EQ(told.payload, std::to_string(number));
    EXPECT_TRUE(AllArrived(kShape, Side::kRemote, number, pair_.b.memory.bytes()));
    EXPECT_FALSE(pair_.b.agent->WaitNotification(milliseconds(0)).ok()) << "told twice";
  }

  std::vector<RailExplanation> Rails() const {
    return testing::Rails(*pair_.a.agent, "b", "verbs");
  }
  // Control frames go by SEND.
  bool HasControlPair() const {
    const absl::StatusOr<Explanation> all = pair_.a.agent->Explain("b");
    return all.ok() && std::ranges::any_of(all->paths, [](const PathExplanation& path) {
             return path.why.find("control by SEND") != std::string::npos;
           });
  }
  size_t RailsUp() const { return testing::RailsUp(*pair_.a.agent, "b", "verbs"); }

  Pair pair_;
};

TEST_F(VerbsRails, ALinkThatGoesDownInMidTransferIsDoneWithoutAndUsedAgainOnceItIsUp) {
  ASSERT_NO_FATAL_FAILURE(Start(Options("a", {"rxe0", "rxe2"}), Options("b", {"rxe1", "rxe3"})));
  ASSERT_NO_FATAL_FAILURE(Move(1));
  ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2 && HasControlPair(); }));
  std::jthread cutter([] {
    std::this_thread::sleep_for(milliseconds(15));
    Shell("ip link set rdma0 down");
  });
  for (uint64_t number = 2; number < 22; ++number) ASSERT_NO_FATAL_FAILURE(Move(number));
  cutter.join();
  ASSERT_NO_FATAL_FAILURE(Move(22));
  EXPECT_EQ(RailsUp(), 1u);
  const uint64_t before = PacketsSent("rxe0");
  Shell("ip link set rdma0 up");
  const Time up = Now();
  ASSERT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; }));
  std::printf("rail up again %.0f ms after its link\n", Milliseconds(Now() - up));
  for (uint64_t number = 23; number < 33; ++number) ASSERT_NO_FATAL_FAILURE(Move(number));
  EXPECT_GT(PacketsSent("rxe0"), before + 20);
}

TEST_F(VerbsRails, BothLinksDownAndUpAgainIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(Start(Options("a", {"rxe0", "rxe2"}), Options("b", {"rxe1", "rxe3"})));
  ASSERT_NO_FATAL_FAILURE(Move(1));
  Shell("ip link set rdma0 down && ip link set rdma2 down");
  std::jthread mender([] {
    std::this_thread::sleep_for(seconds(2));
    Shell("ip link set rdma2 up");
  });
  ASSERT_NO_FATAL_FAILURE(Move(2));
  mender.join();
}

TEST_F(VerbsRails, FabricsAreNotMixedNamedOrNot) {
  for (const bool named : {false, true}) {
    std::vector<std::string> a;
    std::vector<std::string> b;
    if (named) {
      a = {"one=rxe0", "two=rxe2"};
      b = {"one=rxe1", "two=rdma3"};
    }
    // In another order on the other side.
    ASSERT_NO_FATAL_FAILURE(
        Start(Options("a", {"rxe0", "rxe2"}, a), Options("b", {"rxe3", "rxe1"}, b)));
    ASSERT_NO_FATAL_FAILURE(Move(1));
    EXPECT_TRUE(Eventually(kAmple, [&] { return RailsUp() == 2; })) << "named: " << named;
    for (const RailExplanation& rail : Rails()) {
      if (!rail.up) continue;
      EXPECT_TRUE(rail.name.find("rxe0:1 → rxe1:1") != std::string::npos ||
                  rail.name.find("rxe2:1 → rxe3:1") != std::string::npos)
          << rail.name;
    }
    for (uint64_t number = 2; number < 6; ++number) ASSERT_NO_FATAL_FAILURE(Move(number));
    pair_ = {};
  }
}

TEST_F(VerbsRails, UnequalNumbersOfPortsInOneFabric) {
  // 2 to 1 and 1 to 2: what cannot be reached is left out.
  ASSERT_NO_FATAL_FAILURE(Start(Options("a", {"rxe0", "rxe2"}), Options("b", {"rxe1"})));
  for (uint64_t number = 1; number < 4; ++number) ASSERT_NO_FATAL_FAILURE(Move(number));
  pair_ = {};
  ASSERT_NO_FATAL_FAILURE(Start(Options("a", {"rxe0"}), Options("b", {"rxe1", "rxe3"})));
  for (uint64_t number = 1; number < 4; ++number) ASSERT_NO_FATAL_FAILURE(Move(number));
}

TEST_F(VerbsRails, APeerInAnotherFabricOnlyIsNotReached) {
  const Flavour flavour{
      .name = "Verbs", .backend = "verbs", .memory = MemoryType::kAttached, .faults = {}};
  const absl::Status added =
      Pair::Create(flavour, Options("a", {"rxe0"}, {"one=rxe0"}),
                   Options("b", {"10.77.1.0/24"}, {"two=rxe3,rxe2"}), kShape.memory_bytes())
          .status();
  EXPECT_TRUE(Fails(added, absl::StatusCode::kFailedPrecondition, {"fabric one", "in two"}));
}

class VerbsLoss : public VerbsRails, public ::testing::WithParamInterface<int> {};

TEST_P(VerbsLoss, EveryByteComesAndIsToldOnceAndInOrder) {
  ASSERT_NO_FATAL_FAILURE(Start(Options("a", {"rxe0", "rxe2"}), Options("b", {"rxe1", "rxe3"})));
  ASSERT_NO_FATAL_FAILURE(Move(1));
  for (int i = 0; i < 4; ++i) {
    Shell("tc qdisc add dev rdma" + std::to_string(i) + " root netem loss " +
          std::to_string(GetParam()) + "%");
  }
  for (uint64_t number = 2; number < 22; ++number) ASSERT_NO_FATAL_FAILURE(Move(number));
}

INSTANTIATE_TEST_SUITE_P(Percent, VerbsLoss, ::testing::Values(1));
INSTANTIATE_TEST_SUITE_P(SoakPercent, VerbsLoss, ::testing::Values(5));

}  // namespace
}  // namespace kvxfer::testing
