// The `kvxfer` program as users run it: output, files and exit statuses.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "src/cli/bootstrap.h"
#include "src/cli/exit_status.h"

namespace kvxfer::cli {
namespace {

using std::chrono::steady_clock;

// A run of the program with its output in pipes; killed when it outlives the object.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    std::array<int, 2> out{}, err{};
    EXPECT_EQ(pipe2(out.data(), O_CLOEXEC), 0);
    EXPECT_EQ(pipe2(err.data(), O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions, err[1], STDERR_FILENO);
    arguments.insert(arguments.begin(), "kvxfer");
    std::vector<char*> argv;
    argv.reserve(arguments.size() + 1);
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, KVXFER_CLI_PATH, &actions, nullptr, argv.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    close(err[1]);
    fds_ = {out[0], err[0]};
  }
  ~Program() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    for (int fd : fds_) close(fd);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  // Waits for the end and collects the rest of the output. Returns the exit status.
  ExitStatus Wait() {
    while (ReadSome(-1)) {
    }
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    pid_ = -1;
    EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status) << "\n" << err_;
    return static_cast<ExitStatus>(WEXITSTATUS(status));
  }
  std::string ReadLine() {
    while (out_.find('\n') == std::string::npos && ReadSome(60'000)) {
    }
    return out_.substr(0, out_.find('\n'));
  }
  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }
  pid_t pid() const { return pid_; }

 private:
  // False at the end of both pipes or after `milliseconds` of silence.
  bool ReadSome(int milliseconds) {
    std::array<pollfd, 2> waits = {pollfd{open_[0] ? fds_[0] : -1, POLLIN, 0},
                                   pollfd{open_[1] ? fds_[1] : -1, POLLIN, 0}};
    if (!(open_[0] || open_[1]) || poll(waits.data(), waits.size(), milliseconds) <= 0)
      return false;
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].revents == 0) continue;
      std::array<char, 4096> buffer;
      const ssize_t n = read(fds_[i], buffer.data(), buffer.size());
      if (n > 0) (i == 0 ? out_ : err_).append(buffer.data(), static_cast<size_t>(n));
      open_[i] = n > 0;
    }
    return true;
  }

  pid_t pid_ = -1;
  std::array<int, 2> fds_{-1, -1};
  std::array<bool, 2> open_{true, true};
  std::string out_;
  std::string err_;
};

struct Result {
  ExitStatus status;
  nlohmann::json json;
  std::string out;
  std::string err;
};

Result RunProgram(const std::vector<std::string>& arguments) {
  Program program(arguments);
  Result result{.status = program.Wait(), .json = {}, .out = program.out(), .err = program.err()};
  result.json = nlohmann::json::parse(result.out, nullptr, false);
  return result;
}

// A small model whose cache holds less than two requests, so that blocks are used again.
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

class Demo : public testing::TestWithParam<DemoCase> {};

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
    testing::Values(DemoCase{"Tcp", {"--backend", "tcp"}, "tcp"},
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
  const std::string path = testing::TempDir() + "/kvxfer_config.json";
  std::ofstream(path) << R"({"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 64})";
  const Result result = RunProgram(
      {"demo", "--model", path, "--requests", "2", "--tokens", "32", "--backend", "tcp", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["block_bytes"], 16 * 4 * 64 * 2);
  unlink(path.c_str());
}

TEST(DemoProgram, EndsWhenTheOtherProcessIsKilled) {
  Program program({"demo", "--model", "gpt-oss-120b", "--requests", "100000", "--tokens", "64",
                   "--backend", "tcp"});
  const std::string children = "/proc/" + std::to_string(program.pid()) + "/task/" +
                               std::to_string(program.pid()) + "/children";
  pid_t child = 0;
  for (const auto end = steady_clock::now() + std::chrono::seconds(30);
       child == 0 && steady_clock::now() < end;) {
    std::ifstream(children) >> child;
  }
  ASSERT_GT(child, 0);
  kill(child, SIGKILL);
  const auto killed = steady_clock::now();
  EXPECT_EQ(program.Wait(), ExitStatus::kUnreachable);
  EXPECT_LT(steady_clock::now() - killed, std::chrono::seconds(20));
  EXPECT_NE(program.err().find("kvxfer: "), std::string::npos);
}

