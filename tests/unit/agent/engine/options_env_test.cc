#include "src/agent/engine/options_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvxfer/backend_options.h"
#include "kvxfer/log.h"
#include "kvxfer/options.h"
#include "src/backends/faulty/options.h"
#include "src/backends/libfabric/options.h"
#include "src/backends/shm/options.h"
#include "src/backends/tcp/options.h"
#include "src/backends/ucx/options.h"
#include "src/backends/verbs/options.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

using std::chrono::microseconds;
using ::testing::ElementsAre;

// Starts from an environment without any of the variables and gives back what was there.
class OptionsEnvTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const std::string& name : Present()) {
      saved_[name] = std::getenv(name.c_str());
      unsetenv(name.c_str());
    }
  }
  void TearDown() override {
    for (const std::string& name : Present()) unsetenv(name.c_str());
    for (const auto& [name, value] : saved_) setenv(name.c_str(), value.c_str(), 1);
  }

  // All that begin with KVXFER_.
  static std::vector<std::string> Present() {
    std::vector<std::string> names;
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text(*entry);
      if (text.starts_with("KVXFER_")) names.emplace_back(text.substr(0, text.find('=')));
    }
    return names;
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
  EXPECT_TRUE(options->backend.empty());
  EXPECT_EQ(options->spin, defaults.spin);
}

TEST_F(OptionsEnvTest, EveryVariableIsRead) {
  Set("KVXFER_NAME", "prefill-0");
  Set("KVXFER_BACKENDS", "shm, faulty:tcp");
  Set("KVXFER_REQUIRE_BACKENDS", "tcp");
  Set("KVXFER_CONTROL", "tcp");
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
  EXPECT_EQ(options->control, ControlCarrier::kTcp);
  EXPECT_EQ(options->backends, (std::vector<std::string>{"shm", "faulty:tcp"}));
  EXPECT_EQ(options->require_backends, std::vector<std::string>{"tcp"});
  EXPECT_EQ(options->listen, "[::]:7471");
  EXPECT_EQ(options->advertise, "10.0.0.2");
  EXPECT_TRUE(options->serve_metadata);
  ASSERT_OK_AND_ASSIGN(const auto tcp, ReadOptions<tcp::TcpOptions>("tcp", *options));
  EXPECT_EQ(tcp.streams, 16u);
  EXPECT_EQ(tcp.addresses, (std::vector<std::string>{"10.0.0.1", "eth1"}));
  ASSERT_OK_AND_ASSIGN(const auto shm, ReadOptions<shm::ShmOptions>("shm", *options));
  EXPECT_EQ(shm.copy_threads, 8u);
  EXPECT_EQ(options->spin, microseconds(50));
}

TEST_F(OptionsEnvTest, AnEmptyVariableCountsAsNotSet) {
  for (const std::string& name : EnvironmentVariables()) Set(name.c_str(), "");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->listen, AgentOptions().listen);
  EXPECT_TRUE(options->backend.empty());
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
  ASSERT_OK_AND_ASSIGN(const auto read, ReadOptions<verbs::VerbsOptions>("verbs", *options));
  EXPECT_EQ(read.devices, (std::vector<std::string>{"mlx5_0", "mlx5_1:2"}));
  EXPECT_EQ(read.fabrics, std::vector<std::string>{"red=mlx5_0"});
  EXPECT_EQ(read.listen, "10.0.0.1:7000");
  EXPECT_EQ(read.gid_index, 3);
  EXPECT_EQ(read.timeout, 18u);
  EXPECT_EQ(read.stall_timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(read.queue_depth, verbs::VerbsOptions().queue_depth);
}

TEST_F(OptionsEnvTest, UcxHasItsOwn) {
  Set("KVXFER_UCX_TLS", "tcp,posix");
  Set("KVXFER_UCX_NET_DEVICES", "eth0");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_OK_AND_ASSIGN(const auto read, ReadOptions<ucx::UcxOptions>("ucx", *options));
  EXPECT_EQ(read.tls, "tcp,posix");
  EXPECT_EQ(read.net_devices, "eth0");
}

TEST_F(OptionsEnvTest, LibfabricHasItsOwn) {
  Set("KVXFER_LIBFABRIC_PROVIDER", "tcp;ofi_rxm");
  Set("KVXFER_LIBFABRIC_DOMAINS", "eth0,eth1");
  Set("KVXFER_LIBFABRIC_LISTEN", "10.0.0.1:7000");
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  ASSERT_OK_AND_ASSIGN(const auto read,
                       ReadOptions<libfabric::LibfabricOptions>("libfabric", *options));
  EXPECT_EQ(read.provider, "tcp;ofi_rxm");
  EXPECT_EQ(read.domains, (std::vector<std::string>{"eth0", "eth1"}));
  EXPECT_EQ(read.listen, "10.0.0.1:7000");
}

