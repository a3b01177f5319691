// Agents over verbs: memory that is slow to register, and peers that no port of ours reaches.

#include <gmock/gmock.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "kvxfer/log.h"
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
  static AgentOptions Options(std::string name) {
    AgentOptions options = OptionsFor(OverVerbs(), std::move(name));
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
  SetLogSink({});
  EXPECT_EQ(warnings, 1);
}

TEST(VerbsAddress, PortsThatAreDamagedAreRefused) {
  VerbsFabric fabric({{.name = "d0", .ports = {RocePort(1, 1)}}});
  const ScopedFabric scope(&fabric);
  ASSERT_OK_AND_ASSIGN(const auto party, Party::Make(OverVerbs(), "a"));
  const std::string address = party->backend().Address();
  EXPECT_OK(party->backend().Reachable(address, party->host()));
  for (size_t length = 0; length < address.size(); ++length) {
    EXPECT_FALSE(party->backend().Reachable(address.substr(0, length), party->host()).ok())
        << length;
  }
}

}  // namespace
}  // namespace kvxfer::testing
