// Agents over verbs: memory that is slow to register, and peers that no port of ours reaches.

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvxfer/log.h"
#include "src/core/topology/topology.h"
#include "src/transport/host/memory_node.h"
#include "tests/support/agent_rails.h"
#include "tests/support/agents.h"
#include "tests/support/backend_pair.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/support/test_backends.h"
#include "tests/support/verbs_fabric.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

Flavour OverVerbs() {
  return {.name = "Verbs", .backend = "verbs", .memory = MemoryType::kAttached, .faults = {}};
}

TEST(VerbsAgent, TransfersGoOnWhileMemoryIsRegistered) {
  VerbsFabric fabric({{.name = "d0", .ports = {RocePort(1, 1)}}});
  const ScopedFabric scope(&fabric);
  const Shape shape;
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Create(OverVerbs(), shape.memory_bytes()));
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  const auto write = [&] {
    absl::StatusOr<Transfer> transfer = blocks.Write(*pair.a.agent, "b", Unhurried());
    return transfer.ok() ? transfer->Wait(kAmple) : transfer.status();
  };
  ASSERT_OK(write());

  std::vector<std::byte> more(1 << 16);
  std::atomic<bool> over{false};
  fabric.SetRegistrationTime(milliseconds(1000));
  const uint64_t before = fabric.calls(Call::kRegMr);
  std::jthread registers([&] {
    EXPECT_OK(pair.a.agent
                  ->RegisterMemory({.data = more.data(), .bytes = more.size()}, Access::kReadWrite)
                  .status());
    over = true;
  });
  ASSERT_TRUE(Eventually(kAmple, [&] { return fabric.calls(Call::kRegMr) > before; }));
  int done = 0;
  for (; !over && done < 3; ++done) ASSERT_OK(write());
  EXPECT_FALSE(over) << "after " << done << " transfers";
}

// The initiator has an Ethernet port, the target an InfiniBand one, and tcp reaches it.
class VerbsApart : public ::testing::Test {
 protected:
  static AgentOptions Options(const std::string& name) {
    AgentOptions options = OptionsFor(OverVerbs(), name);
    options.backends = {"verbs", "tcp"};
    return options;
  }
  VerbsFabric fabric_{{{.name = "eth0", .ports = {RocePort(1, 1)}, .host = "a"},
                       {.name = "ib0", .ports = {InfinibandPort(7)}, .host = "b"}}};
  const ScopedFabric scope_{&fabric_};
};

TEST_F(VerbsApart, WhatIsRequiredFailsAtAddPeer) {
  AgentOptions options = Options("a");
  options.require_backends = {"verbs"};
  ASSERT_OK_AND_ASSIGN(const Node a, Node::Create(options, MemoryType::kAttached, 4096));
  ASSERT_OK_AND_ASSIGN(const Node b, Node::Create(Options("b"), MemoryType::kAttached, 4096));
  const absl::Status added = Introduce(*a.agent, *b.agent).status();
  EXPECT_TRUE(Fails(added, absl::StatusCode::kFailedPrecondition,
                    {"b", "verbs", "eth0:1 is Ethernet", "ib0:1 is InfiniBand"}));
}

std::atomic<int> warnings{0};

TEST_F(VerbsApart, ElseTcpIsTakenAndItIsSaidWhyAndWarnedOfOnce) {
  const Shape shape;
  ASSERT_OK_AND_ASSIGN(const Pair pair,
                       Pair::Create(OverVerbs(), Options("a"), Options("b"), shape.memory_bytes()));
  ASSERT_OK_AND_ASSIGN(const Explanation all, pair.a.agent->Explain("b"));
  for (const PathExplanation& path : all.paths) {
    EXPECT_EQ(path.chosen, path.backend == "tcp");
    if (path.backend != "verbs") continue;
    EXPECT_THAT(path.why, HasSubstr("ib0:1 is InfiniBand"));
  }
  warnings = 0;
  SetLogSink([](LogLevel level, std::string_view line) {
    const bool of_it = line.find("peer b: using tcp because verbs") != std::string_view::npos;
    warnings += level == LogLevel::kWarning && of_it ? 1 : 0;
  });
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  for (int i = 0; i < 3; ++i) {
    ASSERT_OK_AND_ASSIGN(const Transfer transfer, blocks.Write(*pair.a.agent, "b", Unhurried()));
    ASSERT_OK(transfer.Wait(kAmple));
  }
  EXPECT_TRUE(FlushLog(kAmple));
  SetLogSink({});
  EXPECT_EQ(warnings, 1);
}