TEST(Usage, IsExitStatusTwoAndOneLine) {
  const std::vector<std::vector<std::string>> cases = {
      {},
      {"fly"},
      {"demo", "--model", "no-such-model"},
      {"demo", "--tokens", "-5"},
      {"demo", "--requests", "0"},
      {"demo", "--cache-size", "4KB"},
      {"demo", "--cache-size", "1K"},
      {"demo", "--memory", "stone"},
      {"demo", "--backend", "carrier-pigeon"},
      {"bench", "--op", "erase"},
      {"bench", "--block-sizes", "4M:4K"},
      {"bench", "--block-sizes", "1M", "--total", "4K"},
      {"ping", "host:99999"},
      {"ping", "--count", "0"},
      {"explain"},
      {"serve", "--listen", "[::1"}};
  for (const auto& arguments : cases) {
    const Result result = RunProgram(arguments);
    EXPECT_EQ(result.status, ExitStatus::kUsage) << testing::PrintToString(arguments);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.err.rfind("kvxfer: ", 0), 0u) << result.err;
  }
  EXPECT_EQ(RunProgram({"--help"}).status, ExitStatus::kOk);
  EXPECT_EQ(RunProgram({"bench", "--help"}).status, ExitStatus::kOk);
}

TEST(Unreachable, IsExitStatusThree) {
  // Port 1 of loopback: nothing listens there.
  for (const char* command : {"ping", "bench", "explain"}) {
    const Result result = RunProgram({command, "127.0.0.1:1"});
    EXPECT_EQ(result.status, ExitStatus::kUnreachable);
    EXPECT_NE(result.err.find("127.0.0.1:1"), std::string::npos) << result.err;
  }
}

// Loopback joins agents of one process, and these commands run two.
TEST(NotUsable, IsExitStatusFive) {
  const Result result = RunProgram(SmallDemo({"--backend", "loopback"}));
  EXPECT_EQ(result.status, ExitStatus::kNotUsable) << result.err;
}

class Serve : public testing::Test {
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

  Program server_{{"serve", "--listen", "127.0.0.1:0", "--json", "--max-session-bytes", "8M"}};
  std::string address_;
};

TEST_F(Serve, AnswersPings) {
  for (const char* backend : {"tcp", "shm"}) {
    const Result result = RunProgram(
        {"ping", address_, "--count", "20", "--interval", "0", "--backend", backend, "--json"});
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
                      "--block-sizes", "4K:64K", "--rounds", "3", "--json"});
      ASSERT_EQ(result.status, ExitStatus::kOk) << op << " " << memory << ": " << result.err;
      ASSERT_EQ(result.json["rows"].size(), 5u);
      for (const auto& row : result.json["rows"]) {
        EXPECT_EQ(row["rounds"], 3);
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
  EXPECT_NE(RunProgram({"explain", address_}).out.find("from there:"), std::string::npos);
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
    Program bench({"bench", address_, "--total", "8M", "--rounds", "50000"});
    bench.ReadLine();
  }  // killed in the middle
  EXPECT_EQ(RunProgram({"ping", address_, "--count", "3", "--interval", "0"}).status,
            ExitStatus::kOk);
}

TEST(Ping, NeedsNoServer) {
  const Result result = RunProgram({"ping", "--count", "10", "--interval", "0", "--json"});
  ASSERT_EQ(result.status, ExitStatus::kOk) << result.err;
  EXPECT_EQ(result.json["count"], 10);
}

}  // namespace
}  // namespace kvxfer::cli
