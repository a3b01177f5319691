// How links come up and go down, and what a target refuses.
#include <netinet/tcp.h>
#include <sys/resource.h>

#include "src/backends/tcp/frames.h"
#include "src/transport/sockets/socket.h"
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

class TcpLink : public TcpPair {
 protected:
  // Posts one write or read and expects the target to refuse it with `text`, and the initiator to
  // hear of it.
  void ExpectRefused(OpKind kind, OpRun run, std::string_view text) {
    const std::vector<OpRun> runs{RunAt(0, 0, 8), run};
    ASSERT_TRUE(PostAll({{.kind = kind, .id = 1, .transfer = 1, .blocks = Blocks(runs)}}));
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !a->down.empty() && !b->down.empty(); }));
    EXPECT_EQ(b->down[0].second.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_NE(b->down[0].second.ToString().find(text), std::string::npos) << b->down[0].second;
    EXPECT_NE(a->down[0].second.ToString().find(text), std::string::npos) << a->down[0].second;
    EXPECT_EQ(std::count(sink.begin(), sink.end(), std::byte{0}),
              static_cast<ptrdiff_t>(sink.size()));
  }
};

TEST_F(TcpLink, AnUnknownRkeyIsRefusedAndNothingOfTheFrameLands) {
  Up(4096);
  const std::unique_ptr<RemoteKey> other = Key(99);
  OpRun run = RunAt(8, 8, 8);
  run.key = other.get();
  ExpectRefused(OpKind::kWrite, run, "no region has that rkey");
}

TEST_F(TcpLink, AWriteBeyondTheRegionIsRefused) {
  Up(4096);
  ExpectRefused(OpKind::kWrite, RunAt(0, 4090, 7), "outside of the region");
}

TEST_F(TcpLink, AWriteBeforeTheRegionIsRefused) {
  Up(4096);
  OpRun run = RunAt(0, 0, 8);
  run.remote -= 1;
  ExpectRefused(OpKind::kWrite, run, "outside of the region");
}

TEST_F(TcpLink, AnAddressThatOverflowsIsRefused) {
  Up(4096);
  OpRun run = RunAt(0, 0, 16);
  run.remote = UINT64_MAX - 7;
  ExpectRefused(OpKind::kWrite, run, "outside of the region");
}

TEST_F(TcpLink, AReadBeyondTheRegionIsRefused) {
  Up(4096);
  ExpectRefused(OpKind::kRead, RunAt(0, 4095, 2), "outside of the region");
}

TEST_F(TcpLink, AWriteToARegionForReadingIsRefused) {
  Up(4096, {}, Access::kRemoteRead);
  ExpectRefused(OpKind::kWrite, RunAt(8, 8, 8), "does not allow remote writes");
}

TEST_F(TcpLink, AReadOfARegionForWritingIsRefused) {
  Up(4096, {}, Access::kRemoteWrite);
  ExpectRefused(OpKind::kRead, RunAt(8, 8, 8), "does not allow remote reads");
}

TEST_F(TcpLink, WithoutAuthorizeMessagesPassAndNoByteLands) {
  Up(4096, {}, Access::kReadWrite, /*authorize=*/false);
  const std::vector<OpRun> runs{RunAt(0, 0, 4096)};
  ASSERT_TRUE(PostAll(
      {{.has_immediate = true, .immediate = 4, .id = 1, .transfer = 1, .blocks = Blocks(runs)},
       {.kind = OpKind::kRead, .rail = 1, .id = 2, .transfer = 1, .blocks = Blocks(runs)}}));
  ASSERT_TRUE(endpoint->Send(std::as_bytes(std::span("hello"))));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->messages.size() == 1; }));
  for (int i = 0; i < 100; ++i) {
    a->Poll();
    b->Poll();
  }
  EXPECT_TRUE(b->immediates.empty());
  EXPECT_FALSE(a->completions.contains(2));
  EXPECT_EQ(std::count(sink.begin(), sink.end(), std::byte{0}), 4096);
  EXPECT_TRUE(b->backend->Arm());  // and costs nothing meanwhile
  b->accepted[0]->Authorize();
  EXPECT_TRUE(Drive({a.get(), b.get()},
                    [&] { return b->immediates.size() == 1 && a->completions.contains(2); }));
}

