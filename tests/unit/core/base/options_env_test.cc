#include "src/core/base/options_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "kvxfer/log.h"
#include "kvxfer/options.h"
#include "tests/support/scale.h"

namespace kvxfer {
namespace {

using std::chrono::microseconds;
using ::testing::ElementsAre;

// Starts from an environment without any of the variables and gives back what was there.
class OptionsEnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& name : EnvironmentVariables()) {
      if (const char* value = std::getenv(name.c_str())) saved_[name] = value;
      unsetenv(name.c_str());
    }
  }
  void TearDown() override {
    for (const std::string& name : EnvironmentVariables()) unsetenv(name.c_str());
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }

  static void Set(const char* name, const std::string& value) { setenv(name, value.c_str(), 1); }

  // Expects `value` to be refused with a message that names the variable and the value.
  static void ExpectRefused(const char* name, const std::string& value) {
    Set(name, value);
    const auto options = OptionsFromEnvironment();
    ASSERT_FALSE(options.ok()) << name << "=" << value;
    EXPECT_EQ(options.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string text = options.status().ToString();
    EXPECT_NE(text.find(std::string(name) + "=\"" + value + "\""), std::string::npos) << text;
    unsetenv(name);
  }

  std::map<std::string, std::string> saved_;
};

// What is said of KVXFER_<name>=<value>; empty where it is known to somebody.
std::string SaidOf(const std::string& name, const char* value = "1") {
  const std::string variable = "KVXFER_" + name;
  setenv(variable.c_str(), value, 1);
  std::string said;
  for (const std::string& line : UnknownVariables()) {
    if (line.rfind(variable + " ", 0) == 0) said = line;
  }
  unsetenv(variable.c_str());
  return said;
}

TEST_F(OptionsEnvTest, AVariableThatDoesNotExistIsNamedWithTheOneThatIsMeant) {
  EXPECT_EQ(SaidOf("TCP_STREAM"),
            "KVXFER_TCP_STREAM is set, and kvxfer has no such variable; did you mean "
            "KVXFER_TCP_STREAMS?");
  EXPECT_EQ(SaidOf("BACKEND"),
            "KVXFER_BACKEND is set, and kvxfer has no such variable; did you mean "
            "KVXFER_BACKENDS?");
  EXPECT_EQ(SaidOf("FROB"), "KVXFER_FROB is set, and kvxfer has no such variable");
}

TEST_F(OptionsEnvTest, AVariableThatAnotherProgramReadsIsKnown) {
  for (const char* known : {"TCP_STREAMS", "CLI", "COMPARE_BIN", "CPU", "FABRIC_DOMAINS",
                            "FUZZ_SECONDS", "GPU_RESULTS", "NIXL_DEADLINE", "OTHER_UCX", "PYTHON",
                            "STANDIN_DEVICES", "STORM_SEED", "TEST_SEED", "WAIT"}) {
    EXPECT_EQ(SaidOf(known), "") << known;
  }
}

TEST_F(OptionsEnvTest, WhatKubernetesSetsForAServiceIsNoTypo) {
  const std::string url = "tcp://10.96.0.1:7471";
  for (const std::string service : {"", "META_DATA_", "LISTEN_"}) {
    for (const auto& [name, value] :
         std::map<std::string, std::string>{{"SERVICE_HOST", "10.96.0.1"},
                                            {"SERVICE_PORT", "7471"},
                                            {"SERVICE_PORT_CONTROL", "7471"},
                                            {"PORT", url},
                                            {"PORT_7471_TCP", url},
                                            {"PORT_7471_TCP_PROTO", "tcp"},
                                            {"PORT_7471_TCP_PORT", "7471"},
                                            {"PORT_7471_TCP_ADDR", "10.96.0.1"}}) {
      EXPECT_EQ(SaidOf(service + name, value.c_str()), "") << service << name;
    }
  }
  for (const char* typo :
       {"PORT", "LISTEN_PORT", "PORT_7471", "PORT_FIRST_TCP", "SERVICE", "HOST"}) {
    EXPECT_NE(SaidOf(typo, "7471"), "") << typo;
  }
}