TEST_F(OptionsEnvTest, WhatDoesNotParseIsRefusedByName) {
  for (const char* bad : {"2", "-1", "yes"}) ExpectRefused("KVXFER_SERVE_METADATA", bad);
  for (const char* bad : {"-2", "1000001", "1.5", "fast"}) ExpectRefused("KVXFER_SPIN_US", bad);
  for (const char* bad : {",", "tcp,", ",tcp", "shm,,tcp", " "}) {
    ExpectRefused("KVXFER_BACKENDS", bad);
    ExpectRefused("KVXFER_REQUIRE_BACKENDS", bad);
  }
  for (const char* bad : {"TCP", "sockets", "tcp,shm", " "}) ExpectRefused("KVXFER_CONTROL", bad);
  ExpectRefused("KVXFER_NAME", std::string(256, 'n'));
}

// Expects the backend that reads the variable to refuse `value`, with both.
void ExpectBackendRefuses(const char* name, const std::string& value) {
  setenv(name, value.c_str(), 1);
  const auto options = OptionsFromEnvironment();
  ASSERT_OK(options);
  absl::Status refused = ReadOptions<tcp::TcpOptions>("tcp", *options).status();
  refused.Update(ReadOptions<shm::ShmOptions>("shm", *options).status());
  refused.Update(ReadOptions<verbs::VerbsOptions>("verbs", *options).status());
  refused.Update(ReadOptions<libfabric::LibfabricOptions>("libfabric", *options).status());
  EXPECT_TRUE(testing::Fails(refused, absl::StatusCode::kInvalidArgument, {name, value.c_str()}));
  unsetenv(name);
}

TEST_F(OptionsEnvTest, WhatABackendCannotReadIsRefusedByIt) {
  for (const char* bad : {"0", "17", "-1", "two", "2x", "99999999999999999999"}) {
    ExpectBackendRefuses("KVXFER_TCP_STREAMS", bad);
  }
  for (const char* bad : {"9", "-1", "two"}) ExpectBackendRefuses("KVXFER_SHM_COPY_THREADS", bad);
  for (const char* bad : {"0", "32", "-1"}) ExpectBackendRefuses("KVXFER_VERBS_TIMEOUT", bad);
  for (const char* bad : {"-2", "256"}) ExpectBackendRefuses("KVXFER_VERBS_GID_INDEX", bad);
  for (const char* bad : {"0", "65536"}) ExpectBackendRefuses("KVXFER_VERBS_P_KEY", bad);
  for (const char* bad : {"15", "32769"}) ExpectBackendRefuses("KVXFER_VERBS_QUEUE_DEPTH", bad);
  for (const char* bad : {"99", "soon"}) ExpectBackendRefuses("KVXFER_VERBS_STALL_TIMEOUT_MS", bad);
  ExpectBackendRefuses("KVXFER_VERBS_DEVICES", "mlx5_0,");
  ExpectBackendRefuses("KVXFER_LIBFABRIC_DOMAINS", "eth0,");
  ExpectBackendRefuses("KVXFER_TCP_STREAM", "streams");  // which is meant
}

// Expect that what is written is read again, whatever the value.
TEST_F(OptionsEnvTest, SectionsSurviveTheWay) {
  AgentOptions options;
  const verbs::VerbsOptions verbs{
      .devices = {"a", "b"}, .gid_index = -1, .stall_timeout = std::chrono::milliseconds(250)};
  options.backend["verbs"] = WriteOptions(verbs);
  ASSERT_OK_AND_ASSIGN(const auto back, ReadOptions<verbs::VerbsOptions>("verbs", options));
  EXPECT_EQ(WriteOptions(back), options.backend["verbs"]);
  EXPECT_EQ(back.devices, verbs.devices);
  EXPECT_EQ(back.stall_timeout, verbs.stall_timeout);
  const faulty::FaultOptions faults{.seed = UINT64_MAX, .overtake = true, .cut_probability = 0.1};
  options.backend["faulty"] = WriteOptions(faults);
  ASSERT_OK_AND_ASSIGN(const auto again, ReadOptions<faulty::FaultOptions>("faulty", options));
  EXPECT_EQ(again.seed, UINT64_MAX);
  EXPECT_TRUE(again.overtake);
  EXPECT_EQ(again.cut_probability, 0.1);
}

TEST_F(OptionsEnvTest, APluginThatIsNamedHasASection) {
  Set("KVXFER_BACKENDS", "faulty:mine,tcp");
  Set("KVXFER_MINE_DEPTH_MAX", "3");
  const auto options = OptionsFromEnvironment();
  unsetenv("KVXFER_MINE_DEPTH_MAX");
  ASSERT_OK(options);
  EXPECT_EQ(options->backend,
            (std::map<std::string, BackendOptions>{{"mine", {{"depth_max", "3"}}}}));
}

TEST_F(OptionsEnvTest, TheLongestNameIsTaken) {
  Set("KVXFER_NAME", std::string(255, 'n'));
  const auto options = OptionsFromEnvironment();
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->name.size(), 255u);
}

}  // namespace
}  // namespace kvxfer
