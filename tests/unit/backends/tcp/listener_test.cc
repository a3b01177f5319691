// What strangers, broken peers and missing descriptors do to a listener: nothing to others.
#include "src/transport/listener.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <optional>

#include "src/core/base/descriptor_share.h"
#include "tests/support/open_files.h"
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

class TcpListener : public TcpStranger {
 protected:
  // True when b closes the connection within `timeout`.
  bool Closed(const Fd& fd, std::chrono::milliseconds timeout = std::chrono::seconds(5)) {
    char byte;
    return Drive(
        {b.get()},
        [&] {
          const ssize_t n = ::recv(fd.get(), &byte, 1, MSG_DONTWAIT);
          return n == 0 || (n < 0 && errno != EAGAIN);
        },
        timeout);
  }

  void ExpectTheLinkWorks() {
    std::fill(sink.begin(), sink.end(), std::byte{0});
    b->immediates.clear();
    a->completions.clear();
    const std::vector<OpRun> runs{RunAt(0, 0, source.size())};
    ASSERT_TRUE(PostAll({{.has_immediate = true, .id = 1, .transfer = 1, .blocks = Blocks(runs)}}));
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == 1; }));
    EXPECT_TRUE(sink == source);
    EXPECT_TRUE(b->down.empty());
  }
};

TEST_F(TcpListener, RandomBytesAreClosedAndHurtNobody) {
  Up(4096);
  std::mt19937 random(1);
  for (int i = 0; i < 50; ++i) {
    const Fd fd = Stranger();
    std::string garbage(1 + random() % 4096, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    if (i % 2) garbage.replace(0, std::min<size_t>(4, garbage.size()), "KVXP");
    (void)::send(fd.get(), garbage.data(), garbage.size(), MSG_NOSIGNAL);
    b->Poll();
    if (garbage.size() >= tcp::kPreambleBytes) {
      EXPECT_TRUE(Closed(fd)) << i;
    }
  }
  ExpectTheLinkWorks();
  EXPECT_EQ(b->accepted.size(), 1u);
}

TEST_F(TcpListener, ASilentStrangerIsClosedAfterAWhile) {
  constexpr auto kPatience =
      std::chrono::duration_cast<std::chrono::milliseconds>(net::Listener::kPreambleTimeout);
  Up(4096);
  const Fd fd = Stranger();
  const auto start = std::chrono::steady_clock::now();
  b->Poll();
  EXPECT_TRUE(Drive({b.get()}, [&] { return b->backend->Arm(); }));
  EXPECT_FALSE(Closed(fd, kPatience - std::chrono::milliseconds(500)));
  EXPECT_TRUE(Closed(fd));
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience + std::chrono::seconds(2));
  ExpectTheLinkWorks();
}

TEST_F(TcpListener, StrangersAreBounded) {
  Up(4096);
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  if (limit.rlim_cur < 2000) GTEST_SKIP() << "needs 2000 descriptors";
  std::vector<Fd> strangers;
  for (int i = 0; i < 600; ++i) {
    strangers.push_back(Stranger());
    b->Poll();
  }
  // The oldest had to go, and the newest may stay.
  EXPECT_TRUE(Closed(strangers.front(), std::chrono::milliseconds(500)));
  char byte;
  EXPECT_EQ(::recv(strangers.back().get(), &byte, 1, MSG_DONTWAIT), -1);
  ExpectTheLinkWorks();
}

TEST_F(TcpListener, ALinkWithoutDataStreamsIsClosedAfterConnectTimeoutAndNeverReported) {
  Up(4096);
  const Fd control = Stranger();
  Say(control, {.rails = 2, .target = b->incarnation});
  const tcp::Welcome welcome = Hear(control);
  EXPECT_EQ(welcome.code, tcp::WelcomeCode::kJoin);
  EXPECT_TRUE(Closed(control));
  // And it is too late to join it.
  const Fd rail = Stranger();
  Say(rail, {.role = tcp::Role::kData, .rails = 2, .target = b->incarnation, .link = welcome.link});
  EXPECT_TRUE(Closed(rail));
  EXPECT_EQ(b->accepted.size(), 1u);
  EXPECT_TRUE(b->down.empty());
}

