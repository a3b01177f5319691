// How `kvxfer bench` ends when its options are wrong or it loses a process: one line, a status, and
// no partial JSON document.

#include <dirent.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "kvxfer/agent.h"
#include "src/cli/common/bootstrap.h"
#include "tests/integration/cli_program.h"
#include "tests/support/scale.h"

namespace kvxfer::cli {
namespace {

using kvxfer::testing::Eventually;
using kvxfer::testing::kAmple;
using Arguments = std::vector<std::string>;

void ExpectOneLine(const Result& result, ExitStatus status, const std::string& what) {
  EXPECT_EQ(result.status, status) << what << ": " << result.err;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << what << "\n"
                                                                       << result.err;
  EXPECT_EQ(result.err.rfind("kvxfer: ", 0), 0u) << what << "\n" << result.err;
}

TEST(BenchUsage, IsExitStatusTwoAndOneLine) {
  const std::vector<Arguments> cases = {
      {"--latency", "--bidirectional"},
      {"--latency", "--op", "read"},
      {"--latency", "--threads", "2"},
      {"--latency", "--peers", "2", "--scheme", "onetomany"},
      {"--iters", "5", "--duration", "1s"},
      {"--iters", "0"},
      {"--duration", "0"},
      {"--duration", "5"},
      {"--duration", "2h"},
      {"--requests", "5", "--iters", "5"},
      {"--model", "llama-3.1-8b", "--block-sizes", "4K"},
      {"--model", "llama-3.1-8b", "--total", "1G"},
      {"--model", "llama-3.1-8b", "--latency"},
      {"--model", "llama-3.1-8b", "--tokens", "0"},
      {"--model", "llama-3.1-8b", "--tokens", "16000000", "--block-tokens", "512"},
      {"--model", "llama-3.1-8b", "--requests", "3", "--threads", "4"},
      {"--model", "/no/such/config.json"},
      {"--tokens", "100"},
      {"--trace", "/no/such/trace"},
      {"--trace", "/proc/self/exe"},
      {"--trace", "/dev/null", "--rate", "5"},
      {"--trace", "/dev/null", "--peers", "2"},
      {"--speedup", "2"},
      {"--cache-size", "1G"},
      {"--rate", "fast"},
      {"--rate", "0"},
      {"--rate", "50%", "--bidirectional"},
      {"--arrivals", "poisson"},
      {"--rate", "5", "--arrivals", "never"},
      {"--peers", "0"},
      {"--peers", "100000"},
      {"--peers", "64", "--threads", "64"},
      {"--threads", "0"},
      {"--scheme", "manytomany"},
      {"--scheme", "onetomany", "--peers", "2", "--bidirectional"},
      {"--scheme", "onetomany", "--peers", "3", "127.0.0.1:1", "127.0.0.1:2"},
      {"127.0.0.1:1", "127.0.0.1:2"},
      {"--block-sizes", "1M", "--total", "4K"},
      {"--block-sizes", "4K", "--total", "64K", "--peers", "32"},
      {"--block-sizes", "0"},
      {"--start-block-size", "4K"},
      {"--start-block-size", "8K", "--max-block-size", "4K"},
      {"--memory", "stone"},
      {"--timeout", "0"},
      {"--total", "100000T", "--block-sizes", "1T"},
      {"--timeline", "0"},
      {"--timeline", "5000"},
      {"--timeline", "5", "--latency"},
      {"--answer", "message"},
      {"--answer", "silence", "--latency"},
      {"--timeline", "5", "--prefill-tp", "1", "--decode-tp", "1"},
      {"--json", "--csv"},
      {"--frobnicate"}};
  for (Arguments arguments : cases) {
    arguments.insert(arguments.begin(), "bench");
    arguments.emplace_back("--json");
    const Result result = RunProgram(arguments);
    ExpectOneLine(result, ExitStatus::kUsage, ::testing::PrintToString(arguments));
    EXPECT_EQ(result.out, "");
  }
}

TEST(BenchUsage, IsAPortThatIsTaken) {
  auto taken = BootstrapServer::Listen({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(taken.ok()) << taken.status();
  const std::string address = taken->address().ToString();
  const Result result =
      RunProgram({"bench", "--listen", address, "--backend", "tcp", "--total", "64K", "-s", "4K"});
  ExpectOneLine(result, ExitStatus::kUsage, "--listen");
  EXPECT_NE(result.err.find(address), std::string::npos) << result.err;
}

// Imitates a `kvxfer serve` of another version.
TEST(BenchUsage, IsAServerOfAnotherVersion) {
  for (const char* version : {"9.9.9", ""}) {
    auto server = BootstrapServer::Listen({.host = "127.0.0.1", .port = 0});
    ASSERT_TRUE(server.ok()) << server.status();
    const auto agent = Agent::Create({.name = "other"});
    ASSERT_TRUE(agent.ok()) << agent.status();
    Json hello = {{"metadata", ToHex((*agent)->Metadata().value())}};
    if (*version != '\0') hello["version"] = version;
    std::array<int, 2> stop{};
    ASSERT_EQ(pipe(stop.data()), 0);
    std::thread thread([&] {
      server->Run(stop[0], [&hello](Channel& channel) {
        while (channel.Receive(kAmple).ok() && channel.Send(hello).ok()) {
        }
      });
    });
    const Result result = RunProgram({"bench", server->address().ToString(), "--json"});
    ExpectOneLine(result, ExitStatus::kUsage, version);
    EXPECT_NE(result.err.find("same version"), std::string::npos) << result.err;
    EXPECT_EQ(result.out, "");
    close(stop[1]);
    thread.join();
    close(stop[0]);
  }
}

// The fields of /proc/PID/stat behind the name, which begin with the state.
std::vector<std::string> Stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  std::vector<std::string> fields;
  if (text.rfind(')') == std::string::npos) return fields;
  std::istringstream rest(text.substr(text.rfind(')') + 1));
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

// In the order in which they were started.
std::vector<pid_t> Children(pid_t parent) {
  std::vector<pid_t> children;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid <= 0) continue;
    const std::vector<std::string> stat = Stat(pid);
    if (stat.size() > 1 && stat[1] == std::to_string(parent)) children.push_back(pid);
  }
  closedir(proc);
  std::sort(children.begin(), children.end());
  return children;
}

// CPU time in hundredths of a second.
int64_t CpuTicks(pid_t pid) {
  const std::vector<std::string> stat = Stat(pid);
  return stat.size() > 12 ? std::stoll(stat[11]) + std::stoll(stat[12]) : 0;
}

// The runs below take a minute and need little setup: a process with so much CPU time is in the
// middle of its run.
bool IsAtWork(pid_t pid) {
  return Eventually(kAmple, [pid] { return CpuTicks(pid) >= 30; });
}

Arguments LongRun(Arguments more) {
  Arguments arguments = {"bench", "-s", "16K", "-D", "1m", "--json", "--timeout", "20s"};
  // Little to set up; a round trip has no total.
  if (more.back() != "--latency") more.insert(more.end(), {"--total", "1M"});
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

struct KillCase {
  const char* name;
  Arguments arguments;
  size_t processes;  // without the program itself
  bool first;        // kill the first (a target), or the last
};

class BenchKilled : public ::testing::TestWithParam<KillCase> {};

TEST_P(BenchKilled, EndsWithOneLineAndNoJson) {
  Program bench(LongRun(GetParam().arguments));
  std::vector<pid_t> children;
  ASSERT_TRUE(Eventually(kAmple, [&] {
    children = Children(bench.pid());
    return children.size() == GetParam().processes;
  })) << children.size();
  const pid_t victim = GetParam().first ? children.front() : children.back();
  ASSERT_TRUE(IsAtWork(victim));
  ASSERT_EQ(kill(victim, SIGKILL), 0);
  const Result result = Finish(bench);
  ExpectOneLine(result, ExitStatus::kFailed, GetParam().name);
  EXPECT_NE(result.err.find("Killed"), std::string::npos) << result.err;
  EXPECT_EQ(result.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    All, BenchKilled,
    ::testing::Values(KillCase{"Tcp", {"--backend", "tcp"}, 1, true},
                      KillCase{"TcpRead", {"--backend", "tcp", "--op", "read"}, 1, true},
                      KillCase{"Latency", {"--backend", "tcp", "--latency"}, 1, true},
                      KillCase{"BothWays", {"--backend", "shm", "-b"}, 1, true},
                      KillCase{"TargetOfMany", {"--backend", "tcp", "--peers", "6"}, 5, true},
                      KillCase{"OneOfMany", {"--backend", "tcp", "--peers", "6"}, 5, false},
                      KillCase{"OneOfManyTargets",
                               {"--backend", "tcp", "--peers", "6", "--scheme", "onetomany"},
                               4,
                               false}),
    [](const auto& info) { return std::string(info.param.name); });

// A stopped process closes nothing: only its silence shows that it is stopped.
TEST(BenchStopped, EndsWithOneLineThatNamesTheProcess) {
  Program bench(LongRun({"--backend", "tcp", "--peers", "3"}));
  std::vector<pid_t> children;
  ASSERT_TRUE(Eventually(kAmple, [&] {
    children = Children(bench.pid());
    return children.size() == 4;
  })) << children.size();
  ASSERT_TRUE(IsAtWork(children[2]));
  ASSERT_EQ(kill(children[2], SIGSTOP), 0);
  const Result result = Finish(bench);
  ExpectOneLine(result, ExitStatus::kFailed, "stopped");
  EXPECT_NE(result.err.find("process 2 of 3 with initiators (pid " + std::to_string(children[2])),
            std::string::npos)
      << result.err;
  EXPECT_EQ(result.out, "");
}

TEST(BenchServerKilled, EndsWithOneLineAndNoJson) {
  Program server({"serve", "--listen", "127.0.0.1:0", "--json"});
  const auto json = nlohmann::json::parse(server.ReadLine(), nullptr, false);
  ASSERT_TRUE(json.is_object()) << server.err();
  Program bench(LongRun({json["serving"], "--backend", "tcp"}));
  ASSERT_TRUE(IsAtWork(server.pid()));
  ASSERT_EQ(kill(server.pid(), SIGKILL), 0);
  const Result result = Finish(bench);
  ExpectOneLine(result, ExitStatus::kFailed, "serve");
  EXPECT_EQ(result.out, "");
}

}  // namespace
}  // namespace kvxfer::cli
