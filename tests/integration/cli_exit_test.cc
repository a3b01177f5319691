// How `kvxfer` ends: exit statuses, and what it says on the way.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/exit_status.h"
#include "tests/integration/cli_program.h"
#include "tests/support/scale.h"

namespace kvxfer::cli {
namespace {

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
      {"demo", "--prefill-tp", "3"},
      {"demo", "--decode-tp", "2", "--tp", "2"},
      {"demo", "--decode-block-tokens", "0"},
      {"demo", "--decode-layout", "NDH"},
      {"demo", "--prefill-tp", "2", "--gap", "63"},
      {"bench", "--op", "erase"},
      {"bench", "--block-sizes", "4M:4K"},
      {"bench", "--block-sizes", "1M", "--total", "4K"},
      {"ping", "host:99999"},
      {"ping", "--iters", "0"},
      {"explain"},
      {"serve", "--listen", "[::1"},
      {"topo", "--fixture", "no-such-host"},
      {"topo", "--root", "/no/such/folder"},
      {"topo", "--root", "/usr"},
      {"topo", "--root", "/", "--fixture", "dgx-h100"},
      {"topo", "--fixture", "dgx-h100", "--ports", "mlx5_99"},
      {"topo", "--fixture", "dgx-h100", "--ports", "mlx5_0,,"},
      {"topo", "--fixture", "dgx-h100", "--fabric", "compute"},
      {"topo", "--fixture", "plain-vm", "--ports", "mlx5_0"},
      {"topo", "dgx-h100"},
      {"doctor", "--root", "/no/such/folder"},
      {"doctor", "--root", "/usr"},
      {"doctor", "--fixture", "no-such-host"},
      {"doctor", "--fabric", "Fabric1=no-such-port"},
      {"doctor", "--backend", "tcp"},
      {"doctor", "127.0.0.1:1", "--root", "/"},
      {"doctor", "127.0.0.1:1", "--backend", "carrier-pigeon"},
      {"doctor", "host:99999"}};
  for (const auto& arguments : cases) {
    const Result result = RunProgram(arguments);
    EXPECT_EQ(result.status, ExitStatus::kUsage) << ::testing::PrintToString(arguments);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.err.rfind("kvxfer: ", 0), 0u) << result.err;
  }
  EXPECT_EQ(RunProgram({"--help"}).status, ExitStatus::kOk);
  EXPECT_EQ(RunProgram({"bench", "--help"}).status, ExitStatus::kOk);
}

TEST(Unreachable, IsExitStatusThree) {
  // Port 1 of loopback: nothing listens there.
  for (const char* command : {"ping", "bench", "explain", "doctor"}) {
    const Result result = RunProgram({command, "127.0.0.1:1"});
    EXPECT_EQ(result.status, ExitStatus::kUnreachable);
    EXPECT_NE(result.err.find("127.0.0.1:1"), std::string::npos) << result.err;
  }
}

// Loopback joins agents of one process, and these commands run two.
TEST(NotUsable, IsExitStatusFive) {
  const Result result =
      RunProgram({"demo", "--requests", "1", "--tokens", "32", "--backend", "loopback"});
  EXPECT_EQ(result.status, ExitStatus::kNotUsable) << result.err;
}

// What this host has not, be it a port or memory, is no peer's fault.
TEST(NotUsable, IsSaidOfWhatThisHostHasNot) {
  auto taken = BootstrapServer::Listen({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(taken.ok()) << taken.status();
  const std::string address = taken->address().ToString();
  const Result port = RunProgram({"serve", "--listen", address});
  EXPECT_EQ(port.status, ExitStatus::kNotUsable) << port.err;
  EXPECT_NE(port.err.find("--listen"), std::string::npos) << port.err;
  const Result data = RunShell("env KVXFER_LISTEN=" + address + " $0 ping --iters 1");
  EXPECT_EQ(data.status, ExitStatus::kNotUsable) << data.err;
  const Result memory = RunProgram({"ping", "--size", "100000T", "--memory", "attached"});
  EXPECT_EQ(memory.status, ExitStatus::kNotUsable) << memory.err;
}

// The undefined behaviour sanitizer takes a pipe for itself whenever it looks at a type.
#if !KVXFER_ADDRESS_SANITIZER
TEST(NotUsable, IsSaidWhereDescriptorsRunOut) {
  const Result descriptors =
      RunShell("/bin/sh -c 'ulimit -n 6; exec $0 ping --iters 1 --backend tcp' $0");
  EXPECT_EQ(descriptors.status, ExitStatus::kNotUsable) << descriptors.err;
}
#endif

TEST(Unreachable, IsSaidOfAPortThatSpeaksAnotherProtocol) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(listener, generic, size), 0);
  ASSERT_EQ(listen(listener, 1), 0);
  ASSERT_EQ(getsockname(listener, generic, &size), 0);
  Program ping({"ping", "127.0.0.1:" + std::to_string(ntohs(address.sin_port))});
  const int client = accept(listener, nullptr, nullptr);
  ASSERT_GE(client, 0);
  const std::string_view banner = "SSH-2.0-OpenSSH_9.2\r\n";
  ASSERT_GT(send(client, banner.data(), banner.size(), MSG_NOSIGNAL), 0);
  EXPECT_EQ(ping.Wait(), ExitStatus::kUnreachable) << ping.err();
  EXPECT_NE(ping.err().find("kvxfer serve"), std::string::npos) << ping.err();
  close(client);
  close(listener);
}

TEST(Output, ThatIsLostIsAFailure) {
  for (const char* command :
       {"ping --iters 1 --interval 0 --json", "--help",
        "demo --model gpt-oss-120b --requests 1 --tokens 32 --backend tcp --json"}) {
    const Result result = RunShell(std::string("$0 ") + command + " > /dev/full");
    EXPECT_EQ(result.status, ExitStatus::kFailed) << command << result.err;
    EXPECT_NE(result.err.find("No space left"), std::string::npos) << result.err;
  }
}

// Both processes of a run have the environment; a port that it names is for the first.
TEST(Environment, NamesAPortForOneProcessOnly) {
  // Of this test alone: elsewhere a port that is free may be taken before it is used.
  const std::string host = "127.77.13.1";
  uint16_t port = 0;
  {
    const auto free = BootstrapServer::Listen({.host = host, .port = 0});
    ASSERT_TRUE(free.ok()) << free.status();
    port = free->address().port;
  }
  const std::string at = host + ":" + std::to_string(port);
  const std::string environment = absl::StrCat("env KVXFER_LISTEN=", at, " KVXFER_ADVERTISE=", at);
  for (const char* command : {"ping --iters 1", "bench --total 64K --block-sizes 4K --iters 1",
                              "demo --model gpt-oss-120b --requests 1 --tokens 32"}) {
    const Result result = RunShell(absl::StrCat(environment, " $0 ", command, " --backend tcp"));
    EXPECT_EQ(result.status, ExitStatus::kOk) << command << ": " << result.err;
  }
}

}  // namespace
}  // namespace kvxfer::cli