// Two devices a side, one on the node that the memory is on and one on another.
class VerbsDistance : public ::testing::Test {
 protected:
  static constexpr int kElsewhere = 1000;

  // `far`: the devices on the other node. False: the kernel does not say where memory is.
  void Use(const std::vector<std::string>& far) {
    std::vector<std::byte> memory(4096, std::byte{1});
    const std::optional<int> here = NodeOfMemory(memory.data(), memory.size());
    if (!here) GTEST_SKIP() << "the kernel does not say on which node memory is (move_pages)";
    Topology topology{.nodes = {{.id = *here}, {.id = kElsewhere}}};
    std::vector<FabricDevice> devices;
    for (const std::string name : {"a0", "a1", "b0", "b1"}) {
      const auto number = static_cast<uint8_t>(devices.size() + 1);
      devices.push_back({.name = name, .ports = {RocePort(1, number)}, .host = name.substr(0, 1)});
      const bool is_far = std::ranges::find(far, name) != far.end();
      topology.devices.push_back({.name = name, .numa_node = is_far ? kElsewhere : *here});
      topology.ports.push_back({.device = topology.devices.size() - 1,
                                .state = PortState::kActive,
                                .link = LinkLayer::kEthernet,
                                .fabric = "eth"});
    }
    fabric_.emplace(std::move(devices));
    scope_.emplace(&*fabric_, verbs::VerbsOptions(), std::move(topology));
    ASSERT_OK_AND_ASSIGN(Pair pair, Pair::Create(OverVerbs(), shape_.memory_bytes()));
    pair_.emplace(std::move(pair));
    Write(1);
    ASSERT_TRUE(Eventually(kAmple, [&] { return Up() == 2; }));
  }
  size_t Up() { return RailsUp(*pair_->a.agent, "b", "verbs"); }
  // One after the other: nothing is loaded.
  void Write(int times) {
    const BlockSet blocks(shape_, pair_->a.memory.address(), pair_->b.memory.address());
    for (int i = 0; i < times; ++i) {
      ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                           blocks.Write(*pair_->a.agent, "b", Unhurried()));
      ASSERT_OK(transfer.Wait(kAmple));
    }
  }

  const Shape shape_{.block_bytes = 4096, .ids = 16};
  const uint64_t bytes_ = shape_.blocks() * shape_.block_bytes;
  std::optional<VerbsFabric> fabric_;
  std::optional<ScopedFabric> scope_;
  std::optional<Pair> pair_;
};

TEST_F(VerbsDistance, NearRailsAreTakenAtEitherEnd) {
  for (const std::vector<std::string>& far :
       {std::vector<std::string>{"a0"}, {"a1"}, {"b0"}, {"b1"}}) {
    SCOPED_TRACE(far[0]);
    ASSERT_NO_FATAL_FAILURE(Use(far));
    if (IsSkipped()) return;
    // Rails pair the devices up as they are counted.
    const std::string far_rail = far[0].ends_with('0') ? "a0" : "a1";
    const std::string near_rail = far[0].ends_with('0') ? "a1" : "a0";
    const uint64_t before = fabric_->moved(far_rail);
    ASSERT_NO_FATAL_FAILURE(Write(20));
    EXPECT_EQ(fabric_->moved(far_rail), before);
    EXPECT_GE(fabric_->moved(near_rail), 20 * bytes_);
    pair_.reset();
  }
}

TEST_F(VerbsDistance, AFarRailIsTakenWhenTheNearOneIsGone) {
  ASSERT_NO_FATAL_FAILURE(Use({"a1"}));
  if (IsSkipped()) return;
  fabric_->SetPort("a0", 1, false);
  ASSERT_TRUE(Eventually(kAmple, [&] { return Up() == 1; }));
  const uint64_t before = fabric_->moved("a1");
  ASSERT_NO_FATAL_FAILURE(Write(5));
  EXPECT_GE(fabric_->moved("a1"), before + 5 * bytes_);
}

TEST(VerbsAddress, PortsThatAreDamagedAreRefused) {
  VerbsFabric fabric({{.name = "d0", .ports = {RocePort(1, 1)}}});
  const ScopedFabric scope(&fabric);
  ASSERT_OK_AND_ASSIGN(const auto party, Party::Make(OverVerbs(), "a"));
  const std::string address = party->backend().Describe().address;
  EXPECT_OK(party->backend().Reachable(address, party->host()));
  for (size_t length = 0; length < address.size(); ++length) {
    EXPECT_FALSE(party->backend().Reachable(address.substr(0, length), party->host()).ok())
        << length;
  }
}

}  // namespace
}  // namespace kvxfer::testing
