// What silent, foreign and lying processes do over the shm backend's socket: nothing to others.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "kvxfer/log.h"
#include "src/backends/shm/channel.h"
#include "src/backends/shm/wire.h"
#include "src/transport/host/growing_ring.h"
#include "src/transport/ring_pair.h"
#include "tests/unit/backends/shm/socket_util.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {
namespace {

bool HungUp(const shm::UniqueFd& fd) {
  pollfd look{fd.get(), POLLRDHUP, 0};
  return poll(&look, 1, 0) == 1;
}

TEST(ShmStrangers, OfManySilentOnesTheOldestGo) {
  constexpr size_t kSilent = 200;
  constexpr size_t kKept = 64;
  Side target;
  const SocketName name(shm::DecodeAddress(target.backend->Describe().address)->socket);
  const size_t before = OpenFiles();
  std::vector<shm::UniqueFd> silent;
  for (size_t i = 0; i < kSilent; ++i) {
    silent.push_back(NewSocket());
    ASSERT_EQ(connect(silent.back().get(), name.get(), name.length), 0);
  }
  // All at once, so that one look at the listener takes in many: few looks.
  for (size_t i = 0; i < kSilent / 8; ++i) target.Poll();
  EXPECT_LE(OpenFiles(), before + kSilent + kKept);
  for (size_t i = 0; i < kSilent; ++i) EXPECT_EQ(HungUp(silent[i]), i < kSilent - kKept) << i;
  Side initiator;
  auto endpoint =
      initiator.backend->Connect(target.backend->Describe().address, ReadHostIdentity());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  EXPECT_TRUE(Drive({&initiator, &target}, [&] { return target.endpoints.size() == 1; }));
}

TEST(ShmStrangers, AnotherUserIsWarnedOfOnce) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to start a process of another user";
  std::atomic<int> warnings{0};
  std::atomic<int> refusals{0};
  SetLogLevel(LogLevel::kDebug);
  SetLogSink([&](LogLevel level, std::string_view line) {
    if (line.find("refused process") == std::string_view::npos) return;
    ++refusals;
    warnings += level == LogLevel::kWarning ? 1 : 0;
  });
  Side side;
  const SocketName name(shm::DecodeAddress(side.backend->Describe().address)->socket);
  const Child child([&name](int fd) {
    if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(8);
    std::vector<shm::UniqueFd> sockets;
    for (int i = 0; i < 10; ++i) {
      sockets.push_back(NewSocket());
      if (connect(sockets.back().get(), name.get(), name.length) != 0) _exit(7);
    }
    Child::Tell(fd, "connected");
    Child::HearFrom(fd);
  });
  EXPECT_EQ(child.Hear(), "connected");
  EXPECT_TRUE(Drive({&side}, [&] { return refusals == 10; }));
  EXPECT_TRUE(FlushLog(std::chrono::seconds(20)));
  EXPECT_EQ(warnings, 1);
  SetLogSink({});
  SetLogLevel(LogLevel::kWarning);
}

TEST(ShmStrangers, AnEmptyProbeFileIsNoCrash) {
  const shm::Address address{.pid = static_cast<uint32_t>(getpid()),
                             .start_time = 0,
                             .socket = "kvxfer-test-" + Incarnation::Random().ToString()};
  const SocketName name(address.socket);
  const shm::UniqueFd listener = NewSocket();
  ASSERT_EQ(bind(listener.get(), name.get(), name.length), 0);
  ASSERT_EQ(listen(listener.get(), 1), 0);
  Side side;
  auto endpoint = side.backend->Connect(shm::Encode(address), ReadHostIdentity());
  ASSERT_TRUE(endpoint.ok()) << endpoint.status();
  side.endpoints.push_back(*std::move(endpoint));
  shm::Channel::Buffer buffer;
  shm::Channel channel(
      shm::UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)),
      &buffer);
  const shm::UniqueFd empty(memfd_create("empty", MFD_CLOEXEC));
  channel.SendFrame(shm::FrameType::kOffer, wire::Encode(shm::OfferBody{}), empty.get());
  ASSERT_TRUE(Drive({&side}, [&] { return !side.down.empty(); }));
  const std::string why = side.down.begin()->second.ToString();
  EXPECT_NE(why.find("the peer's probe memory"), std::string::npos) << why;
}

