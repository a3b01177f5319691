// What is left of a closed link takes bounded turns.
#include "src/transport/sockets/linger.h"

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "src/transport/sockets/reactor.h"
#include "tests/support/open_files.h"

namespace kvxfer::net {
namespace {

// Bytes that wait in the socket.
int Waiting(int fd) {
  int bytes = 0;
  EXPECT_EQ(::ioctl(fd, FIONREAD, &bytes), 0);
  return bytes;
}

void SendAllThatFits(const Fd& fd) {
  const std::string chunk(4096, 'x');
  while (::send(fd.get(), chunk.data(), chunk.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
  }
}

TEST(NetLinger, APeerThatKeepsSendingDoesNotKeepItsTurnGoing) {
  auto reactor = Reactor::Create();
  ASSERT_TRUE(reactor.ok());
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  Fd peer(ends[1]);
  SendAllThatFits(peer);
  const int before = Waiting(ends[0]);
  ASSERT_GT(before, 16 * 4096);
  Linger linger(reactor->get(), Fd(ends[0]), {}, "the reason");
  EXPECT_FALSE(linger.Work());
  EXPECT_GT(Waiting(ends[0]), 0);
  EXPECT_TRUE(linger.HasWork());
  while (linger.HasWork()) ASSERT_FALSE(linger.Work());
  EXPECT_EQ(Waiting(ends[0]), 0);
  std::array<char, 64> heard{};
  EXPECT_EQ(::recv(peer.get(), heard.data(), heard.size(), 0), 10);
  peer.Reset();
  (*reactor)->Collect();
  EXPECT_TRUE(linger.HasWork());
  EXPECT_TRUE(linger.Work());
}

// Links of many streams that all end at once.
TEST(NetLinger, TheOldestGiveWayByTheirDescriptors) {
  auto reactor = Reactor::Create();
  ASSERT_TRUE(reactor.ok());
  const testing::DescriptorLimit few(240);  // a share of 60
  Lingerers lingerers;
  std::vector<Fd> peers;
  const auto add = [&](size_t streams) {
    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
    peers.emplace_back(ends[1]);
    std::vector<Fd> data;
    for (size_t i = 0; i < streams; ++i) data.emplace_back(::dup(ends[1]));
    lingerers.Add(reactor->get(), Fd(ends[0]), std::move(data), "");
  };
  for (int i = 0; i < 3; ++i) add(19);
  EXPECT_EQ(lingerers.descriptors(), 60u);
  add(0);
  EXPECT_EQ(lingerers.descriptors(), 41u);
  add(100);
  EXPECT_EQ(lingerers.descriptors(), 101u);
}

}  // namespace
}  // namespace kvxfer::net