TEST_F(TcpListener, ADataStreamNeedsTheIdOfItsLinkAndAFreeRail) {
  Up(4096);
  const Fd control = Stranger();
  Say(control, {.rails = 2, .target = b->incarnation});
  tcp::Welcome welcome = Hear(control);
  const tcp::Preamble good{
      .role = tcp::Role::kData, .rails = 2, .target = b->incarnation, .link = welcome.link};
  tcp::Preamble bad = good;
  bad.link[3] ^= 1;
  const Fd guess = Stranger();
  Say(guess, bad);
  EXPECT_TRUE(Closed(guess, std::chrono::milliseconds(500)));
  const Fd first = Stranger();
  Say(first, good);
  const Fd twice = Stranger();
  Say(twice, good);
  EXPECT_TRUE(Closed(twice, std::chrono::milliseconds(500)));
  tcp::Preamble other = good;
  other.rail = 1;
  const Fd second = Stranger();
  Say(second, other);
  EXPECT_EQ(Hear(second).link, welcome.link);
  EXPECT_EQ(b->accepted.size(), 2u);
}

TEST_F(TcpListener, AnotherVersionIsToldSo) {
  Up(4096);
  const Fd control = Stranger();
  Say(control, {.version = 9, .rails = 1, .target = b->incarnation});
  EXPECT_EQ(Hear(control).code, tcp::WelcomeCode::kWrongVersion);
  EXPECT_TRUE(Closed(control));
}

// A peer that speaks the protocol up to kUp and then breaks it.
// Where it closes a data stream first, its rail ends and not the link.
TEST_F(TcpListener, DamageOnAStreamEndsItsRailOrItsLinkAndLandsNothing) {
  Up(4096);
  std::mt19937 random(7);
  for (int i = 0; i < 40; ++i) {
    SCOPED_TRACE(i);
    b->down.clear();
    const size_t before = b->accepted.size();
    Fd control = Stranger();
    Say(control, {.rails = 1, .target = b->incarnation});
    const tcp::Welcome welcome = Hear(control);
    const Fd rail = Stranger();
    Say(rail,
        {.role = tcp::Role::kData, .rails = 1, .target = b->incarnation, .link = welcome.link});
    EXPECT_EQ(Hear(rail).code, tcp::WelcomeCode::kJoin);
    ASSERT_TRUE(Drive({b.get()}, [&] { return b->accepted.size() == before + 1; }));
    b->accepted.back()->Authorize();
    // A sound write to the region with one random byte damaged, or sound bytes cut short.
    std::vector<std::byte> frame(tcp::kFrameHeadBytes + tcp::kWireRunBytes);
    tcp::Encode(
        tcp::FrameHead{.kind = tcp::FrameKind::kWrite, .runs = 1, .bytes = 64, .transfer = 1},
        std::span(frame).first<tcp::kFrameHeadBytes>());
    tcp::Encode(
        tcp::WireRun{.address = reinterpret_cast<uint64_t>(sink.data()), .bytes = 64, .rkey = 8},
        std::span(frame).subspan<tcp::kFrameHeadBytes, tcp::kWireRunBytes>());
    if (i % 2) frame[random() % 8] ^= std::byte{0xA5};
    frame.resize(frame.size() + 64 + tcp::kTrailerBytes, std::byte{0x5A});
    const int to = i % 4 < 2 ? rail.get() : control.get();
    (void)::send(to, frame.data(), frame.size(), MSG_NOSIGNAL);
    ::shutdown(to, SHUT_WR);  // the damage may be a length: then it waits for more
    if (to == rail.get()) {
      EXPECT_TRUE(Closed(rail));
      control.Reset();
    }
    ASSERT_TRUE(Drive({b.get()}, [&] { return !b->down.empty(); }));
    EXPECT_FALSE(b->down[0].second.ok());
  }
  EXPECT_EQ(std::count(sink.begin(), sink.end(), std::byte{0}), 4096);
  b->down.clear();
  ExpectTheLinkWorks();
}

