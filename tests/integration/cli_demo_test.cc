// `kvxfer demo` as users run it.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "src/cli/common/exit_status.h"
#include "tests/integration/cli_program.h"
#include "tests/support/test_folder.h"

namespace kvxfer::cli {
namespace {

using kvxfer::testing::TestFolder;
using std::chrono::steady_clock;

// A small model whose cache holds fewer than two requests, so that blocks are used again.
std::vector<std::string> SmallDemo(std::vector<std::string> more) {
  std::vector<std::string> arguments = {"demo", "--model",  "gpt-oss-120b", "--requests",
                                        "5",    "--tokens", "250",          "--cache-size",
                                        "30M",  "--json"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

struct DemoCase {
  const char* name;
  std::vector<std::string> arguments;
  const char* path;  // how the path must begin
};

class Demo : public ::testing::TestWithParam<DemoCase> {};

TEST_P(Demo, VerifiesEveryRequest) {
  const Result result = RunProgram(SmallDemo(GetParam().arguments));
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  ASSERT_TRUE(result.json.is_object()) << result.out;
  EXPECT_EQ(result.json["ok"], true);
  EXPECT_EQ(result.json["verified"], 5);
  EXPECT_EQ(result.json["guard_zones"], "intact");
  EXPECT_EQ(result.json["bytes"], 5u * 16 * 72 * (16 << 10));
  EXPECT_EQ(result.json["path"].get<std::string>().rfind(GetParam().path, 0), 0u) << result.out;
  for (const auto& request : result.json["requests"]) {
    EXPECT_EQ(request["blocks"], 16);
    EXPECT_EQ(request["verified"], true);
    EXPECT_GT(request["gb_per_s"], 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Backends, Demo,
    ::testing::Values(DemoCase{"Tcp", {"--backend", "tcp"}, "tcp"},
                      DemoCase{"Mapped", {"--backend", "shm"}, "shm"},
                      DemoCase{"Attached", {"--backend", "shm", "--memory", "attached"}, "shm"},
                      DemoCase{"Packed", {"--backend", "tcp", "--gap", "0"}, "tcp"},
                      DemoCase{"FaultyTcp", {"--backend", "faulty:tcp"}, "faulty:tcp"},
                      DemoCase{"FaultyShm", {"--backend", "faulty:shm"}, "faulty:shm"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(DemoProgram, FailsWhenOneByteIsWrong) {
  for (const char* backend : {"tcp", "shm"}) {
    const Result result = RunProgram(SmallDemo({"--backend", backend, "--corrupt"}));
    EXPECT_EQ(result.status, ExitStatus::kFailed) << result.err;
    EXPECT_EQ(result.json["ok"], false);
    EXPECT_EQ(result.json["verified"], 4);
    EXPECT_EQ(result.json["requests"][2]["verified"], false);
    EXPECT_NE(result.err.find("request 2"), std::string::npos) << result.err;
  }
}

TEST(DemoProgram, PrintsATableForPeople) {
  const Result result = RunProgram(
      {"demo", "--model", "deepseek-v3", "--requests", "2", "--tokens", "64", "--backend", "tcp"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_NE(result.out.find("2 of 2 requests verified"), std::string::npos) << result.out;
  EXPECT_NE(result.out.find("path tcp"), std::string::npos) << result.out;
  EXPECT_EQ(result.err, "");
}

TEST(DemoProgram, ReadsAModelConfig) {
  const TestFolder folder;
  const std::string path = folder.path() + "/config.json";
  std::ofstream(path) << R"({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64})";
  const Result result = RunProgram(
      {"demo", "--model", path, "--requests", "2", "--tokens", "32", "--backend", "tcp", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["block_bytes"], 16 * 4 * 64 * 2);
}

TEST(DemoProgram, EndsWhenTheOtherProcessIsKilled) {
  Program program({"demo", "--model", "gpt-oss-120b", "--requests", "100000", "--tokens", "64",
                   "--backend", "tcp"});
  const std::vector<pid_t> children = program.WaitForChildren(1);
  ASSERT_EQ(children.size(), 1u);
  kill(children[0], SIGKILL);
  const auto killed = steady_clock::now();
  EXPECT_EQ(program.Wait(), ExitStatus::kUnreachable);
  EXPECT_LT(steady_clock::now() - killed, std::chrono::seconds(20));
  EXPECT_NE(program.err().find("kvxfer: "), std::string::npos);
}

TEST(DemoProgram, NamesTheBoundsThatHold) {
  const Result result = RunProgram({"demo", "--gap", "2M"});
  EXPECT_EQ(result.status, ExitStatus::kUsage);
  EXPECT_NE(result.err.find("--gap must be from 0 to 1048576, not 2097152"), std::string::npos)
      << result.err;
}

}  // namespace
}  // namespace kvxfer::cli
