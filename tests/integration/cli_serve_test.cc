// `kvxfer serve` and its clients.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kvxfer/agent.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/exit_status.h"
#include "tests/integration/cli_program.h"

namespace kvxfer::cli {
namespace {

using std::chrono::steady_clock;

// Adds an agent called `name` at `channel`. Returns the server's status.
absl::Status SayHello(Channel& channel, const std::string& name) {
  AgentOptions options;
  options.name = name;
  const auto agent = Agent::Create(options);
  return agent.ok() ? Introduce(channel, **agent).status() : agent.status();
}

class Serve : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto json = nlohmann::json::parse(server_.ReadLine(), nullptr, false);
    ASSERT_TRUE(json.is_object()) << server_.err();
    address_ = json["serving"];
  }
  void TearDown() override {
    kill(server_.pid(), SIGTERM);
    EXPECT_EQ(server_.Wait(), ExitStatus::kOk) << server_.err();
  }

  // A channel from a client called `name`, which the server has accepted.
  absl::StatusOr<Channel> Client(const std::string& name) const {
    const absl::StatusOr<HostPort> server = ParseHostPort(address_);
    if (!server.ok()) return server.status();
    absl::StatusOr<Channel> channel = ConnectTo(*server, std::chrono::seconds(10));
    if (!channel.ok()) return channel;
    if (absl::Status taken = SayHello(*channel, name); !taken.ok()) return taken;
    return channel;
  }

  Program server_{{"serve", "--listen", "127.0.0.1:0", "--json", "--max-session-bytes", "8M"}};
  std::string address_;
};

TEST_F(Serve, AnswersPings) {
  for (const char* backend : {"tcp", "shm"}) {
    const Result result = RunProgram(
        {"ping", address_, "--iters", "20", "--interval", "0", "--backend", backend, "--json"});
    ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
    EXPECT_EQ(result.json["count"], 20);
    EXPECT_GT(result.json["min_us"], 0);
    EXPECT_LE(result.json["min_us"], result.json["p50_us"]);
    EXPECT_EQ(result.json["path"].get<std::string>().rfind(backend, 0), 0u) << result.out;
  }
}

TEST_F(Serve, IsTheOtherSideOfBenchmarks) {
  for (const char* op : {"write", "read"}) {
    for (const char* memory : {"mapped", "attached"}) {
      const Result result =
          RunProgram({"bench", address_, "--op", op, "--memory", memory, "--total", "4M",
                      "--block-sizes", "4K:64K", "--iters", "3", "--json"});
      ASSERT_EQ(result.status, ExitStatus::kOk) << op << " " << memory << ": " << result.err;
      ASSERT_EQ(result.json["results"].size(), 5u);
      for (const auto& row : result.json["results"]) {
        EXPECT_EQ(row["requests"], 3);
        EXPECT_EQ(row["op"], op);
        EXPECT_EQ(row["verified"], true);
        EXPECT_EQ(row["bytes"], 4 << 20);
        EXPECT_GT(row["gb_per_s"], 0);
      }
    }
  }
}

TEST_F(Serve, BoundsWhatAClientMayHave) {
  const Result result = RunProgram({"bench", address_, "--total", "9M", "--block-sizes", "4K"});
  EXPECT_EQ(result.status, ExitStatus::kUsage) << result.err;
  EXPECT_NE(result.err.find("8 MiB"), std::string::npos) << result.err;
}