TEST_F(TcpListener, WithoutDescriptorsItWaitsAndLinksGoOn) {
  Up(4096);
  // Before as well: a sanitizer opens descriptors where it meets a type for the first time.
  ExpectTheLinkWorks();
  EXPECT_TRUE(b->backend->Arm());
  const net::SocketAddress to = ListenAddress();
  const Fd late(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  std::optional<testing::NoDescriptors> no_descriptors(std::in_place);
  ASSERT_EQ(::connect(late.get(), to.get(), to.length), 0);
  for (int i = 0; i < 20; ++i) b->Poll();
  const bool calm = b->backend->Arm();
  ExpectTheLinkWorks();
  no_descriptors.reset();
  EXPECT_TRUE(calm) << "it spins on accept";
  Say(late, {.rails = 1, .target = b->incarnation});
  EXPECT_EQ(Hear(late).code, tcp::WelcomeCode::kJoin);
}

TEST_F(TcpListener, WithoutDescriptorsTheOldestUnprovedGoes) {
  Up(4096);
  ExpectTheLinkWorks();
  const Fd silent = Stranger();
  b->Poll();
  EXPECT_FALSE(Closed(silent, std::chrono::milliseconds(10)));
  const net::SocketAddress to = ListenAddress();
  const Fd late(::socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const testing::NoDescriptors no_descriptors;
  ASSERT_EQ(::connect(late.get(), to.get(), to.length), 0);
  // At once, and not only when its time is over.
  EXPECT_TRUE(Closed(silent, net::Listener::kPreambleTimeout / std::chrono::milliseconds(2) *
                                 std::chrono::milliseconds(1)));
  Say(late, {.rails = 1, .target = b->incarnation});
  EXPECT_EQ(Hear(late).code, tcp::WelcomeCode::kJoin);
  ExpectTheLinkWorks();
}

// Links without a proof, each with as many data streams as may be.
TEST_F(TcpListener, UnprovedLinksHaveAShareOfTheDescriptors) {
  Up(4096);
  constexpr size_t kLinks = 20;
  constexpr size_t kStreams = 16;
  const testing::DescriptorLimit limit(1024);
  const size_t before = testing::OpenFiles();
  std::vector<Fd> ours;
  for (size_t i = 0; i < kLinks; ++i) {
    ours.push_back(Stranger());
    Say(ours.back(), {.rails = kStreams, .target = b->incarnation});
    const tcp::Welcome welcome = Hear(ours.back());
    for (uint8_t rail = 0; rail < kStreams; ++rail) {
      ours.push_back(Stranger());
      Say(ours.back(), {.role = tcp::Role::kData,
                        .rail = rail,
                        .rails = kStreams,
                        .target = b->incarnation,
                        .link = welcome.link});
      EXPECT_EQ(Hear(ours.back()).code, tcp::WelcomeCode::kJoin) << i;
    }
    EXPECT_LE(testing::OpenFiles(), before + ours.size() + DescriptorsForUnproved());
  }
  ASSERT_EQ(b->accepted.size(), 1 + kLinks);
  // As many as exceed the share, the oldest first.
  const size_t ended = kLinks - DescriptorsForUnproved() / (kStreams + 1);
  ASSERT_EQ(b->down.size(), ended);
  for (size_t i = 0; i < ended; ++i) {
    EXPECT_EQ(b->down[i].first, b->accepted[1 + i].get());
    EXPECT_EQ(b->down[i].second.code(), absl::StatusCode::kResourceExhausted);
  }
  b->down.clear();
  ExpectTheLinkWorks();
  // Who is authorised counts no more.
  for (size_t i = 1 + ended; i < b->accepted.size(); ++i) b->accepted[i]->Authorize();
  for (size_t i = 0; i < 100; ++i) {
    ours.push_back(Stranger());
    b->Poll();
  }
  ExpectTheLinkWorks();
}

TEST_F(TcpListener, AnAddressInUseIsNamedWithTheRemedy) {
  Up(16);
  AgentOptions options;
  options.listen = ListenAddress().ToString();
  auto second = MakeTcpBackend({options, Incarnation::Random(), ThisHost()});
  ASSERT_FALSE(second.ok());
  EXPECT_NE(second.status().ToString().find(options.listen), std::string::npos);
  EXPECT_NE(second.status().ToString().find("KVXFER_LISTEN"), std::string::npos);
}

TEST_F(TcpListener, TheSamePortCanBeUsedAgainAtOnce) {
  Up(4096);
  ExpectTheLinkWorks();
  AgentOptions options;
  options.listen = ListenAddress().ToString();
  b.reset();
  auto again = MakeTcpBackend({options, Incarnation::Random(), ThisHost()});
  EXPECT_TRUE(again.ok()) << again.status();
}

}  // namespace
}  // namespace kvxfer::tcp_test