TEST_F(OptionsEnvTest, AVariableThatDoesNotExistIsAWarning) {
  // Each is said once a process, and the environment may have others.
  static int repetition = 0;
  const std::string name = "KVXFER_LISTEN" + std::to_string(++repetition);
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel level, std::string_view line) {
    const bool of_it = line.find(name + " ") != std::string_view::npos;
    if (level == LogLevel::kWarning && of_it) lines.emplace_back(line);
  });
  Set(name.c_str(), "0.0.0.0:0");
  for (int i = 0; i < 2; ++i) {
    const auto options = OptionsFromEnvironment();
    EXPECT_TRUE(options.ok()) << options.status();
  }
  unsetenv(name.c_str());
  EXPECT_TRUE(FlushLog(testing::kAmple));
  SetLogSink({});
  EXPECT_THAT(lines, ElementsAre("environment: " + name +
                                 " is set, and kvxfer has no such variable; did you mean "
                                 "KVXFER_LISTEN?"));
}

TEST_F(OptionsEnvTest, PluginPathIsFoldersWithColons) {
  Set("KVXFER_PLUGIN_PATH", "/opt/a,b:/opt/c");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->plugin_path, (std::vector<std::string>{"/opt/a,b", "/opt/c"}));
  ExpectRefused("KVXFER_PLUGIN_PATH", "/opt/a::/opt/c");
}

TEST_F(OptionsEnvTest, AnEmptyEnvironmentGivesTheDefaults) {
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  const AgentOptions defaults;
  EXPECT_EQ(options->name, "");
  EXPECT_TRUE(options->backends.empty());
  EXPECT_TRUE(options->require_backends.empty());
  EXPECT_EQ(options->listen, defaults.listen);
  EXPECT_EQ(options->advertise, "");
  EXPECT_EQ(options->tcp_streams, defaults.tcp_streams);
  EXPECT_EQ(options->shm_copy_threads, defaults.shm_copy_threads);
  EXPECT_EQ(options->spin, defaults.spin);
}

TEST_F(OptionsEnvTest, EveryVariableIsRead) {
  Set("KVXFER_NAME", "prefill-0");
  Set("KVXFER_BACKENDS", "shm, faulty:tcp");
  Set("KVXFER_REQUIRE_BACKENDS", "tcp");
  Set("KVXFER_LISTEN", "[::]:7471");
  Set("KVXFER_ADVERTISE", "10.0.0.2");
  Set("KVXFER_TCP_STREAMS", "16");
  Set("KVXFER_TCP_ADDRESSES", "10.0.0.1, eth1");
  Set("KVXFER_SERVE_METADATA", "1");
  Set("KVXFER_SHM_COPY_THREADS", "8");
  Set("KVXFER_SPIN_US", "50");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->name, "prefill-0");
  EXPECT_EQ(options->backends, (std::vector<std::string>{"shm", "faulty:tcp"}));
  EXPECT_EQ(options->require_backends, std::vector<std::string>{"tcp"});
  EXPECT_EQ(options->listen, "[::]:7471");
  EXPECT_EQ(options->advertise, "10.0.0.2");
  EXPECT_EQ(options->tcp_streams, 16u);
  EXPECT_EQ(options->tcp_addresses, (std::vector<std::string>{"10.0.0.1", "eth1"}));
  EXPECT_TRUE(options->serve_metadata);
  EXPECT_EQ(options->shm_copy_threads, 8u);
  EXPECT_EQ(options->spin, microseconds(50));
}

TEST_F(OptionsEnvTest, AnEmptyVariableCountsAsNotSet) {
  for (const std::string& name : EnvironmentVariables()) Set(name.c_str(), "");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, AgentOptions().listen);
  EXPECT_EQ(options->tcp_streams, AgentOptions().tcp_streams);
  EXPECT_EQ(options->spin, AgentOptions().spin);
}

TEST_F(OptionsEnvTest, SpinZeroIsNoSpinAndMinusOneIsAdaptive) {
  Set("KVXFER_SPIN_US", "0");
  auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->spin, Duration(0));
  Set("KVXFER_SPIN_US", "-1");
  options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_LT(options->spin, Duration(0));
}