// A dialler that is only a socket and rings, which the test can spoil.
struct LyingDialler {
  explicit LyingDialler(Side& target)
      : file(memfd_create("rings", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
        bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    constexpr size_t kBytes = net::RingPair::kSmallBytes;
    EXPECT_EQ(ftruncate(file.get(), kBytes), 0);
    rings = static_cast<SmallRing*>(
        mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0));
    EXPECT_NE(static_cast<void*>(rings), MAP_FAILED);
    const SocketName name(shm::DecodeAddress(target.backend->Describe().address)->socket);
    shm::UniqueFd socket = NewSocket();
    EXPECT_EQ(connect(socket.get(), name.get(), name.length), 0);
    channel.emplace(std::move(socket), &buffer);
    channel->SendFrame(shm::FrameType::kDial,
                       wire::Encode(shm::DialBody{.pid = static_cast<uint32_t>(getpid()),
                                                  .start_time = ReadHostIdentity().start_time}));
  }
  ~LyingDialler() { munmap(rings, net::RingPair::kSmallBytes); }

  void Seal(int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) const {
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  }
  void Offer() {
    channel->SendFrame(shm::FrameType::kRing, {}, file.get());
    channel->SendFrame(shm::FrameType::kBell, {}, bell.get());
  }

  shm::UniqueFd file;
  shm::UniqueFd bell;
  SmallRing* rings = nullptr;
  shm::Channel::Buffer buffer;
  std::optional<shm::Channel> channel;
};

// Expect that a ring that makes no sense is heard no more, and that the connection still ends with
// its socket: until then the peer may be copying.
TEST(ShmStrangers, ASpoiltRingEndsWithItsSocket) {
  Side target;
  LyingDialler dialler(target);
  dialler.Seal();
  dialler.Offer();
  ASSERT_TRUE(Drive({&target}, [&] { return target.endpoints.size() == 1; }));
  target.endpoints[0]->Authorize();
  ASSERT_TRUE(Drive({&target}, [&] { return target.backend->Arm(); }));
  dialler.rings[0].words.head.store(8);
  EXPECT_FALSE(target.backend->Arm());
  for (int i = 0; i < 10; ++i) target.Poll();
  EXPECT_TRUE(target.backend->Arm());
  EXPECT_TRUE(target.down.empty());
  dialler.channel->Close();
  EXPECT_TRUE(Drive({&target}, [&] { return target.down.size() == 1; }));
}

