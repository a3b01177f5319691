// What silent, foreign and lying processes do over the shm backend's socket: nothing to others.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>

#include <atomic>

#include "kvxfer/log.h"
#include "src/backends/shm/channel.h"
#include "src/backends/shm/wire.h"
#include "tests/unit/shm_socket_util.h"
#include "tests/unit/shm_test_util.h"

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
  const SocketName name(shm::DecodeAddress(target.backend->Address())->socket);
  const size_t before = OpenDescriptors();
  std::vector<shm::UniqueFd> silent;
  for (size_t i = 0; i < kSilent; ++i) {
    silent.push_back(NewSocket());
    ASSERT_EQ(connect(silent.back().get(), name.get(), name.length), 0);
  }
  // All at once, so that one look at the listener takes in many: few looks.
  for (size_t i = 0; i < kSilent / 8; ++i) target.Poll();
  EXPECT_LE(OpenDescriptors(), before + kSilent + kKept);
  for (size_t i = 0; i < kSilent; ++i) EXPECT_EQ(HungUp(silent[i]), i < kSilent - kKept) << i;
  Side initiator;
  auto endpoint = initiator.backend->Connect(target.backend->Address(), ReadHostIdentity());
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
  const SocketName name(shm::DecodeAddress(side.backend->Address())->socket);
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
  shm::Channel channel(
      shm::UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)));
  const shm::UniqueFd empty(memfd_create("empty", MFD_CLOEXEC));
  channel.SendFrame(shm::FrameType::kOffer, shm::AsBytes(shm::OfferBody{}), empty.get());
  ASSERT_TRUE(Drive({&side}, [&] { return !side.down.empty(); }));
  const std::string why = side.down.begin()->second.ToString();
  EXPECT_NE(why.find("the peer's probe memory"), std::string::npos) << why;
}

}  // namespace
}  // namespace kvxfer::shm_test
