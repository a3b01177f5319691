// A log that nothing reads: with a full pipe as its stderr, `kvxfer serve` goes on serving while
// strangers make it log, and ends at a signal.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvxfer/metadata.h"
#include "src/cli/common/bootstrap.h"
#include "src/cli/common/exit_status.h"
#include "src/cli/common/peer_service.h"
#include "src/core/base/clock.h"
#include "src/core/base/own_fd.h"
#include "src/core/protocol/metadata.h"
#include "src/core/protocol/wire_format.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/socket.h"
#include "tests/integration/cli_program.h"
#include "tests/support/machine_delay.h"
#include "tests/support/scale.h"

namespace kvxfer::cli {
namespace {

using testing::Bound;
using testing::MachineDelay;

constexpr int kStrangers = 400;
constexpr int kRounds = 40;

// A full pipe whose reader does not read.
class FullPipe {
 public:
  FullPipe() {
    std::array<int, 2> ends{};
    EXPECT_EQ(pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK), 0);
    read_ = OwnFd(ends[0]);
    write_ = OwnFd(ends[1]);
    const std::string much(65536, '.');
    while (write(write_.get(), much.data(), much.size()) > 0) {
    }
    while (write(write_.get(), ".", 1) > 0) {
    }
  }
  // Opening it this way makes writes block, as with the pipes of a supervisor.
  std::string path() const {
    return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(write_.get());
  }

 private:
  OwnFd read_;
  OwnFd write_;
};

// Connections that the data port of an agent must refuse.
class Stranger {
 public:
  Stranger(const net::SocketAddress& to, const Incarnation& target) : to_(to), target_(target) {}

  // One hostile connection, of kind `kind`.
  void Bother(int kind) {
    switch (kind % 6) {
      case 0:
        return Garbage();
      case 1:
        return Connect(control_);  // and closes at once
      case 2:
        return HalfAPreamble();
      case 3:
        return Hello("\xff");
      case 4:
        return Hello("x\n2026-01-01T00:00:00.000 kvxfer error: forged \x1b[2J");
      case 5:
        return TooLong();
    }
  }

