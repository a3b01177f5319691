// Backends that are loaded at run time pass the suite that every backend passes: what loopback is,
// in a plugin, and the example of examples/backend_plugin. Agents take them for any other.

#include <algorithm>

#include "tests/conformance/backend_conformance.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"

namespace kvxfer::testing {
namespace {

Flavour PluginFlavour(const std::string& name, const std::string& backend) {
  return {.name = name,
          .backend = backend,
          .memory = MemoryType::kAttached,
          .faults = {},
          .plugin_path = {KVXFER_TEST_PLUGINS}};
}

std::vector<Flavour> PluginFlavours() {
  std::vector<Flavour> flavours = {PluginFlavour("Plugin", "wrapped"),
                                   PluginFlavour("ExamplePlugin", "direct")};
  for (const char* backend : {"wrapped", "direct"}) {
    const std::string name = "FaultyPlugin" + std::string(backend);
    flavours.push_back(PluginFlavour(name, "faulty:" + std::string(backend)));
    flavours.back().faults = {.seed = TestSeed(),
                              .reorder_window = 8,
                              .max_delay = std::chrono::microseconds(300),
                              .overtake = true};
  }
  return flavours;
}

INSTANTIATE_TEST_SUITE_P(Plugins, BackendConformance, ::testing::ValuesIn(PluginFlavours()),
                         FlavourName);

class AgentPlugins : public ::testing::TestWithParam<Flavour> {};

INSTANTIATE_TEST_SUITE_P(All, AgentPlugins, ::testing::ValuesIn(PluginFlavours()), FlavourName);

TEST_P(AgentPlugins, MoveBlocksAndAreExplained) {
  const Shape shape;
  ASSERT_OK_AND_ASSIGN(const Pair pair, Pair::Create(GetParam(), shape.memory_bytes()));
  Pattern(5).Fill(pair.a.memory.bytes());
  const BlockSet blocks(shape, pair.a.memory.address(), pair.b.memory.address());
  ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                       blocks.Write(*pair.a.agent, "b", Telling("request 7")));
  ASSERT_OK(transfer.Wait(kAmple));
  ASSERT_OK_AND_ASSIGN(const Notification told, pair.b.agent->WaitNotification(kAmple));
  EXPECT_EQ(told.payload, "request 7");
  EXPECT_TRUE(AllArrived(shape, Side::kRemote, 5, pair.b.memory.bytes()));
  ASSERT_OK_AND_ASSIGN(const Explanation why, pair.a.agent->Explain("b"));
  ASSERT_EQ(why.paths.size(), 1u);
  EXPECT_EQ(why.paths[0].backend, GetParam().backend);
  EXPECT_TRUE(why.paths[0].connected);
}

// One that was asked for by name and cannot be used is an error; a folder that is not there is
// none.
TEST(AgentPlugin, IsAnErrorOnlyWhereItWasAskedFor) {
  AgentOptions options;
  options.name = "a";
  options.plugin_path = {KVXFER_TEST_PLUGINS};
  options.backends = {"tcp", "missing_library"};
  EXPECT_TRUE(Fails(Agent::Create(options), absl::StatusCode::kUnavailable,
                    {"missing_library", "libkvxfer_test_absent.so not found"}));
  options.backends = {"tcp", "libkvxfer"};
  EXPECT_TRUE(Fails(Agent::Create(options), absl::StatusCode::kNotFound, {"wrapped", "direct"}));
  options.backends.clear();
  options.plugin_path = {"/nowhere/plugins"};
  EXPECT_OK(Agent::Create(options));
}

}  // namespace
}  // namespace kvxfer::testing
