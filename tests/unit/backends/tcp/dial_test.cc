// Connecting over tcp: what waiting costs, candidates that answer wrongly, and what guards the
// streams of a link that is up.
#include <netinet/tcp.h>

#include <filesystem>

#include "src/transport/listener.h"
#include "src/transport/sockets/socket.h"
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

using net::Fd;

net::SocketAddress AnyLoopback() {
  return net::Resolve("127.0.0.1:0", 0, net::Names::kNumericOnly)->front();
}

std::string Candidates(const Incarnation& target, const std::vector<std::string>& hosts) {
  std::string text = "1;" + target.ToString();
  for (const std::string& host : hosts) text += ";" + host;
  return text;
}

// Reads a preamble, answers with `bytes` of nonsense, and closes.
class Babbler {
 public:
  explicit Babbler(size_t bytes) : answer_(bytes, 'x'), listener_(*net::Listen(AnyLoopback())) {}
  std::string address() const { return net::LocalAddress(listener_.get()).ToString(); }
  bool done() const { return done_; }

  void Turn() {
    if (done_) return;
    if (!peer_.valid()) peer_ = Fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!peer_.valid()) return;
    std::array<char, 256> preamble;
    if (::recv(peer_.get(), preamble.data(), preamble.size(), MSG_DONTWAIT) <= 0) return;
    EXPECT_EQ(::send(peer_.get(), answer_.data(), answer_.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer_.size()));
    peer_.Reset();
    done_ = true;
  }

 private:
  const std::string answer_;
  const Fd listener_;
  Fd peer_;
  bool done_ = false;
};

class TcpDial : public TcpPair {};

TEST_F(TcpDial, WaitingForAnAnswerCostsNothing) {
  net::SocketAddress at = AnyLoopback();
  const Fd full(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(::bind(full.get(), at.get(), at.length), 0);
  ASSERT_EQ(::listen(full.get(), 0), 0);
  at = net::LocalAddress(full.get());
  std::vector<Fd> before;  // they fill its queue
  before.reserve(4);
  for (int i = 0; i < 4; ++i) before.push_back(*net::StartConnect(at));
  pollfd last{before.back().get(), POLLOUT, 0};
  ASSERT_EQ(::poll(&last, 1, 0), 0) << "the queue is not full";
  Node node;
  auto link = node.backend->Connect(Candidates(Incarnation::Random(), {at.ToString()}), ThisHost());
  ASSERT_TRUE(link.ok()) << link.status();
  for (int i = 0; i < 10; ++i) node.Poll();
  EXPECT_TRUE(node.down.empty());
  EXPECT_TRUE(node.backend->Arm());
}

TEST_F(TcpDial, ACandidateThatAnswersNonsenseDoesNotSpoilTheNext) {
  Up(16);
  int connected = a->connected;
  for (const size_t bytes : {size_t{7}, size_t{40}}) {
    Babbler first(bytes);
    const std::string second = b->backend->Describe().listen_address;
    auto link =
        a->backend->Connect(Candidates(b->incarnation, {first.address(), second}), ThisHost());
    ASSERT_TRUE(link.ok()) << link.status();
    ++connected;
    EXPECT_TRUE(Drive({a.get(), b.get()}, [&] {
      first.Turn();
      return a->connected == connected || !a->down.empty();
    }));
    EXPECT_TRUE(first.done());
    ASSERT_TRUE(a->down.empty()) << bytes << " bytes: " << a->down[0].second;
    EXPECT_EQ((*link)->Describe().path.substr(0, second.size()), second);
  }
}

TEST_F(TcpDial, ACandidateOfAnotherAgentIsPassedOver) {
  Up(16);
  Node other;
  auto link = a->backend->Connect(
      Candidates(b->incarnation,
                 {other.backend->Describe().listen_address, b->backend->Describe().listen_address}),
      ThisHost());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE(
      Drive({a.get(), b.get(), &other}, [&] { return a->connected == 2 || !a->down.empty(); }));
  ASSERT_TRUE(a->down.empty()) << a->down[0].second;
  EXPECT_TRUE(other.accepted.empty());
}

TEST_F(TcpDial, WhereNobodyElseJoinsTheRestartIsTheCause) {
  Up(16);
  // Port 1 of loopback: nobody listens there.
  auto link = a->backend->Connect(
      Candidates(Incarnation::Random(), {b->backend->Describe().listen_address, "127.0.0.1:1"}),
      ThisHost());
  ASSERT_TRUE(link.ok()) << link.status();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !a->down.empty(); }));
  EXPECT_EQ(a->down[0].second.code(), absl::StatusCode::kFailedPrecondition) << a->down[0].second;
  EXPECT_NE(a->down[0].second.ToString().find("restarted"), std::string::npos);
}

// Joins the control stream and the data stream that comes first, and says that the link is whole,
// and a message behind it, at once. The others wait.
class HalfJoiner {
 public:
  HalfJoiner() : listener_(*net::Listen(AnyLoopback())) {}
  std::string address() const { return net::LocalAddress(listener_.get()).ToString(); }
  bool said() const { return joined_.size() >= 2; }
  // That data stream ends.
  void Drop() { joined_.back().Reset(); }
  void JoinTheOthersToo() { streams_ = SIZE_MAX; }

