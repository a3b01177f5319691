// What is left of a closed link takes bounded turns.
#include "src/transport/sockets/linger.h"

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <string>
#include <utility>

#include "src/transport/sockets/reactor.h"

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

}  // namespace
}  // namespace kvxfer::net
