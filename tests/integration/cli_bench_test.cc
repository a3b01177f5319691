// `kvxfer bench`: every kind of run, and what it prints.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/bench_schema.h"
#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using nlohmann::json;
using ::testing::IsEmpty;
using Arguments = std::vector<std::string>;

Result RunBench(Arguments arguments) {
  arguments.insert(arguments.begin(), "bench");
  return RunProgram(arguments);
}

Result RunBenchJson(Arguments arguments) {
  arguments.emplace_back("--json");
  Result result = RunBench(arguments);
  EXPECT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_THAT(result.err, IsEmpty());
  EXPECT_THAT(SchemaErrors(BenchSchema(), result.json), IsEmpty()) << result.out;
  return result;
}

struct BenchMode {
  const char* name;
  Arguments arguments;
  const char* workload;
  size_t results;
};

class BenchModes : public ::testing::TestWithParam<BenchMode> {};

// There is a result only if every byte of the first round was right.
TEST_P(BenchModes, GiveWhatTheSchemaSays) {
  const Result result = RunBenchJson(GetParam().arguments);
  ASSERT_EQ(result.json["results"].size(), GetParam().results) << result.out;
  for (const json& row : result.json["results"]) {
    EXPECT_EQ(row["workload"], GetParam().workload);
    EXPECT_GT(row["requests"], 0);
    EXPECT_GT(row["gb_per_s"], 0);
    EXPECT_LE(row["min_us"], row["p50_us"]);
    EXPECT_LE(row["p50_us"], row["p99_us"]);
    EXPECT_LE(row["p99_us"], row["p999_us"]);
    EXPECT_LE(row["p999_us"], row["max_us"]);
    EXPECT_EQ(row["latency_cdf"].back(), json({row["max_us"], 1}));
    EXPECT_EQ(row.contains("answer"), row["workload"] == "latency");
    EXPECT_FALSE(row.contains("timeline"));
    EXPECT_GT(row["first_transfer_us"], 0);
    EXPECT_GT(row["rss_bytes"], row["bytes"]);
    EXPECT_GT(row["rss_bytes_target"], 0);
    EXPECT_EQ(row["path"].get<std::string>().rfind(row["backend"].get<std::string>(), 0), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, BenchModes,
    ::testing::Values(
        BenchMode{"Sweep", {"--total", "1M", "-s", "4K:16K", "-n", "3"}, "raw", 3},
        BenchMode{"NixlWords",
                  {"--op_type", "READ", "--start_block_size", "8192", "--max_block_size", "16384",
                   "--total_buffer_size", "1048576", "--num_iter", "3", "--warmup_iter", "1",
                   "--num_threads", "2", "--backend", "tcp"},
                  "raw",
                  2},
        BenchMode{"Latency", {"--latency", "-n", "50", "--backend", "tcp"}, "latency", 1},
        BenchMode{"LatencySizes", {"--latency", "-n", "20", "-s", "64,64K"}, "latency", 2},
        BenchMode{
            "LatencyByMessage", {"--latency", "--answer", "message", "-n", "20"}, "latency", 1},
        BenchMode{
            "BothWays", {"-b", "--total", "1M", "-s", "4K", "-n", "5", "--threads", "2"}, "raw", 1},
        BenchMode{
            "BothWaysRead",
            {"-b", "--op", "read", "--backend", "tcp", "--total", "1M", "-s", "4K", "-n", "5"},
            "raw",
            1},
        BenchMode{
            "Attached",
            {"--memory", "attached", "--backend", "shm", "--total", "1M", "-s", "4K", "-D", "50ms"},
            "raw",
            1},
        BenchMode{"Model",
                  {"--model", "gpt-oss-120b", "--tokens", "200", "--requests", "6", "--tp", "2",
                   "--threads", "2"},
                  "kv",
                  1},
        BenchMode{"FanInLatency",
                  {"--latency", "--peers", "3", "-n", "20", "--backend", "tcp"},
                  "latency",
                  1},
        BenchMode{"Faulty",
                  {"--backend", "faulty:tcp", "--total", "256K", "-s", "16K", "-n", "3"},
                  "raw",
                  1}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Bench, CountsRequestsOfEveryThread) {
  const json row =
      RunBenchJson({"--total", "1M", "-s", "4K", "-n", "5", "--threads", "4"}).json["results"][0];
  EXPECT_EQ(row["requests"], 20);
  EXPECT_EQ(row["threads"], 4);
  EXPECT_EQ(row["blocks"], 64);
  EXPECT_EQ(row["bytes"], 256 << 10);
}

TEST(Bench, MovesBothWays) {
  const json row = RunBenchJson({"-b", "--total", "1M", "-s", "64K", "-n", "5"}).json["results"][0];
  EXPECT_EQ(row["requests"], 10);
  EXPECT_EQ(row["bidirectional"], true);
}

// Many initiators and one target, and one initiator and many targets, in several processes.
TEST(Bench, ComparesPeers) {
  for (const char* scheme : {"manytoone", "onetomany"}) {
    for (const char* backend : {"tcp", "shm"}) {
      const json row = RunBenchJson({"--peers", "9", "--scheme", scheme, "--backend", backend,
                                     "--total", "9M", "-s", "16K", "-D", "300ms"})
                           .json["results"][0];
      EXPECT_EQ(row["peers"], 9) << scheme;
      EXPECT_EQ(row["scheme"], scheme);
      ASSERT_EQ(row["peer_gb_per_s"].size(), 9u);
      for (const json& rate : row["peer_gb_per_s"]) EXPECT_GT(rate, 0);
      EXPECT_GT(row["fairness"], 0);
      EXPECT_LE(row["fairness"], 1);
    }
  }
}

TEST(Bench, TakesSixtyFourPeers) {
  const json row =
      RunBenchJson({"--peers", "64", "--backend", "tcp", "--total", "16M", "-s", "16K", "-n", "2"})
          .json["results"][0];
  EXPECT_EQ(row["requests"], 128);
  EXPECT_EQ(row["peer_gb_per_s"].size(), 64u);
}

// An answer by a message moves nothing back, so its fastest round trip takes about half the time.
TEST(Bench, AnswersByAMessage) {
  const auto fastest = [](const char* answer) {
    const json row = RunBenchJson({"--latency", "--answer", answer, "-s", "8M", "-n", "20",
                                   "--warmup", "2", "--backend", "tcp"})
                         .json["results"][0];
    EXPECT_EQ(row["answer"], answer);
    return row["min_us"].get<double>();
  };
  EXPECT_LT(fastest("message"), 0.8 * fastest("write"));
}

TEST(Bench, HoldsARate) {
  const json row =
      RunBenchJson({"--total", "64K", "-s", "4K", "--rate", "500", "-n", "100"}).json["results"][0];
  EXPECT_EQ(row["target_requests_per_s"], 500);
  EXPECT_EQ(row["requests"], 100);
  EXPECT_EQ(row["arrivals"], "constant");
  // The last of a hundred requests is due after 198 ms, so that the run cannot be shorter.
  EXPECT_GE(row["seconds"], 0.198);
  EXPECT_LE(row["requests_per_s"], 100 / 0.198);
}

TEST(Bench, TakesARateByThePeak) {
  const json row = RunBenchJson({"--total", "64K", "-s", "4K", "--rate", "50%", "--arrivals",
                                 "poisson", "-D", "200ms"})
                       .json["results"][0];
  EXPECT_NEAR(row["target_requests_per_s"], row["peak_requests_per_s"].get<double>() / 2,
              row["peak_requests_per_s"].get<double>() / 1000);
  EXPECT_GT(row["peak_gb_per_s"], 0);
  EXPECT_EQ(row["arrivals"], "poisson");
}

TEST(Bench, MovesOnlyWhatATracesTargetLacks) {
  const std::string sample = KVXFER_SOURCE_DIR "/benchmarks/traces/sample.jsonl";
  const Arguments trace = {"--trace", sample,      "--model", "gpt-oss-120b", "--tp",
                           "8",       "--speedup", "100",     "--cache-size", "512M"};
  const json row = RunBenchJson(trace).json["results"][0];
  EXPECT_EQ(row["requests"], 41);
  EXPECT_EQ(row["prompt_tokens"], 64569);
  EXPECT_GT(row["hit_tokens"], 0);
  EXPECT_EQ(row["hit_tokens"].get<int>() % 512, 0);
  // Only missing blocks were moved: blocks of 16 tokens in 72 regions.
  const double missing = 64569 - row["hit_tokens"].get<double>();
  const double moved = row["ops_per_s"].get<double>() * row["seconds"].get<double>() / 72 * 16;
  EXPECT_GE(moved + 1, missing);
  EXPECT_LE(moved, missing + 41 * 16);
  Arguments first = trace;
  first.insert(first.end(), {"--requests", "5"});
  EXPECT_EQ(RunBenchJson(first).json["results"][0]["requests"], 5);
}

// Each thread of each peer is a lane, in which requests do not overlap.
void ExpectLanes(const json& row, size_t transfers, size_t lanes) {
  ASSERT_EQ(row["timeline"].size(), transfers);
  std::map<std::pair<int, int>, double> ended;
  double posted = 0;
  for (const json& times : row["timeline"]) {
    EXPECT_EQ(times["bytes"], row["bytes"]);
    EXPECT_LE(times["due_us"], times["posted_us"]);
    EXPECT_LE(times["posted_us"], times["first_slice_us"]);
    EXPECT_LE(times["first_slice_us"], times["ended_us"]);
    EXPECT_LE(times["ended_us"].get<double>(), row["seconds"].get<double>() * 1e6);
    ASSERT_TRUE(times.contains("notified_us")) << "both sides have one clock";
    EXPECT_LE(times["first_slice_us"], times["notified_us"]);
    EXPECT_GE(times["posted_us"], posted) << "out of order";
    posted = times["posted_us"];
    double& last = ended[{times["peer"], times["thread"]}];
    EXPECT_GE(times["posted_us"], last);
    last = times["ended_us"];
  }
  EXPECT_EQ(ended.size(), lanes);
}

TEST(Bench, KeepsTheStagesOfSomeTransfers) {
  for (const char* op : {"write", "read"}) {
    const json row = RunBenchJson({"--op", op, "--total", "1M", "-s", "16K", "-n", "20",
                                   "--threads", "2", "--timeline", "40"})
                         .json["results"][0];
    EXPECT_EQ(row["requests"], 40);
    ExpectLanes(row, 40, 2);
  }
}

TEST(Bench, KeepsTheStagesOfEveryPeer) {
  for (const char* scheme : {"manytoone", "onetomany"}) {
    const json row = RunBenchJson({"--peers", "5", "--scheme", scheme, "--backend", "tcp",
                                   "--total", "5M", "-s", "16K", "-n", "8", "--timeline", "40"})
                         .json["results"][0];
    ExpectLanes(row, 40, 5);
  }
}

// Requests of a trace that are due wait for a thread. --timeline asks for more than there are.
TEST(Bench, KeepsTheStagesOfATrace) {
  const std::string trace = std::string(KVXFER_SOURCE_DIR) + "/benchmarks/traces/sample.jsonl";
  const json row = RunBenchJson({"--trace", trace, "--model", "gpt-oss-120b", "--tp", "8",
                                 "--speedup", "1000", "--cache-size", "512M", "--timeline", "4096"})
                       .json["results"][0];
  ASSERT_EQ(row["timeline"].size(), 41u);
  EXPECT_TRUE(std::any_of(row["timeline"].begin(), row["timeline"].end(), [](const json& times) {
    return times["posted_us"].get<double>() - times["due_us"].get<double>() > 100;
  }));
}

TEST(Bench, PrintsCsvWithTheSameFields) {
  const Result result = RunBench({"--total", "1M", "-s", "4K,8K", "-n", "3", "--csv"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  std::istringstream lines(result.out);
  std::string header, line;
  std::getline(lines, header);
  const json schema = BenchSchema()["properties"]["results"]["items"];
  std::istringstream names(header);
  std::vector<std::string> columns;
  for (std::string name; std::getline(names, name, ',');) columns.push_back(name);
  for (const json& required : schema["required"]) {
    const json& property = schema["properties"].at(required.get<std::string>());
    if (property.contains("type") && property["type"] == "array") continue;
    EXPECT_NE(std::find(columns.begin(), columns.end(), required), columns.end()) << required;
  }
  for (const std::string& column : columns) {
    EXPECT_TRUE(schema["properties"].contains(column)) << column;
  }
  size_t rows = 0;
  for (; std::getline(lines, line); ++rows) {
    EXPECT_EQ(line.rfind("\"raw\",", 0), 0u) << line;
  }
  EXPECT_EQ(rows, 2u);
}

TEST(Bench, TellsPeopleWhatItDid) {
  const Result result = RunBench({"--total", "1M", "-s", "4K,8K", "-n", "3"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_THAT(result.err, IsEmpty()) << "the progress bar is for terminals";
  for (const char* text : {"GB/s", "p99.9", "4 KiB", "8 KiB", "verified", "path "}) {
    EXPECT_NE(result.out.find(text), std::string::npos) << text << " in:\n" << result.out;
  }
}

// The check of the schema must be able to fail.
TEST(BenchSchema, RefusesWhatIsNotWhole) {
  const json schema = BenchSchema();
  ASSERT_TRUE(schema.is_object());
  const json whole = RunBenchJson({"--total", "64K", "-s", "4K", "-n", "1"}).json;
  ASSERT_TRUE(whole.is_object());
  for (const json& name : schema["properties"]["results"]["items"]["required"]) {
    json broken = whole;
    broken["results"][0].erase(name.get<std::string>());
    EXPECT_EQ(SchemaErrors(schema, broken).size(), 1u) << name;
  }
  for (const auto& [name, value] : whole["results"][0].items()) {
    json broken = whole;
    broken["results"][0][name] = json::object();
    EXPECT_FALSE(SchemaErrors(schema, broken).empty()) << name;
  }
  json broken = whole;
  broken["results"] = json::array();
  EXPECT_FALSE(SchemaErrors(schema, broken).empty());
  broken = whole;
  broken["results"][0]["latency_cdf"][0] = json::array({1});
  EXPECT_FALSE(SchemaErrors(schema, broken).empty());
  broken = whole;
  broken["results"][0]["latency_cdf"] = json(200, json::array({1, 1}));
  EXPECT_FALSE(SchemaErrors(schema, broken).empty());
  broken = whole;
  broken["results"][0]["timeline"] = json::array({{{"peer", 0}}});
  EXPECT_FALSE(SchemaErrors(schema, broken).empty());
  broken = whole;
  broken.erase("date");
  EXPECT_FALSE(SchemaErrors(schema, broken).empty());
  broken = whole;
  broken["results"][0]["verified"] = false;
  EXPECT_FALSE(SchemaErrors(schema, broken).empty());
}

}  // namespace
}  // namespace kvxfer::cli