TEST_F(OptionsEnvTest, VerbsHasItsOwn) {
  Set("KVXFER_VERBS_DEVICES", "mlx5_0, mlx5_1:2");
  Set("KVXFER_VERBS_FABRICS", "red=mlx5_0");
  Set("KVXFER_VERBS_LISTEN", "10.0.0.1:7000");
  Set("KVXFER_VERBS_GID_INDEX", "3");
  Set("KVXFER_VERBS_TIMEOUT", "18");
  Set("KVXFER_VERBS_STALL_TIMEOUT_MS", "1500");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->verbs.devices, (std::vector<std::string>{"mlx5_0", "mlx5_1:2"}));
  EXPECT_EQ(options->verbs.fabrics, std::vector<std::string>{"red=mlx5_0"});
  EXPECT_EQ(options->verbs.listen, "10.0.0.1:7000");
  EXPECT_EQ(options->verbs.gid_index, 3);
  EXPECT_EQ(options->verbs.timeout, 18u);
  EXPECT_EQ(options->verbs.stall_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(options->verbs.queue_depth, VerbsOptions().queue_depth);
}

TEST_F(OptionsEnvTest, UcxHasItsOwn) {
  Set("KVXFER_UCX_TLS", "tcp,posix");
  Set("KVXFER_UCX_NET_DEVICES", "eth0");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->ucx.tls, "tcp,posix");
  EXPECT_EQ(options->ucx.net_devices, "eth0");
}

TEST_F(OptionsEnvTest, LibfabricHasItsOwn) {
  Set("KVXFER_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
  Set("KVXFER_LIBFABRIC_DOMAINS", "eth0,eth1");
  Set("KVXFER_LIBFABRIC_LISTEN", "10.0.0.1:7000");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->libfabric.provider, "tcp;ofi_rxm");
  EXPECT_EQ(options->libfabric.domains, (std::vector<std::string>{"eth0", "eth1"}));
  EXPECT_EQ(options->libfabric.listen, "10.0.0.1:7000");
}

TEST_F(OptionsEnvTest, WhatDoesNotParseIsRefusedByName) {
  for (const char* bad : {"0", "17", "-1", "two", "2x", "99999999999999999999"}) {
    ExpectRefused("KVXFER_TCP_STREAMS", bad);
  }
  for (const char* bad : {"9", "-1", "two"}) ExpectRefused("KVXFER_SHM_COPY_THREADS", bad);
  for (const char* bad : {"2", "-1", "yes"}) ExpectRefused("KVXFER_SERVE_METADATA", bad);
  for (const char* bad : {"-2", "1000001", "1.5", "fast"}) ExpectRefused("KVXFER_SPIN_US", bad);
  for (const char* bad : {"0", "32", "-1"}) ExpectRefused("KVXFER_VERBS_TIMEOUT", bad);
  for (const char* bad : {"-2", "256"}) ExpectRefused("KVXFER_VERBS_GID_INDEX", bad);
  for (const char* bad : {"0", "65536"}) ExpectRefused("KVXFER_VERBS_P_KEY", bad);
  for (const char* bad : {"15", "32769"}) ExpectRefused("KVXFER_VERBS_QUEUE_DEPTH", bad);
  for (const char* bad : {"99", "soon"}) ExpectRefused("KVXFER_VERBS_STALL_TIMEOUT_MS", bad);
  ExpectRefused("KVXFER_VERBS_DEVICES", "mlx5_0,");
  ExpectRefused("KVXFER_LIBFABRIC_DOMAINS", "eth0,");
  for (const char* bad : {",", "tcp,", ",tcp", "shm,,tcp", " "}) {
    ExpectRefused("KVXFER_BACKENDS", bad);
    ExpectRefused("KVXFER_REQUIRE_BACKENDS", bad);
  }
  ExpectRefused("KVXFER_NAME", std::string(256, 'n'));
}

TEST_F(OptionsEnvTest, TheLongestNameIsTaken) {
  Set("KVXFER_NAME", std::string(255, 'n'));
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->name.size(), 255u);
}

}  // namespace
}  // namespace kvxfer
