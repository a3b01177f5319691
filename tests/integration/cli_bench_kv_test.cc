// `kvxfer bench` of KV caches between instances of different tensor parallelism. Each run compares
// the received bytes of its first requests and fails if one is wrong.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Arguments = std::vector<std::string>;

Arguments KvBench(const Arguments& more) {
  Arguments arguments = {"bench", "--prefill-tp", "4", "--decode-tp", "2"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

Arguments SmallKvBench(const Arguments& more) {
  Arguments arguments = KvBench({"--model", "gpt-oss-120b", "--tokens", "256"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// The rows of the document.
json KvRows(Arguments more, const char* mode, const char* backend) {
  more.emplace_back("--json");
  const Result result = RunProgram(SmallKvBench(more));
  EXPECT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  if (!result.json.is_object()) {
    ADD_FAILURE() << result.out;
    return json::array();
  }
  EXPECT_EQ(result.json["mode"], mode);
  EXPECT_EQ(result.json["backend"], backend);
  for (const json& row : result.json["results"]) {
    EXPECT_EQ(row["model"], "gpt-oss-120b");
    EXPECT_EQ(row["prefill_tp"], 4);
    EXPECT_EQ(row["decode_tp"], 2);
  }
  return result.json["results"];
}

void ExpectUsage(const Arguments& arguments, const std::string& why) {
  const Result result = RunProgram(arguments);
  const std::string what = ::testing::PrintToString(arguments);
  EXPECT_EQ(result.status, ExitStatus::kUsage) << what << ": " << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << what << result.err;
  EXPECT_THAT(result.err, HasSubstr(why)) << what;
  EXPECT_EQ(result.out, "") << what;
}

struct RateCase {
  const char* name;
  Arguments arguments;
  const char* layouts[2];
  int blocks[2];
  const char* backend;
};

class KvBenchRate : public ::testing::TestWithParam<RateCase> {};

TEST_P(KvBenchRate, SaysWhatWasMoved) {
  const RateCase& one = GetParam();
  Arguments arguments = one.arguments;
  arguments.insert(arguments.end(), {"--duration", "10ms"});
  const json rows = KvRows(arguments, "rate", one.backend);
  ASSERT_EQ(rows.size(), 1u);
  const json& row = rows[0];
  EXPECT_EQ(row["prefill_layout"], one.layouts[0]);
  EXPECT_EQ(row["decode_layout"], one.layouts[1]);
  EXPECT_EQ(row["prefill_block_tokens"], one.blocks[0]);
  EXPECT_EQ(row["decode_block_tokens"], one.blocks[1]);
  EXPECT_EQ(row["tokens"], 256);
  EXPECT_EQ(row["target_ranks"], 1);
  // K and V of 36 layers, of two heads of 64 elements of two bytes each.
  EXPECT_EQ(row["bytes"], 2 * 36 * 256 * 2 * 64 * 2);
  EXPECT_GE(row["turns"], 20);
  EXPECT_GT(row["write_blocks"]["gb_per_s"], 0);
  EXPECT_GT(row["plain"]["gb_per_s"], 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, KvBenchRate,
    ::testing::Values(
        RateCase{"Default", {}, {"HND", "HND"}, {16, 16}, "shm"},
        RateCase{"Attached", {"--memory", "attached"}, {"HND", "HND"}, {16, 16}, "shm"},
        RateCase{"Blocks",
                 {"--prefill-block-tokens", "32", "--decode-block-tokens", "24", "--decode-layout",
                  "nhd"},
                 {"HND", "NHD"},
                 {32, 24},
                 "shm"},
        RateCase{"Tcp",
                 {"--prefill-layout", "NHD", "--backend", "tcp"},
                 {"NHD", "HND"},
                 {16, 16},
                 "tcp"},
        RateCase{"BlockTokens",
                 {"--block-tokens", "32", "--decode-block-tokens", "16"},
                 {"HND", "HND"},
                 {32, 16},
                 "shm"},
        RateCase{"OneProcess", {"--backend", "loopback"}, {"HND", "HND"}, {16, 16}, "loopback"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(KvBench, StreamsLayerByLayer) {
  const json rows =
      KvRows({"--measure", "streaming", "-n", "2", "--layer-time", "50us"}, "streaming", "shm");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["layers"], 36);
  EXPECT_EQ(rows[0]["rounds"], 2);
  EXPECT_EQ(rows[0]["layer_compute_us"], 50);
  EXPECT_GE(rows[0]["compute_us"], 36 * 50);
  for (const char* way : {"calls", "flags"}) {
    EXPECT_GT(rows[0][way]["last_layer_us"], 36 * 50) << way;
    EXPECT_GT(rows[0][way]["post_us"], 0) << way;
    EXPECT_GT(rows[0][way]["exposed_layers"], 0) << way;
  }
}

TEST(KvBench, MovesWhileItGoesOn) {
  const json rows =
      KvRows({"--measure", "migration", "-n", "2", "--layer-time", "100us"}, "migration", "shm");
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0]["rounds"], 2);
  EXPECT_GE(rows[0]["tokens_meanwhile"], 1);
  EXPECT_GE(rows[0]["last_tokens"], 1);
  // From both ranks that the first decode rank needs: K and V of 36 layers, two heads each.
  EXPECT_GE(rows[0]["last_bytes"], 2 * 2 * 36 * 2 * 64 * 2);
  EXPECT_GT(rows[0]["pause_us"], 0);
  EXPECT_GT(rows[0]["alone_us"], 0);
}

TEST(KvBench, ReportsRetainedMemory) {
  const json rows = KvRows({"--measure", "memory", "-n", "20"}, "memory", "shm");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0]["tokens"], 64);
  EXPECT_EQ(rows[1]["tokens"], 256);
  for (const json& row : rows) {
    EXPECT_EQ(row["transfers"], 20);
    for (const char* side : {"prefill", "decode"}) {
      EXPECT_TRUE(row[side]["heap_bytes_per_transfer"].is_number()) << row.dump();
    }
  }
}

TEST(KvBench, TakesEveryKnownModelByDefault) {
  const Result result = RunProgram(KvBench({"--tokens", "16", "--duration", "1ms", "--json"}));
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_GE(result.json["results"].size(), 5u) << result.out;
}

TEST(KvBench, PrintsATableForPeople) {
  const Result result = RunProgram(SmallKvBench({"--duration", "10ms"}));
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(result.out, HasSubstr("mapped memory, shm, 256 tokens a request, 10 ms\n"));
  EXPECT_THAT(result.out, HasSubstr("HND>HND"));
  EXPECT_TRUE(result.out.ends_with("verified\n")) << result.out;
}

// Any option of an instance makes a run between two; each has one rank unless it is given more.
TEST(KvBench, NeedsOnlyOneOptionOfAnInstance) {
  for (const Arguments& one : std::vector<Arguments>{{"--prefill-tp", "2"},
                                                     {"--decode-tp", "2"},
                                                     {"--prefill-block-tokens", "32"},
                                                     {"--decode-block-tokens", "32"},
                                                     {"--prefill-layout", "NHD"},
                                                     {"--decode-layout", "NHD"},
                                                     {"--measure", "rate"}}) {
    const Result result = RunProgram({"bench", one[0], one[1], "--model", "gpt-oss-120b",
                                      "--tokens", "64", "--duration", "1ms", "--json"});
    ASSERT_EQ(result.status, ExitStatus::kOk) << one[0] << ": " << result.err;
    const json& row = result.json["results"][0];
    EXPECT_EQ(row["prefill_tp"], one[0] == "--prefill-tp" ? 2 : 1);
    EXPECT_EQ(row["decode_tp"], one[0] == "--decode-tp" ? 2 : 1);
  }
  ExpectUsage({"bench", "--tokens", "100"}, "--tokens needs --model, or --prefill-tp");
}

TEST(KvBenchUsage, RefusesShapesThatAreImpossible) {
  ExpectUsage(SmallKvBench({"--prefill-layout", "XYZ"}),
              "--prefill-layout: 'XYZ': choose HND or NHD");
  ExpectUsage(SmallKvBench({"--decode-block-tokens", "0"}),
              "--decode-block-tokens must be from 1 to 4096, not 0");
  ExpectUsage(SmallKvBench({"--measure", "all"}),
              "--measure: 'all': choose rate, streaming, migration or memory");
  ExpectUsage({"bench", "--prefill-tp", "0", "--decode-tp", "2"}, "--prefill-tp must be from 1");
  ExpectUsage({"bench", "--prefill-tp", "2", "--decode-tp", "100000"}, "--decode-tp must be from");
  ExpectUsage({"bench", "--prefill-tp", "3", "--decode-tp", "2", "--model", "gpt-oss-120b"},
              "8 heads do not divide over tp_size 3");
  ExpectUsage(KvBench({"--model", "/no/such/config.json"}), "/no/such/config.json");
  ExpectUsage(KvBench({"--model", "llama-3.1-70b", "--tokens", "16000000"}), "use fewer --tokens");
  ExpectUsage(SmallKvBench({"--backend", "pigeon"}), "no backend 'pigeon'");
}

TEST(KvBenchUsage, RefusesWhatHasNoMeaning) {
  for (const Arguments& more : std::vector<Arguments>{{"--latency"},
                                                      {"--op", "read"},
                                                      {"-s", "4K"},
                                                      {"--total", "1G"},
                                                      {"--tp", "2"},
                                                      {"--trace", "/dev/null"},
                                                      {"--threads", "2"},
                                                      {"--peers", "2"},
                                                      {"--requests", "5"},
                                                      {"--rate", "50%"},
                                                      {"--seed", "2"},
                                                      {"--timeout", "1s"},
                                                      {"--csv"},
                                                      {"127.0.0.1"}}) {
    ExpectUsage(KvBench(more), "excludes");
  }
  ExpectUsage(SmallKvBench({"-n", "5"}), "--measure rate takes no --iters");
  ExpectUsage(SmallKvBench({"--measure", "streaming", "--layer-time", "101ms"}), "at most 100 ms");
  ExpectUsage(KvBench({"--measure", "migration", "--tokens", "128"}), "--tokens of 129 or more");
  ExpectUsage(SmallKvBench({"--layer-time", "1ms"}), "--measure rate takes no --layer-time");
  for (const char* measure : {"streaming", "memory"}) {
    ExpectUsage(SmallKvBench({"--measure", measure, "-D", "1s"}), "takes no --duration");
  }
}

TEST(KvBenchKilled, EndsWithOneLineAndNoJson) {
  Program bench(SmallKvBench({"--duration", "1m", "--json"}));
  const std::vector<pid_t> children = bench.WaitForChildren(1);
  ASSERT_EQ(children.size(), 1u);
  usleep(300'000);  // it has usually begun to move data by then
  kill(children[0], SIGKILL);
  const Result result = Finish(bench);
  EXPECT_EQ(result.status, ExitStatus::kFailed) << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the decode process was killed by signal 9"));
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace kvxfer::cli
