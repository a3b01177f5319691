// Agents that hand out their metadata over the port where tcp listens.
#include <gtest/gtest.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kvxfer/metadata.h"
#include "src/core/protocol/metadata.h"
#include "src/transport/handouts.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/address.h"
#include "src/transport/sockets/socket.h"
#include "tests/support/agents.h"
#include "tests/support/blocks.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

using absl::StatusCode;
using net::Fd;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr uint64_t kBytes = 64 * 1024;

AgentOptions Serving(const Flavour& flavour, std::string_view name) {
  AgentOptions options = OptionsFor(flavour, name);
  options.serve_metadata = true;
  return options;
}

absl::StatusOr<Node> ServingNode(std::string_view name, size_t bytes = kBytes) {
  return Node::Create(Serving(TcpFlavour(), name), TcpFlavour().memory, bytes);
}

absl::StatusOr<std::string> Fetch(const Node& node) {
  return FetchMetadata(node.agent->listen_address(), kAmple);
}

// Metadata of as many regions as make some 600 KB.
void Enlarge(Node& node) {
  for (int i = 0; i < 20'000; ++i) {
    ASSERT_OK(node.agent->RegisterMemory({.data = node.memory.bytes().data() + i, .bytes = 1},
                                         Access::kRemoteRead));
  }
}

TEST(AgentMetadataServed, IsWhatTheAgentSays) {
  ASSERT_OK_AND_ASSIGN(const Node node, ServingNode("a"));
  ASSERT_OK_AND_ASSIGN(const std::string got, Fetch(node));
  ASSERT_OK_AND_ASSIGN(const std::string said, node.agent->Metadata());
  EXPECT_EQ(got, said);
}

TEST(AgentMetadataServed, OnlyWhereItIsAskedFor) {
  ASSERT_OK_AND_ASSIGN(const Node node,
                       Node::Create(OptionsFor(TcpFlavour(), "a"), TcpFlavour().memory, kBytes));
  EXPECT_TRUE(Fails(Fetch(node), StatusCode::kFailedPrecondition,
                    {node.agent->listen_address().c_str(), "serve_metadata"}));
}

TEST(AgentMetadataServed, FollowsWhatIsRegistered) {
  ASSERT_OK_AND_ASSIGN(const Node node, ServingNode("a"));
  const auto regions = [&]() -> size_t {
    auto got = Fetch(node);
    EXPECT_OK(got);
    auto metadata = DecodeMetadata(got.ok() ? *got : "");
    EXPECT_OK(metadata);
    return metadata.ok() ? metadata->regions.size() : 0;
  };
  EXPECT_EQ(regions(), 1u);
  EXPECT_EQ(regions(), 1u);
  ASSERT_OK_AND_ASSIGN(const RegionId region,
                       node.agent->RegisterMemory(node.memory.span(), Access::kRemoteRead));
  EXPECT_EQ(regions(), 2u);
  ASSERT_OK(node.agent->DeregisterMemory(region));
  EXPECT_EQ(regions(), 1u);
}

TEST(AgentMetadataServed, IsEnoughForAPeer) {
  for (const std::string backend : {"tcp", "faulty:tcp"}) {
    Flavour flavour = TcpFlavour();
    flavour.backend = backend;
    const Shape shape{.block_bytes = 1000, .ids = 24};
    const uint64_t part = shape.memory_bytes();
    ASSERT_OK_AND_ASSIGN(Node target, Node::Create(Serving(flavour, "b"), flavour.memory, part));
    ASSERT_OK_AND_ASSIGN(Node source, Node::Create(OptionsFor(flavour, "a"), flavour.memory, part));
    Pattern(7).Fill(source.memory.bytes());
    ASSERT_OK_AND_ASSIGN(const std::string metadata, Fetch(target));
    ASSERT_OK_AND_ASSIGN(const std::string peer, source.agent->AddPeer(metadata));
    const BlockSet blocks(shape, source.memory.address(), target.memory.address());
    ASSERT_OK_AND_ASSIGN(const Transfer transfer,
                         blocks.Write(*source.agent, peer, Telling("there")));
    ASSERT_OK(transfer.Wait(kAmple));
    EXPECT_TRUE(AllArrived(shape, Side::kRemote, 7, target.memory.bytes()));
    EXPECT_OK(target.agent->WaitNotification(kAmple));
  }
}