TEST(TcpSocket, OnOneHostThePlainestCongestionControlIsTaken) {
  const auto at = net::Resolve("127.0.0.1:0", 0, net::Names::kNumericOnly);
  const auto congestion = [](int fd) {
    std::array<char, 16> name{};
    socklen_t size = name.size();
    EXPECT_EQ(::getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name.data(), &size), 0);
    return std::string(name.data());
  };
  const auto listener = net::Listen(at->front());
  ASSERT_TRUE(listener.ok());
  const auto fd = net::StartConnect(net::LocalAddress(listener->get()));
  ASSERT_TRUE(fd.ok());
  // Expect it at both ends from the first packet on, for what once began to pace paces for life.
  EXPECT_EQ(congestion(fd->get()), "reno");
  pollfd come{.fd = listener->get(), .events = POLLIN, .revents = 0};
  ASSERT_EQ(::poll(&come, 1, 10'000), 1);
  const net::Fd accepted(::accept4(listener->get(), nullptr, nullptr, SOCK_CLOEXEC));
  ASSERT_TRUE(accepted.valid());
  EXPECT_EQ(congestion(accepted.get()), "reno");
  // Expect a socket without a peer, of which nothing is known, to be left as it is.
  const net::Fd alone(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const std::string before = congestion(alone.get());
  net::TuneIfLocal(alone.get());
  EXPECT_EQ(congestion(alone.get()), before);
}

TEST(TcpSocket, AddressesOfThisHostAreKnown) {
  const auto at = [](const char* text) {
    return net::Resolve(text, 0, net::Names::kNumericOnly)->front();
  };
  EXPECT_TRUE(net::IsOfThisHost(at("127.0.0.2:5")));
  EXPECT_TRUE(net::IsOfThisHost(at("[::1]:5")));
  EXPECT_FALSE(net::IsOfThisHost(at("192.0.2.1:5")));
  for (net::SocketAddress own : net::InterfaceAddresses()) {
    own.set_port(5);
    EXPECT_TRUE(net::IsOfThisHost(own)) << own.ToString();
  }
}

TEST_F(TcpLink, TheLinkNamesItsPath) {
  Up(16, Streams(4));
  EXPECT_EQ(Rails(), 4u);
  EXPECT_EQ(b->accepted[0]->Describe().rails.size(), 4u);
  EXPECT_NE(endpoint->Describe().path.find(", 4 streams"), std::string::npos)
      << endpoint->Describe().path;
}

TEST_F(TcpLink, OverIPv6) {
  AgentOptions options;
  options.listen = "[::1]:0";
  Up(1 << 20, options);
  const std::vector<OpRun> runs{RunAt(0, 0, 1 << 20)};
  ASSERT_TRUE(PostAll({{.has_immediate = true, .id = 1, .transfer = 1, .blocks = Blocks(runs)}}));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == 1; }));
  EXPECT_TRUE(sink == source);
  EXPECT_EQ(endpoint->Describe().path.substr(0, 6), "[::1]:");
}