TEST_F(Serve, ExplainsBothWays) {
  const Result result = RunProgram({"explain", address_, "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  for (const char* side : {"here", "there"}) {
    ASSERT_TRUE(result.json[side]["paths"].is_array()) << result.out;
    EXPECT_GT(result.json[side]["paths"].size(), 0u);
  }
  const std::string text = RunProgram({"explain", address_, "--memory", "mapped"}).out;
  EXPECT_EQ(text.find("chosen: shm; connected: "), 0u) << text;
  const size_t there = text.find("from there:");
  ASSERT_NE(there, std::string::npos) << text;
  // Both sides have moved memory by then: each reports the chosen path, and that it is connected.
  EXPECT_NE(text.find(": chosen, connected"), std::string::npos) << text;
  EXPECT_NE(text.find(": chosen, connected", there), std::string::npos) << text;
}

TEST_F(Serve, OutlivesGarbageAndClientsThatDie) {
  const auto server = ParseHostPort(address_);
  ASSERT_TRUE(server.ok());
  for (int i = 0; i < 20; ++i) {
    auto channel = ConnectTo(*server, std::chrono::seconds(10));
    ASSERT_TRUE(channel.ok()) << channel.status();
    // Expect well-formed messages in the wrong order, or without sense, to be answered by errors.
    for (const Json& message :
         {Json{{"type", "prepare"}, {"bytes", 1}}, Json{{"type", "hello"}, {"metadata", "00ff"}},
          Json{{"type", 7}}, Json{{"type", "check"}, {"count", UINT64_MAX}}}) {
      EXPECT_FALSE(channel->Call(message, std::chrono::seconds(10)).ok());
    }
    const std::string garbage(100, static_cast<char>(128 + i));
    ASSERT_GT(send(channel->fd(), garbage.data(), garbage.size(), MSG_NOSIGNAL), 0);
  }
  {
    Program bench({"bench", address_, "--total", "4M", "--iters", "50000"});
    bench.ReadLine();
  }  // killed in the middle
  EXPECT_EQ(RunProgram({"ping", address_, "--iters", "3", "--interval", "0"}).status,
            ExitStatus::kOk);
}

TEST_F(Serve, KeepsOneAgentAClientAndOneClientAnAgent) {
  const auto server = ParseHostPort(address_);
  ASSERT_TRUE(server.ok());
  auto first = ConnectTo(*server, std::chrono::seconds(10));
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(SayHello(*first, "first").ok());
  for (int i = 0; i < 3; ++i) {
    const absl::Status another = SayHello(*first, "another" + std::to_string(i));
    EXPECT_TRUE(absl::IsFailedPrecondition(another)) << another;
  }
  // The same name again, as a new incarnation, is accepted.
  EXPECT_TRUE(SayHello(*first, "first").ok());
  auto second = ConnectTo(*server, std::chrono::seconds(10));
  ASSERT_TRUE(second.ok()) << second.status();
  const absl::Status stolen = SayHello(*second, "first");
  EXPECT_TRUE(absl::IsFailedPrecondition(stolen)) << stolen;
  EXPECT_NE(std::string(stolen.message()).find("first"), std::string::npos) << stolen;
  EXPECT_TRUE(SayHello(*second, "second").ok());
  EXPECT_TRUE(first->Call({{"type", "explain"}}, std::chrono::seconds(10)).ok());
}

TEST_F(Serve, CountsBlockIdsAmongWhatAClientMayHave) {
  auto channel = Client("first");
  ASSERT_TRUE(channel.ok()) << channel.status();
  const auto call = [&channel](const Json& message) {
    return channel->Call(message, std::chrono::seconds(30)).status();
  };
  const auto prepare = [&call](uint64_t blocks) {
    return call({{"type", "prepare"},
                 {"pieces", 1},
                 {"block_bytes", 1},
                 {"blocks", blocks},
                 {"memory", "attached"}});
  };
  // The limit covers blocks of one byte, two ids of 4 bytes for each block, and the guards.
  constexpr uint64_t kMost = ((8 << 20) - 8192) / 9;
  EXPECT_TRUE(prepare(kMost).ok()) << prepare(kMost);
  const absl::Status more = prepare(kMost + 1);
  EXPECT_TRUE(absl::IsInvalidArgument(more)) << more;
  EXPECT_NE(std::string(more.message()).find("--max-session-bytes"), std::string::npos) << more;
  // Sizes whose product does not fit 64 bits are refused too.
  EXPECT_TRUE(absl::IsInvalidArgument(call({{"type", "prepare"},
                                            {"pieces", 4096},
                                            {"block_bytes", uint64_t{1} << 60},
                                            {"blocks", 16},
                                            {"memory", "attached"}})));
}

TEST_F(Serve, BoundsWhatAClientMayAskOfItsCache) {
  auto channel = Client("first");
  ASSERT_TRUE(channel.ok()) << channel.status();
  const auto call = [&channel](const Json& message) {
    return channel->Call(message, std::chrono::seconds(30)).status();
  };
  EXPECT_FALSE(call({{"type", "clear"}}).ok());
  const Json region = {4096, 64, 64, 100};
  Json prepare = {{"type", "prepare"}, {"pieces", 1},        {"block_bytes", 64},
                  {"blocks", 100},     {"memory", "mapped"}, {"drive", {region}}};
  ASSERT_TRUE(call(prepare).ok()) << call(prepare);
  for (const Json& bad : {Json{{"first", 90}, {"streams", 2}, {"request_blocks", 6}},
                          Json{{"first", 0}, {"streams", 0}, {"request_blocks", 1}},
                          Json{{"first", 101}, {"streams", 1}, {"request_blocks", 1}},
                          Json{{"first", 0}, {"streams", 1}}}) {
    Json message = {{"type", "fill"}, {"content", 0}, {"seed", 1}};
    message.update(bad);
    EXPECT_TRUE(absl::IsInvalidArgument(call(message))) << message;
  }
  // A load that does not fit, or that would not end.
  const Json loop = {{"requests", 1}, {"duration_ns", 0}, {"seed", 1}, {"start_ns", 0}};
  Json drive = {{"type", "drive"},   {"threads", 1}, {"request_blocks", 101},       {"first", 0},
                {"remote_first", 0}, {"seed", 1},    {"timeout_ns", 1'000'000'000}, {"loop", loop}};
  EXPECT_TRUE(absl::IsInvalidArgument(call(drive)));
  drive["request_blocks"] = 1;
  drive["loop"]["requests"] = 0;
  EXPECT_TRUE(absl::IsInvalidArgument(call(drive)));
  // Regions of the client must have the shape of those of the cache.
  for (const Json& bad : {Json{4096, 64, 64, 101}, Json{4096, 63, 64, 100}}) {
    prepare["drive"] = {bad};
    EXPECT_TRUE(absl::IsInvalidArgument(call(prepare))) << bad;
  }
}

TEST_F(Serve, RefusesAnotherVersion) {
  const auto server = ParseHostPort(address_);
  ASSERT_TRUE(server.ok());
  for (const Json& version : {Json("9.9.9"), Json()}) {
    auto channel = ConnectTo(*server, std::chrono::seconds(10));
    ASSERT_TRUE(channel.ok()) << channel.status();
    Json hello = {{"type", "hello"}, {"metadata", "00"}};
    if (!version.is_null()) hello["version"] = version;
    const absl::Status refused = channel->Call(hello, std::chrono::seconds(10)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_NE(std::string(refused.message()).find("same version"), std::string::npos) << refused;
  }
}

// It ends long before the time-out, which is as long as the test may take.
TEST(Ping, EndsWhenItsTransferHasFailed) {
  Program server({"serve", "--listen", "127.0.0.1:0", "--advertise", "127.0.0.1:1", "--backend",
                  "tcp", "--json"});
  const auto json = nlohmann::json::parse(server.ReadLine(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << server.err();
  const auto start = steady_clock::now();
  const Result result = RunProgram({"ping", json["serving"], "--timeout", "2m"});
  EXPECT_EQ(result.status, ExitStatus::kUnreachable) << result.err;
  EXPECT_LT(steady_clock::now() - start, std::chrono::minutes(1));
}

TEST(Ping, NeedsNoServer) {
  const Result result = RunProgram({"ping", "--iters", "10", "--interval", "0", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["count"], 10);
}

}  // namespace
}  // namespace kvxfer::cli
