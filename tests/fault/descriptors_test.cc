// A process that is out of descriptors: what needs one fails as such, by name and with the remedy,
// and no peer is taken for lost.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "kvxfer/memory.h"
#include "src/core/base/own_fd.h"
#include "src/core/protocol/metadata.h"
#include "src/transport/hello.h"
#include "src/transport/sockets/address.h"
#include "tests/support/agents.h"
#include "tests/support/child_process.h"
#include "tests/support/open_files.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;

class Descriptors : public ::testing::TestWithParam<const char*> {
 protected:
  AgentOptions Named(std::string name) const {
    return {.name = std::move(name), .backends = {GetParam()}};
  }
};

TEST_P(Descriptors, ThatRunOutAtAConnectionAreNoLossOfThePeer) {
  ASSERT_OK_AND_ASSIGN(const auto a, Agent::Create(Named("a")));
  ASSERT_OK_AND_ASSIGN(const auto b, Agent::Create(Named("b")));
  ASSERT_OK_AND_ASSIGN(const std::string metadata, b->Metadata());
  {
    NoDescriptors none;
    ASSERT_OK(a->AddPeer(metadata));  // needs none
    none.TakeFreed();
    ASSERT_OK_AND_ASSIGN(const Transfer lost, a->Notify("b", "x", Unhurried()));
    const absl::Status why = lost.Wait(kAmple);
    EXPECT_TRUE(
        Fails(why, kExhausted, {"peer b", "Too many open files", "ulimit -n", "LimitNOFILE"}));
    EXPECT_EQ(lost.Poll(), TransferState::kFailed);
  }
  // With descriptors it goes on as if nothing had been.
  EXPECT_TRUE(Eventually(kAmple, [&] {
    const auto again = a->Notify("b", "y", Unhurried());
    return again.ok() && again->Wait(kAmple).ok();
  }));
  const auto event = a->PollPeerEvent();
  ASSERT_TRUE(event.has_value());
  EXPECT_EQ(event->kind, PeerEventKind::kJoined);
}

TEST_P(Descriptors, ThatRunOutAreNamedByCreate) {
  const NoDescriptors none;
  EXPECT_TRUE(Fails(Agent::Create(Named("a")), kExhausted, {"Too many open files", "ulimit -n"}));
}

INSTANTIATE_TEST_SUITE_P(Backends, Descriptors, ::testing::Values("tcp", "shm", "faulty:tcp"),
                         [](const auto& backend) {
                           std::string name = backend.param;
                           for (char& c : name) c = c == ':' ? '_' : c;
                           return name;
                         });

// Answers each byte with the number of descriptors that it could open.
KVXFER_CHILD(AgentWithFewDescriptors) {
  const int socket = std::atoi(arguments.back().c_str());
  const DescriptorLimit few(256);
  const auto agent = Agent::Create({.name = "few", .backends = {"tcp"}});
  CHILD_EXPECT(agent.ok());
  const auto metadata = (*agent)->Metadata();
  CHILD_EXPECT(metadata.ok());
  CHILD_EXPECT(write(socket, metadata->data(), metadata->size()) > 0);
  for (char byte = 0; read(socket, &byte, 1) > 0;) {
    std::vector<OwnFd> all;
    do all.push_back(OwnFd::Open([&] { return dup(socket); }));
    while (all.back().valid());
    const std::string open = std::to_string(all.size() - 1);
    all.clear();
    CHILD_EXPECT(write(socket, open.data(), open.size()) > 0);
  }
  return 0;
}

class FewDescriptors : public ::testing::Test {
 protected:
  void SetUp() override {
    std::array<int, 2> ends{};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    child_socket_ = OwnFd(ends[0]);
    const OwnFd theirs(ends[1]);
    ASSERT_OK_AND_ASSIGN(child_, ChildProcess::Start("AgentWithFewDescriptors", {}, theirs.get()));
    bytes_ = Hear();
    ASSERT_OK_AND_ASSIGN(metadata_, DecodeMetadata(bytes_));
    ASSERT_OK_AND_ASSIGN(const auto at, net::DecodeAddress(metadata_.backends.front().address));
    at_ = at.candidates.front();
  }