 private:
  void Connect(OwnFd& fd) {
    fd = OwnFd(::socket(to_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval patience{.tv_sec = 5, .tv_usec = 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    EXPECT_EQ(::connect(fd.get(), to_.get(), to_.length), 0);
  }
  static void Say(const OwnFd& fd, std::span<const std::byte> bytes) {
    (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  static bool Hear(const OwnFd& fd, std::span<std::byte> into) {
    return ::recv(fd.get(), into.data(), into.size(), MSG_WAITALL) ==
           static_cast<ssize_t>(into.size());
  }

  void Garbage() {
    Connect(control_);
    const std::string garbage(100, '\xfe');
    Say(control_, std::as_bytes(std::span(garbage)));
  }
  void HalfAPreamble() {
    Connect(control_);
    std::array<std::byte, net::kPreambleBytes> preamble;
    net::Encode(net::Preamble{.rails = 1, .target = target_}, preamble);
    Say(control_, std::span(preamble).first(net::kPreambleBytes / 2));
  }
  // Makes a link of one data stream, as a peer does; false: it failed.
  bool Join() {
    Connect(control_);
    std::array<std::byte, net::kPreambleBytes> preamble;
    net::Encode(net::Preamble{.rails = 1, .target = target_}, preamble);
    Say(control_, preamble);
    std::array<std::byte, net::kWelcomeBytes> bytes;
    if (!Hear(control_, bytes)) return false;
    const auto welcome = net::DecodeWelcome(bytes);
    if (!welcome.ok()) return false;
    Connect(data_);
    net::Encode(
        net::Preamble{
            .role = net::Role::kData, .rails = 1, .target = target_, .link = welcome->link},
        preamble);
    Say(data_, preamble);
    std::array<std::byte, net::kControlHeadBytes> ready;
    return Hear(control_, ready);
  }
  void SayMessage(size_t announced, const std::string& message) {
    std::array<std::byte, net::kControlHeadBytes> head;
    net::Encode(net::ControlHead{.bytes = static_cast<uint32_t>(announced)}, head);
    Say(control_, head);
    Say(control_, std::as_bytes(std::span(message)));
  }
  // The agent answers by closing the connection.
  void Hello(const std::string& name) {
    EXPECT_TRUE(Join());
    const HelloFrame hello{
        .initiator = Incarnation::Random(), .target = target_, .session = 1, .name = name};
    const std::string message = EncodeMessage(FrameType::kHello, 0, 0, hello);
    SayMessage(message.size(), message);
    std::array<std::byte, 1> more;
    while (Hear(control_, more)) {
    }
  }
  void TooLong() {
    EXPECT_TRUE(Join());
    SayMessage(net::kMaxMessageBytes + 1, "and so on");
  }

  const net::SocketAddress to_;
  const Incarnation target_;
  OwnFd control_{};
  OwnFd data_{};
};

// With KVXFER_SERVE_METADATA the server gives its metadata to every process.
TEST(HostileLog, PingsPassAndSigtermEndsAServerWhoseStderrIsAFullPipe) {
  const FullPipe log;
  Program server(
      {"-c", "exec env KVXFER_SERVE_METADATA=1 \"$1\" serve --listen 127.0.0.1:0 --json 2> \"$0\"",
       log.path(), KVXFER_CLI_PATH},
      "/bin/sh");
  const Json where = Json::parse(server.ReadLine(), nullptr, false);
  ASSERT_TRUE(where.is_object()) << server.out() << server.err();

  const auto metadata = FetchMetadata(where["data"].get<std::string>(), std::chrono::seconds(10));
  ASSERT_TRUE(metadata.ok()) << metadata.status();
  const auto known = DecodeMetadata(*metadata);
  ASSERT_TRUE(known.ok()) << known.status();
  const auto data = net::Resolve(where["data"].get<std::string>(), 0, net::Names::kNumericOnly);
  ASSERT_TRUE(data.ok()) << data.status();

  const auto address = ParseHostPort(where["serving"].get<std::string>());
  ASSERT_TRUE(address.ok());
  auto channel = ConnectTo(*address, std::chrono::seconds(10));
  ASSERT_TRUE(channel.ok()) << channel.status();
  KvCache cache;
  const auto agent = MakeAgent({.role = "ping", .backends = "tcp"});
  ASSERT_TRUE(agent.ok()) << agent.status();
  auto trip =
      RoundTrip::Open(*channel, **agent, cache, 64, MemorySides(), Bound(std::chrono::seconds(10)));
  ASSERT_TRUE(trip.ok()) << trip.status();
  ASSERT_TRUE(trip->Once().ok());

  std::vector<std::unique_ptr<Stranger>> silent;  // they keep their connections
  for (int number = 0; number < kStrangers;) {
    for (const int end = number + kStrangers / kRounds; number < end; ++number) {
      auto stranger = std::make_unique<Stranger>(data->front(), known->incarnation);
      stranger->Bother(number);
      if (number % 6 == 2) silent.push_back(std::move(stranger));
    }
    const MachineDelay delay;
    const Time start = Now();
    const absl::Status pinged = trip->Once();
    const Duration took = Now() - start;
    ASSERT_TRUE(pinged.ok()) << "after " << number << " strangers: " << pinged;
    ASSERT_LT(took, Bound(std::chrono::milliseconds(100)) + delay.so_far()) << number;
  }

  const Time asked = Now();
  kill(server.pid(), SIGTERM);
  EXPECT_EQ(server.Wait(), ExitStatus::kOk);
  EXPECT_LT(Now() - asked, Bound(std::chrono::seconds(10)));
}

}  // namespace
}  // namespace kvxfer::cli