TEST(AgentMetadataServed, AtEveryAddressOfTcp) {
  const Flavour flavour = TcpAddressesFlavour();
  ASSERT_OK_AND_ASSIGN(const Node node,
                       Node::Create(Serving(flavour, "a"), flavour.memory, kBytes));
  ASSERT_OK_AND_ASSIGN(const std::string said, node.agent->Metadata());
  ASSERT_OK_AND_ASSIGN(const AgentMetadata metadata, DecodeMetadata(said));
  ASSERT_EQ(metadata.backends.size(), 1u);
  ASSERT_OK_AND_ASSIGN(const net::PeerAddress address,
                       net::DecodeAddress(metadata.backends[0].address));
  ASSERT_FALSE(address.data.empty());
  for (const net::DataAddress& data : address.data) {
    ASSERT_OK_AND_ASSIGN(const std::string got, FetchMetadata(data.at.ToString(), kAmple));
    EXPECT_EQ(got, said);
  }
}

// No thread of the application is in the agent, or one that waits for something else.
TEST(AgentMetadataServed, Promptly) {
  ASSERT_OK_AND_ASSIGN(const Node node, ServingNode("a"));
  for (const bool waits : {false, true}) {
    std::atomic<bool> stop{false};
    std::thread waiter([&] {
      while (waits && !stop) (void)node.agent->WaitNotification(milliseconds(50));
    });
    std::vector<double> took;
    for (int i = 0; i < 51; ++i) {
      const Time start = Now();
      EXPECT_OK(Fetch(node));
      took.push_back(Milliseconds(Now() - start));
      std::this_thread::sleep_for(milliseconds(2));
    }
    stop = true;
    waiter.join();
    std::ranges::sort(took);
    EXPECT_LT(took[took.size() / 2], Milliseconds(Bound(milliseconds(5))));
  }
}

TEST(AgentMetadataServed, ToThreeHundredAtOnce) {
  ASSERT_OK_AND_ASSIGN(Node node, ServingNode("a"));
  ASSERT_NO_FATAL_FAILURE(Enlarge(node));
  ASSERT_OK_AND_ASSIGN(const std::string said, node.agent->Metadata());
  std::vector<absl::StatusOr<std::string>> got(static_cast<size_t>(Scaled(300)));
  std::atomic<bool> start{false};
  std::vector<std::thread> clients;
  clients.reserve(got.size());
  for (auto& one : got) {
    clients.emplace_back([&] {
      start.wait(false);
      one = Fetch(node);
    });
  }
  start = true;
  start.notify_all();
  for (std::thread& client : clients) client.join();
  for (const auto& one : got) {
    ASSERT_OK(one);
    EXPECT_TRUE(*one == said);
  }
}

// Asks and reads nothing, with next to no room for what comes.
Fd SlowReader(const std::string& address) {
  const auto to = net::Resolve(address, 0, net::Names::kNumericOnly);
  Fd fd(::socket(to->front().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int little = 2048;
  const int segment = 536;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &little, sizeof(little));
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_MAXSEG, &segment, sizeof(segment));
  EXPECT_EQ(::connect(fd.get(), to->front().get(), to->front().length), 0);
  std::array<std::byte, net::kPreambleBytes> bytes;
  net::Encode(net::Preamble{.rails = 1, .service = net::Service::kMetadata}, bytes);
  EXPECT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), ssize_t{48});
  return fd;
}