TEST_F(TcpLink, APeerThatDiesTakesTheLinkDownOnceWithEveryOp) {
  Up(1 << 20);
  const std::vector<OpRun> runs{RunAt(0, 0, 1 << 20)};
  size_t posted = 0;
  for (uint64_t id = 1; id <= 40; ++id) {
    const Op op{.kind = id % 2 ? OpKind::kWrite : OpKind::kRead,
                .rail = static_cast<uint32_t>(id % 4 / 2),
                .id = id,
                .transfer = id,
                .blocks = Blocks(runs)};
    posted += endpoint->Post(op) ? 1 : 0;
    a->Poll();
  }
  b.reset();
  ASSERT_TRUE(Drive({a.get()}, [&] { return a->down.size() == 1; }));
  EXPECT_EQ(a->completions.size(), posted);
  EXPECT_EQ(a->down[0].second.code(), absl::StatusCode::kUnavailable) << a->down[0].second;
  // Nothing is accepted after the end.
  const Op late{.id = 99, .transfer = 1};
  EXPECT_FALSE(endpoint->Post(late));
  EXPECT_FALSE(endpoint->Send({}));
  endpoint->Fence({.transfer = 1});
  endpoint->Shutdown(absl::CancelledError("late"));
  for (int i = 0; i < 10; ++i) a->Poll();
  EXPECT_FALSE(a->completions.contains(99));
  EXPECT_EQ(a->down.size(), 1u);
  EXPECT_TRUE(a->fenced.empty());
}

TEST_F(TcpLink, TheLastMessageAndTheReasonArriveBeforeDown) {
  Up(1 << 20);
  // Unread data at the target makes its close a reset.
  const std::vector<OpRun> runs{RunAt(0, 0, 1 << 20)};
  ASSERT_TRUE(PostAll({{.id = 1, .transfer = 1, .blocks = Blocks(runs)}}));
  for (int i = 0; i < 10; ++i) a->Poll();
  const std::string refuse(200 * 1024, 'r');
  ASSERT_TRUE(b->accepted[0]->Send(std::as_bytes(std::span(refuse))));
  b->accepted[0]->Shutdown(absl::CancelledError("not now"));
  b->Poll();
  b->accepted.clear();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !a->down.empty(); }));
  EXPECT_EQ(a->messages, std::vector<std::string>{refuse});
  EXPECT_NE(a->down[0].second.ToString().find("not now"), std::string::npos) << a->down[0].second;
}

TEST_F(TcpLink, NobodyListensThere) {
  Up(16);
  const std::string address = b->backend->Describe().address;
  endpoint.reset();
  b.reset();
  a->down.clear();
  auto late = a->backend->Connect(address, ThisHost());
  ASSERT_TRUE(late.ok());
  ASSERT_TRUE(Drive({a.get()}, [&] { return !a->down.empty(); }));
  EXPECT_NE(a->down[0].second.ToString().find("Connection refused"), std::string::npos)
      << a->down[0].second;
}

TEST_F(TcpLink, AnotherIncarnationIsNotTakenForTheOneMeant) {
  Up(16);
  std::string address = b->backend->Describe().address;
  const std::string other = Incarnation::Random().ToString();
  address.replace(address.find(b->incarnation.ToString()), other.size(), other);
  auto link = a->backend->Connect(address, ThisHost());
  ASSERT_TRUE(link.ok());
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !a->down.empty(); }));
  EXPECT_EQ(a->down[0].second.code(), absl::StatusCode::kFailedPrecondition) << a->down[0].second;
  EXPECT_EQ(b->accepted.size(), 1u);
}

TEST_F(TcpLink, ASilentListenerIsGivenUpAfterConnectTimeout) {
  absl::StatusOr<std::vector<net::SocketAddress>> at =
      net::Resolve("127.0.0.1:0", 0, net::Names::kNumericOnly);
  absl::StatusOr<net::Fd> mute = net::Listen(at->front());
  ASSERT_TRUE(mute.ok());
  AgentOptions options;
  options.connect_timeout = std::chrono::milliseconds(100);
  Node node(options);
  auto link = node.backend->Connect(
      "1;" + Incarnation::Random().ToString() + ";" + net::LocalAddress(mute->get()).ToString(),
      ThisHost());
  ASSERT_TRUE(link.ok()) << link.status();
  const auto start = std::chrono::steady_clock::now();
  while (node.down.empty() && std::chrono::steady_clock::now() - start < std::chrono::seconds(5)) {
    if (node.backend->Arm()) {
      pollfd fd{node.backend->Describe().wait_fd, POLLIN, 0};
      ::poll(&fd, 1, 2000);  // the timer wakes it
    }
    node.Poll();
  }
  ASSERT_EQ(node.down.size(), 1u);
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, std::chrono::milliseconds(95));
  EXPECT_LT(took, std::chrono::milliseconds(1000));
}