  void Turn() {
    Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (fd.valid()) waiting_.push_back(std::move(fd));
    std::array<std::byte, net::kPreambleBytes> preamble;
    for (Fd& waiting : waiting_) {
      // Left there for as long as nobody is to join.
      const int flags = joined_.size() >= streams_ ? MSG_PEEK : 0;
      const ssize_t got =
          ::recv(waiting.get(), preamble.data(), preamble.size(), flags | MSG_DONTWAIT);
      if (got <= 0) continue;
      if (joined_.size() >= streams_) break;
      net::Answer(waiting, {.code = net::WelcomeCode::kJoin, .link = {1}});
      joined_.push_back(std::move(waiting));
      if (joined_.size() == 2) SayReadyAndHello();
    }
    std::erase_if(waiting_, [](const Fd& gone) { return !gone.valid(); });
  }

 private:
  void SayReadyAndHello() {
    const std::string_view hello = "hello";
    std::array<std::byte, 2 * net::kControlHeadBytes + 5> bytes{};
    const std::span all(bytes);
    net::Encode(net::ControlHead{.bytes = 0, .kind = net::ControlKind::kReady},
                all.first<net::kControlHeadBytes>());
    net::Encode(net::ControlHead{.bytes = 5, .kind = net::ControlKind::kMessage},
                all.subspan<net::kControlHeadBytes, net::kControlHeadBytes>());
    std::ranges::copy(std::as_bytes(std::span(hello)), all.last(hello.size()).begin());
    EXPECT_EQ(::send(joined_.front().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  size_t streams_ = 2;  // with the control stream
  const Fd listener_;
  std::vector<Fd> waiting_;
  std::vector<Fd> joined_;
};

// As where the network has lost a packet of the one stream, and of the control stream's the one
// that brought `ready`: it comes again together with what was said after it.
TEST_F(TcpDial, WhatComesRightBehindReadyWaitsUntilTheLinkIsUp) {
  Node node(Streams(2));
  HalfJoiner peer;
  auto link =
      node.backend->Connect(Candidates(Incarnation::Random(), {peer.address()}), ThisHost());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE(Drive({&node}, [&] {
    peer.Turn();
    return !node.messages.empty() || !node.down.empty();
  }));
  ASSERT_TRUE(node.down.empty()) << node.down[0].second;
  EXPECT_EQ(node.connected, 1);
  EXPECT_EQ(node.messages, (std::vector<std::string>{"hello"}));
}

// One that came up first and is gone again does not take those with it that are still on their way.
TEST_F(TcpDial, ALateStreamHasAllOfConnectTimeout) {
  AgentOptions options = Streams(2);
  options.connect_timeout = std::chrono::seconds(10);
  Node node(options);
  HalfJoiner peer;
  auto link =
      node.backend->Connect(Candidates(Incarnation::Random(), {peer.address()}), ThisHost());
  ASSERT_TRUE(link.ok()) << link.status();
  const auto turn = [&] {
    peer.Turn();
    return !node.down.empty();
  };
  ASSERT_TRUE(Drive({&node}, [&] { return turn() || peer.said(); }));
  // It has heard of it, and waits a little for the other.
  EXPECT_FALSE(Drive({&node}, turn, std::chrono::milliseconds(50)));
  peer.Drop();
  EXPECT_FALSE(Drive({&node}, turn, std::chrono::milliseconds(500)));
  peer.JoinTheOthersToo();
  EXPECT_TRUE(Drive({&node}, [&] { return turn() || node.connected == 1; }));
  ASSERT_TRUE(node.down.empty()) << node.down[0].second;
}

int Option(int fd, int level, int name) {
  int value = 0;
  socklen_t length = sizeof(value);
  EXPECT_EQ(::getsockopt(fd, level, name, &value, &length), 0);
  return value;
}

TEST_F(TcpDial, EveryStreamNoticesADeadPath) {
  Up(16, Streams(3));
  int control = 0;
  int data = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::stoi(entry.path().filename().string());
    sockaddr_storage peer{};
    socklen_t length = sizeof(peer);
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &length) != 0) continue;
    if (peer.ss_family != AF_INET) continue;
    const int timeout_ms = Option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT);
    EXPECT_GT(timeout_ms, 0);
    if (timeout_ms == 2000) {
      ++control;  // the agent pings on it
      continue;
    }
    ++data;
    EXPECT_EQ(timeout_ms, 30'000);
    EXPECT_EQ(Option(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
    EXPECT_EQ(Option(fd, IPPROTO_TCP, TCP_KEEPIDLE), 30);
    EXPECT_EQ(Option(fd, IPPROTO_TCP, TCP_KEEPINTVL), 10);
    EXPECT_EQ(Option(fd, IPPROTO_TCP, TCP_KEEPCNT), 3);
  }
  // Both sides are here.
  EXPECT_EQ(control, 2);
  EXPECT_EQ(data, 6);
}

}  // namespace
}  // namespace kvxfer::tcp_test
