// `kvxfer demo` with a process for each rank of two different instances.

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

constexpr const char* kEightHeads =
    R"({"num_hidden_layers": 3, "num_attention_heads": 8, "head_dim": 64})";
constexpr const char* kTwoHeads =
    R"({"num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 64})";
constexpr const char* kSixHeads =
    R"({"num_hidden_layers": 2, "num_attention_heads": 6, "head_dim": 64})";
constexpr const char* kLatent =
    R"({"num_hidden_layers": 3, "kv_lora_rank": 192, "qk_rope_head_dim": 32})";

class DemoRanks : public ::testing::Test {
 protected:
  // The caches hold fewer than all five requests, so that blocks are used again.
  std::vector<std::string> Arguments(const std::string& model, const std::vector<std::string>& more,
                                     const std::string& requests = "5") {
    std::ofstream(config_) << model;
    std::vector<std::string> arguments = {"demo",       "--model",      config_,
                                          "--requests", requests,       "--tokens",
                                          "250",        "--cache-size", "4M"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }

  // `shares`: decode rank, prefill rank, first head and number of heads of each pair of ranks.
  void ExpectVerified(const std::string& model, std::vector<std::string> more,
                      const std::vector<std::vector<int>>& shares, const std::string& path) {
    more.insert(more.end(), {"--json", "--backend", path});
    const Result result = RunProgram(Arguments(model, more));
    ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
    ASSERT_TRUE(result.json.is_object()) << result.out;
    EXPECT_EQ(result.json["ok"], true);
    EXPECT_EQ(result.json["verified"], 5);
    EXPECT_EQ(result.json["untouched"], "intact");
    for (const auto& rank : result.json["ranks"]) EXPECT_EQ(rank["verified"], 5);
    std::vector<std::vector<int>> found;
    for (const auto& share : result.json["shares"]) {
      found.push_back({share["decode"], share["prefill"], share["first_head"], share["heads"]});
      EXPECT_EQ(share["path"].get<std::string>().rfind(path, 0), 0u) << result.out;
      EXPECT_GT(share["runs"], 0);
    }
    EXPECT_EQ(found, shares) << result.out;
    EXPECT_EQ(result.err, "");
  }

  const TestFolder folder_;
  const std::string config_ = folder_.path() + "/config.json";
};

TEST_F(DemoRanks, FourBecomeTwo) {
  ExpectVerified(kEightHeads,
                 {"--prefill-tp", "4", "--decode-tp", "2", "--decode-block-tokens", "24"},
                 {{0, 0, 0, 2}, {0, 1, 2, 2}, {1, 2, 4, 2}, {1, 3, 6, 2}}, "tcp");
}

TEST_F(DemoRanks, TwoBecomeFour) {
  ExpectVerified(kEightHeads,
                 {"--prefill-tp", "2", "--decode-tp", "4", "--prefill-block-tokens", "64",
                  "--decode-layout", "NHD", "--gap", "0"},
                 {{0, 0, 0, 2}, {1, 0, 2, 2}, {2, 1, 4, 2}, {3, 1, 6, 2}}, "shm");
}

TEST_F(DemoRanks, EightBecomeOne) {
  std::vector<std::vector<int>> shares(8);
  for (int head = 0; head < 8; ++head) shares[static_cast<size_t>(head)] = {0, head, head, 1};
  ExpectVerified(kEightHeads, {"--prefill-tp", "8", "--decode-layout", "nhd"}, shares, "shm");
}

TEST_F(DemoRanks, OneLatentHeadIsOnEveryRank) {
  ExpectVerified(kLatent, {"--prefill-tp", "4", "--decode-tp", "2", "--decode-block-tokens", "64"},
                 {{0, 0, 0, 1}, {1, 1, 0, 1}}, "tcp");
}

TEST_F(DemoRanks, HeadsAreOnSeveralRanksOfBothSides) {
  ExpectVerified(kTwoHeads, {"--prefill-tp", "4", "--decode-tp", "8"},
                 {{0, 0, 0, 1},
                  {1, 1, 0, 1},
                  {2, 0, 0, 1},
                  {3, 1, 0, 1},
                  {4, 2, 1, 1},
                  {5, 3, 1, 1},
                  {6, 2, 1, 1},
                  {7, 3, 1, 1}},
                 "shm");
}

TEST_F(DemoRanks, NoOrderIsReliedOn) {
  ExpectVerified(kEightHeads,
                 {"--prefill-tp", "2", "--decode-block-tokens", "40", "--prefill-layout", "NHD"},
                 {{0, 0, 0, 4}, {0, 1, 4, 4}}, "faulty:tcp");
}

TEST_F(DemoRanks, PrintsATableForPeople) {
  const Result result =
      RunProgram(Arguments(kEightHeads, {"--prefill-tp", "2", "--decode-tp", "2"}));
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_TRUE(result.out.ends_with("\n5 of 5 requests verified on 2 decode ranks\n")) << result.out;
  EXPECT_NE(result.out.find("0-3"), std::string::npos) << result.out;
  EXPECT_EQ(result.err, "");
}

TEST_F(DemoRanks, FailsWhenOneByteIsWrong) {
  const Result result = RunProgram(
      Arguments(kEightHeads, {"--prefill-tp", "4", "--decode-tp", "2", "--corrupt", "--json"}));
  EXPECT_EQ(result.status, ExitStatus::kFailed) << result.err;
  EXPECT_EQ(result.json["ok"], false);
  EXPECT_EQ(result.json["verified"], 4);
  EXPECT_EQ(result.json["ranks"][0]["verified"], 4) << result.out;
  EXPECT_EQ(result.json["ranks"][1]["verified"], 5) << result.out;
  EXPECT_NE(result.err.find("decode rank 0: request 2: layer 1, V"), std::string::npos)
      << result.err;
}

TEST_F(DemoRanks, RefusesHeadsThatDoNotDivide) {
  const Result result = RunProgram(Arguments(kSixHeads, {"--prefill-tp", "2", "--decode-tp", "4"}));
  EXPECT_EQ(result.status, ExitStatus::kUsage);
  EXPECT_NE(result.err.find("--decode-tp 4: the 6 KV heads"), std::string::npos) << result.err;
}

TEST_F(DemoRanks, EndsWhenARankIsKilled) {
  const std::vector<std::string> names = {"prefill rank 1", "decode rank 0"};
  for (size_t victim = 0; victim < names.size(); ++victim) {
    Program program(Arguments(
        kEightHeads, {"--prefill-tp", "2", "--decode-tp", "2", "--backend", "tcp"}, "1000000"));
    const std::vector<pid_t> children = program.WaitForChildren(4);
    ASSERT_EQ(children.size(), 4u);
    usleep(300'000);  // it has usually begun to move data by then
    kill(children[1 + victim], SIGKILL);
    const auto killed = steady_clock::now();
    EXPECT_EQ(program.Wait(), ExitStatus::kUnreachable);
    EXPECT_LT(steady_clock::now() - killed, std::chrono::seconds(20));
    EXPECT_NE(program.err().find("kvxfer: " + names[victim] + " was killed by signal 9"),
              std::string::npos)
        << program.err();
  }
}

}  // namespace
}  // namespace kvxfer::cli
