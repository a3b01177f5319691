// `kvxfer` between two hosts.

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tests/integration/cli_program.h"
#include "tests/support/two_hosts.h"

namespace kvxfer::cli {
namespace {

using kvxfer::testing::TwoHosts;

class TwoHostsTest : public ::testing::Test {
 protected:
  static constexpr size_t kServer = 0;
  static constexpr size_t kClient = 1;

  void SetUp() override {
    auto hosts = TwoHosts::Make();
    if (!hosts.ok()) GTEST_SKIP() << hosts.status().message();
    hosts_ = *std::move(hosts);
  }
  void StartServer(std::vector<std::string> arguments, const char* path = nullptr) {
    hosts_->On(kServer, [&] { server_.emplace(arguments, path); });
    const auto json = nlohmann::json::parse(server_->ReadLine(), nullptr, false);
    ASSERT_TRUE(json.is_object()) << server_->err();
    address_ = json["serving"];
    data_ = json["data"];
  }
  Result RunOnClient(const std::vector<std::string>& arguments) {
    std::optional<Program> program;
    hosts_->On(kClient, [&] { program.emplace(arguments); });
    return Finish(*program);
  }

  std::unique_ptr<TwoHosts> hosts_;
  std::optional<Program> server_;
  std::string address_;
  std::string data_;
};

// The server sends to the client's agent, which must be reachable without --listen.
TEST_F(TwoHostsTest, ClientsReachAServerWithoutBeingConfigured) {
  StartServer({"serve", "--listen", std::string(TwoHosts::kAddresses[kServer]) + ":0", "--json"});
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"ping", address_, "--iters", "3", "--interval", "0", "--json"},
           {"bench", address_, "--total", "64K", "--block-sizes", "4K", "--iters", "2", "--json"},
           {"explain", address_, "--json"}}) {
    const Result result = RunOnClient(command);
    ASSERT_EQ(result.status, ExitStatus::kOk) << command[0] << ": " << result.err;
    EXPECT_TRUE(result.json.is_object()) << result.out;
  }
}

TEST_F(TwoHostsTest, ListenSaysWhereTheServersAnswersComeIn) {
  StartServer({"serve", "--listen", std::string(TwoHosts::kAddresses[kServer]) + ":0", "--json"});
  const Result here = RunOnClient({"ping", address_, "--iters", "1", "--listen", "0.0.0.0"});
  EXPECT_EQ(here.status, ExitStatus::kOk) << here.err;
  const Result wrong = RunOnClient({"ping", address_, "--iters", "1", "--listen", "127.0.0.1"});
  EXPECT_NE(wrong.status, ExitStatus::kOk);
  EXPECT_NE(wrong.err.find("loopback"), std::string::npos) << wrong.err;
}

TEST_F(TwoHostsTest, ServeTakesTheEnvironmentsAddress) {
  const std::string host = TwoHosts::kAddresses[kServer];
  StartServer({"-c", "KVXFER_LISTEN=" + host + ":9123 exec $0 serve --json", KVXFER_CLI_PATH},
              "/bin/sh");
  EXPECT_EQ(address_, host + ":7471");
  EXPECT_EQ(data_, host + ":9123");
  const Result result = RunOnClient({"ping", host, "--iters", "1"});
  EXPECT_EQ(result.status, ExitStatus::kOk) << result.err;
}

}  // namespace
}  // namespace kvxfer::cli