// True when the other side has closed it, whatever was left to read.
bool Closed(const Fd& fd) {
  tcp_info info{};
  socklen_t length = sizeof(info);
  if (::getsockopt(fd.get(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return true;
  return info.tcpi_state != TCP_ESTABLISHED;
}

TEST(AgentMetadataServed, SlowReadersHoldUpNeitherOthersNorTransfers) {
  ASSERT_OK_AND_ASSIGN(Node target, ServingNode("b", 1 << 20));
  ASSERT_OK_AND_ASSIGN(Node source,
                       Node::Create(OptionsFor(TcpFlavour(), "a"), TcpFlavour().memory, 1 << 20));
  ASSERT_NO_FATAL_FAILURE(Enlarge(target));
  std::vector<Fd> slow;
  for (size_t i = 0; i < net::Handouts::kMax - 8; ++i) {
    slow.push_back(SlowReader(target.agent->listen_address()));
  }
  ASSERT_OK_AND_ASSIGN(const std::string metadata, Fetch(target));
  ASSERT_OK(source.agent->AddPeer(metadata));
  // A transfer that lasts, and others who fetch meanwhile.
  std::atomic<int> written{0};
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    const Shape shape{.block_bytes = 64 * 1024, .ids = 8};
    const BlockSet blocks(shape, source.memory.address(), target.memory.address());
    while (!stop) {
      const auto transfer = blocks.Write(*source.agent, "b", Unhurried());
      EXPECT_OK(transfer);
      if (!transfer.ok()) return;
      EXPECT_OK(transfer->Wait(kAmple));
      ++written;
    }
  });
  for (int i = 0; i < 20; ++i) {
    const int before = written;
    const Time start = Now();
    EXPECT_OK(Fetch(target));
    EXPECT_LT(Now() - start, Bound(seconds(1)));
    EXPECT_TRUE(Eventually(Bound(seconds(1)), [&] { return written > before; }));
  }
  stop = true;
  writer.join();
  EXPECT_EQ(std::ranges::count_if(slow, Closed), 0) << "they were not slow";
}

// Their number is bounded: those who come next are told later, when the first had their time.
TEST(AgentMetadataServed, MoreSlowReadersThanThereIsRoomFor) {
  ASSERT_OK_AND_ASSIGN(Node node, ServingNode("a"));
  ASSERT_NO_FATAL_FAILURE(Enlarge(node));
  std::vector<Fd> slow;
  for (size_t i = 0; i < net::Handouts::kMax + 20; ++i) {
    slow.push_back(SlowReader(node.agent->listen_address()));
  }
  EXPECT_TRUE(Eventually(kAmple, [&] { return std::ranges::count_if(slow, Closed) >= 20; }));
  const Time start = Now();
  EXPECT_OK(Fetch(node));
  EXPECT_LT(Now() - start, net::Handouts::kFairTime + Bound(seconds(2)));
}

TEST(AgentMetadataServed, WhileDraining) {
  ASSERT_OK_AND_ASSIGN(const Node node, ServingNode("a"));
  ASSERT_OK(node.agent->Drain(kAmple));
  EXPECT_OK(Fetch(node));
}

// Each asks until the agent has gone, and hears of nothing else.
TEST(AgentMetadataServed, ByAnAgentThatCloses) {
  for (int round = 0; round < Scaled(20); ++round) {
    ASSERT_OK_AND_ASSIGN(Node node, ServingNode("a"));
    const std::string address = node.agent->listen_address();
    std::vector<absl::Status> ends(8);
    std::atomic<size_t> begun{0};
    std::vector<std::thread> clients;
    clients.reserve(ends.size());
    for (absl::Status& end : ends) {
      clients.emplace_back([&] {
        while (end.ok()) {
          end = FetchMetadata(address, kAmple).status();
          ++begun;
        }
      });
    }
    EXPECT_TRUE(Eventually(kAmple, [&] { return begun > 20; }));
    const Time start = Now();
    node.agent.reset();
    EXPECT_LT(Now() - start, Bound(seconds(1)));
    for (std::thread& client : clients) client.join();
    for (const absl::Status& end : ends) EXPECT_TRUE(Fails(end, StatusCode::kUnavailable));
  }
}

TEST(AgentMetadataServed, ToWhoSaysMoreOrHalfCloses) {
  ASSERT_OK_AND_ASSIGN(const Node node, ServingNode("a"));
  const Fd half = SlowReader(node.agent->listen_address());
  ::shutdown(half.get(), SHUT_WR);
  const Fd more = SlowReader(node.agent->listen_address());
  const std::string garbage(100'000, 'g');
  (void)::send(more.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  std::array<std::byte, net::kWelcomeBytes> welcome{};
  ASSERT_EQ(::recv(half.get(), welcome.data(), welcome.size(), MSG_WAITALL),
            ssize_t{net::kWelcomeBytes});
  EXPECT_OK(net::DecodeWelcome(welcome));
  EXPECT_OK(Fetch(node));
}

}  // namespace
}  // namespace kvxfer::testing