  std::string Hear() const {
    std::string text(64 * 1024, '\0');
    const ssize_t n = read(child_socket_.get(), text.data(), text.size());
    text.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return text;
  }
  // How many more the agent's process could open.
  size_t Spare() const {
    EXPECT_EQ(write(child_socket_.get(), "?", 1), 1);
    return static_cast<size_t>(std::atoll(Hear().c_str()));
  }
  // A connection to the agent; blocking.
  OwnFd Dial() const {
    OwnFd fd(::socket(at_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::connect(fd.get(), at_.get(), at_.length), 0);
    return fd;
  }
  // A link with as many data streams as may be, which never says hello.
  void Link(std::vector<OwnFd>& all) const {
    net::Preamble preamble{
        .rails = net::kMaxRails, .target = metadata_.incarnation, .service = kTcp};
    std::array<std::byte, net::kPreambleBytes> said;
    std::array<std::byte, net::kWelcomeBytes> heard;
    net::Encode(preamble, said);
    OwnFd& control = all.emplace_back(Dial());
    if (::send(control.get(), said.data(), said.size(), MSG_NOSIGNAL) < 0) return;
    if (::recv(control.get(), heard.data(), heard.size(), MSG_WAITALL) <= 0) return;
    ASSERT_OK_AND_ASSIGN(const net::Welcome welcome, net::DecodeWelcome(heard));
    preamble.role = net::Role::kData;
    preamble.link = welcome.link;
    for (uint8_t rail = 0; rail < net::kMaxRails; ++rail) {
      preamble.rail = rail;
      net::Encode(preamble, said);
      const OwnFd& stream = all.emplace_back(Dial());
      (void)::send(stream.get(), said.data(), said.size(), MSG_NOSIGNAL);
    }
  }

  static constexpr net::Service kTcp{0};
  OwnFd child_socket_;
  ChildProcess child_;
  std::string bytes_;
  AgentMetadata metadata_;
  net::SocketAddress at_;
};

// Expect that they get a part of the descriptors and no more, whether they say nothing at all or
// open links, and that a peer gets through beside them.
TEST_F(FewDescriptors, AreNotForStrangers) {
  const size_t spare = Spare();
  ASSERT_GT(spare, 150u);
  std::vector<OwnFd> strangers;
  for (int i = 0; i < 20; ++i) Link(strangers);
  for (int i = 0; i < 200; ++i) strangers.push_back(Dial());
  // A quarter of 256, and what the process opens meanwhile for itself.
  EXPECT_GT(Spare() + 64 + 16, spare);
  ASSERT_OK_AND_ASSIGN(const auto agent, Agent::Create({.name = "peer", .backends = {"tcp"}}));
  ASSERT_OK(agent->AddPeer(bytes_));
  ASSERT_OK_AND_ASSIGN(const Transfer word, agent->Notify("few", "x", Unhurried()));
  EXPECT_OK(word.Wait(kAmple));
  for (int i = 0; i < 10; ++i) Link(strangers);
  ASSERT_OK_AND_ASSIGN(const Transfer more, agent->Notify("few", "x", Unhurried()));
  EXPECT_OK(more.Wait(kAmple));
  EXPECT_GT(Spare() + 64 + 16 + 4, spare);
  EXPECT_EQ(agent->PollPeerEvent()->kind, PeerEventKind::kJoined);
  EXPECT_FALSE(agent->PollPeerEvent().has_value());
}

TEST(DescriptorsOf, MemoryAreNamed) {
  const NoDescriptors none;
  EXPECT_TRUE(Fails(HostBuffer::Allocate(4096), kExhausted, {"Too many open files", "ulimit -n"}));
}

}  // namespace
}  // namespace kvxfer::testing