// What is checked of a larger ring is tested in ring_pair_test.cc; here, what follows for the
// connection.
TEST(ShmStrangers, AGrowthThatMakesNoSenseEndsWithItsSocket) {
  enum class Lie : uint8_t { kUnsealed, kTwice, kRefusesNone, kMovesToNone };
  for (const Lie lie : {Lie::kUnsealed, Lie::kTwice, Lie::kRefusesNone, Lie::kMovesToNone}) {
    Side target;
    LyingDialler dialler(target);
    dialler.Seal();
    dialler.Offer();
    ASSERT_TRUE(Drive({&target}, [&] { return target.endpoints.size() == 1; }));
    target.endpoints[0]->Authorize();
    const shm::UniqueFd larger(memfd_create("larger", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    ASSERT_EQ(ftruncate(larger.get(), sizeof(LargeRing)), 0);
    if (lie == Lie::kTwice) {
      ASSERT_EQ(fcntl(larger.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL), 0);
      dialler.channel->SendFrame(shm::FrameType::kGrow, {}, larger.get());
    }
    if (lie == Lie::kUnsealed || lie == Lie::kTwice) {
      dialler.channel->SendFrame(shm::FrameType::kGrow, {}, larger.get());
    } else if (lie == Lie::kRefusesNone) {
      dialler.channel->SendFrame(shm::FrameType::kNotGrown, {});
    } else {
      RingSender sender(dialler.rings[0].ring());
      ASSERT_TRUE(sender.Push(0, RingRecord::Kind::kMoved, ""));
    }
    for (int i = 0; i < 20; ++i) target.Poll();
    // No proof that the peer copies no more.
    EXPECT_TRUE(target.down.empty());
    shm::Channel::Frame frame;
    bool goodbye = false;
    while (dialler.channel->Receive(frame) == shm::Channel::Got::kFrame) {
      goodbye |= frame.type == shm::FrameType::kBye;
    }
    EXPECT_TRUE(goodbye) << static_cast<int>(lie);
    dialler.channel->Close();
    EXPECT_TRUE(Drive({&target}, [&] { return target.down.size() == 1; }));
  }
}

// A sender without a bell is woken by a frame of the socket. Expect that one who reads none of them
// has no queue of them.
TEST(ShmStrangers, WhoReadsNoWakeUpsHasFewWaiting) {
  constexpr size_t kRecords = 20'000;
  Side target;
  LyingDialler dialler(target);
  dialler.Seal();
  dialler.channel->SendFrame(shm::FrameType::kRing, {}, dialler.file.get());
  ASSERT_TRUE(Drive({&target}, [&] { return target.endpoints.size() == 1; }));
  RingSender sender(dialler.rings[0].ring());
  for (size_t i = 0; i < kRecords; ++i) {
    dialler.rings[0].words.sender_waits.store(1);
    ASSERT_TRUE(Drive({&target}, [&] { return sender.Push(2, RingRecord::Kind::kMore, ""); }));
    target.Poll();
  }
  EXPECT_TRUE(target.down.empty());
  size_t woken = 0;
  shm::Channel::Frame frame;
  for (int idle = 0; idle < 3; ++idle) {
    while (dialler.channel->Receive(frame) == shm::Channel::Got::kFrame) {
      woken += frame.type == shm::FrameType::kBell ? 1 : 0;
      idle = 0;
    }
    target.Poll();
  }
  EXPECT_GT(woken, 0u);
  EXPECT_LT(woken, kRecords / 2);
}

// Expect that neither rings that could shrink nor a bell that is none are taken, and that this is
// no proof that the peer copies no more.
TEST(ShmStrangers, RingsThatCouldShrinkAndFalseBellsAreRefused) {
  for (const bool sealed : {false, true}) {
    Side target;
    LyingDialler dialler(target);
    ASSERT_TRUE(Drive({&target}, [&] { return target.endpoints.size() == 1; }));
    target.endpoints[0]->Authorize();
    if (sealed) {
      dialler.Seal();
      int pipes[2];
      ASSERT_EQ(pipe2(pipes, O_NONBLOCK | O_CLOEXEC), 0);
      close(pipes[0]);
      dialler.bell = shm::UniqueFd(pipes[1]);
    }
    dialler.Offer();
    for (int i = 0; i < 20; ++i) target.Poll();
    EXPECT_TRUE(target.down.empty());
    // The end of what it has to say, the goodbye among it.
    shm::Channel::Frame frame;
    std::string goodbye;
    while (dialler.channel->Receive(frame) == shm::Channel::Got::kFrame) {
      if (frame.type == shm::FrameType::kBye) goodbye = std::string(frame.body);
    }
    EXPECT_NE(goodbye.find(sealed ? "bell" : "rings"), std::string::npos) << goodbye;
    dialler.channel->Close();
    EXPECT_TRUE(Drive({&target}, [&] { return target.down.size() == 1; }));
  }
}

}  // namespace
}  // namespace kvxfer::shm_test