TEST_F(TcpLink, TheNextCandidateIsTriedWhenTheFirstRefuses) {
  Up(16);
  std::string address = b->backend->Describe().address;
  // Port 1 of loopback: nobody listens there.
  address.insert(address.rfind(';'), ";127.0.0.1:1");
  auto link = a->backend->Connect(address, ThisHost());
  ASSERT_TRUE(link.ok()) << link.status();
  EXPECT_TRUE(
      Drive({a.get(), b.get()}, [&] { return a->connected == 2 && b->accepted.size() == 2; }));
}

TEST_F(TcpLink, ShutdownWhileConnectingEndsIt) {
  Up(16);
  auto link = a->backend->Connect(b->backend->Describe().address, ThisHost());
  ASSERT_TRUE(link.ok());
  (*link)->Shutdown(absl::DeadlineExceededError("gave up"));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !a->down.empty(); }));
  EXPECT_EQ(a->down[0].second.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(a->connected, 1);
}

TEST_F(TcpLink, SixteenPeersWriteAtOnce) {
  constexpr size_t kPeers = 16;
  constexpr size_t kBytes = 1 << 20;
  Node target(Streams(2));
  std::vector<std::byte> memory(kPeers * kBytes);
  auto region = target.Register(memory.data(), memory.size(), 5, Access::kRemoteWrite);
  struct Peer {
    std::unique_ptr<Node> node;
    std::unique_ptr<Endpoint> endpoint;
    std::unique_ptr<RemoteKey> key;
    std::vector<std::byte> data;
    OpRun run;
  };
  std::vector<Peer> peers(kPeers);
  std::vector<Node*> nodes{&target};
  for (size_t i = 0; i < kPeers; ++i) {
    peers[i].node = std::make_unique<Node>(Streams(2));
    nodes.push_back(peers[i].node.get());
    auto link = peers[i].node->backend->Connect(target.backend->Describe().address, ThisHost());
    ASSERT_TRUE(link.ok());
    peers[i].endpoint = *std::move(link);
  }
  ASSERT_TRUE(Drive(nodes, [&] { return target.accepted.size() == kPeers; }));
  for (const auto& accepted : target.accepted) accepted->Authorize();
  for (size_t i = 0; i < kPeers; ++i) {
    Peer& peer = peers[i];
    peer.data = Pattern(kBytes, i);
    peer.key = *peer.endpoint->Import({.rkey = 5}, "");
    peer.run = {.local = reinterpret_cast<uint64_t>(peer.data.data()),
                .remote = reinterpret_cast<uint64_t>(&memory[i * kBytes]),
                .bytes = kBytes,
                .key = peer.key.get()};
    const Op op{.has_immediate = true,
                .immediate = static_cast<uint32_t>(i),
                .id = 1,
                .transfer = 1,
                .blocks = Blocks({peer.run})};
    ASSERT_TRUE(Drive(nodes, [&] { return peer.endpoint->Post(op); }));
  }
  ASSERT_TRUE(Drive(nodes, [&] { return target.immediates.size() == kPeers; }));
  for (size_t i = 0; i < kPeers; ++i) {
    EXPECT_EQ(std::memcmp(&memory[i * kBytes], peers[i].data.data(), kBytes), 0) << i;
  }
}

TEST_F(TcpLink, TheBackendMayGoBeforeWhatItMade) {
  Up(4096);
  a->backend.reset();
  const Op op{.id = 1, .transfer = 1};
  EXPECT_FALSE(endpoint->Post(op));
  EXPECT_FALSE(endpoint->Send({}));
  endpoint->Shutdown(absl::CancelledError("x"));
  endpoint.reset();
  source_registration.reset();
}

}  // namespace
}  // namespace kvxfer::tcp_test
