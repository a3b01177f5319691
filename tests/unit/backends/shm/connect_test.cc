// How the sides of the shm backend find each other, in one process: addresses, reachability,
// strangers, and want of descriptors.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <optional>
#include <random>

#include "kvxfer/memory.h"
#include "src/backends/shm/wire.h"
#include "tests/support/open_files.h"
#include "tests/unit/backends/shm/pair_util.h"
#include "tests/unit/backends/shm/socket_util.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {
namespace {

TEST(ShmConnect, NobodyThereAndForeignAddresses) {
  Side side;
  auto endpoint = side.backend->Connect("1:1:1:kvxfer-shm-nobody", ReadHostIdentity());
  ASSERT_TRUE(endpoint.ok());
  ASSERT_TRUE(Drive({&side}, [&] { return side.down.size() == 1; }));
  EXPECT_EQ(side.connected, 0u);
  EXPECT_NE(side.down.begin()->second.message().find("refused"), absl::string_view::npos);
  for (const char* bad : {"", "1", "1:", "1:0:0:x", "2:1:1:x", "1:1:1:", "1:-1:1:x", "1:1:1"}) {
    EXPECT_FALSE(side.backend->Connect(bad, ReadHostIdentity()).ok()) << bad;
  }
  EXPECT_FALSE(side.backend->Connect("1:1:1:" + std::string(200, 'x'), ReadHostIdentity()).ok());
}

TEST(ShmConnect, StrangersOnTheSocketHurtNobody) {
  Connected pair;
  const auto address = shm::DecodeAddress(pair.target.backend->Describe().address);
  ASSERT_TRUE(address.ok());
  const SocketName name(address->socket);
  std::vector<shm::UniqueFd> strangers;
  const size_t before = OpenFiles();
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    strangers.push_back(NewSocket());
    const int fd = strangers.back().get();
    ASSERT_EQ(connect(fd, name.get(), name.length), 0);
    std::string noise(random() % 100, '\0');
    for (char& c : noise) c = static_cast<char>(random());
    if (i % 2 == 0) {
      ASSERT_GE(send(fd, noise.data(), noise.size(), MSG_NOSIGNAL), 0);
    }
    pair.target.Poll();
  }
  for (int i = 0; i < 50; ++i) pair.target.Poll();
  EXPECT_EQ(pair.target.endpoints.size(), 1u);
  EXPECT_LE(OpenFiles(), before + 200 + 64);  // the embryos that it keeps are bounded
  EXPECT_TRUE(Send(pair.out, "still here"));
  EXPECT_TRUE(Drive({&pair.target}, [&] { return pair.target.messages.size() == 1; }));
}

TEST(ShmConnect, OutOfDescriptorsIsAStatusAndPasses) {
  Side initiator;
  Side target;
  std::optional<testing::NoDescriptors> no_descriptors(std::in_place);
  auto none = initiator.backend->Connect(target.backend->Describe().address, ReadHostIdentity());
  const bool buffer_failed =
      HostBuffer::Allocate(4096).status().code() == absl::StatusCode::kResourceExhausted;
  no_descriptors.reset();
  EXPECT_TRUE(buffer_failed);
  ASSERT_TRUE(none.ok());
  ASSERT_TRUE(Drive({&initiator}, [&] { return initiator.down.size() == 1; }));
  EXPECT_EQ(initiator.down.begin()->second.code(), absl::StatusCode::kResourceExhausted);

  // The dialler got its socket and pidfd, the acceptor gets none: it tries again by itself.
  auto endpoint =
      initiator.backend->Connect(target.backend->Describe().address, ReadHostIdentity());
  no_descriptors.emplace();
  for (int i = 0; i < 10; ++i) target.Poll();
  EXPECT_TRUE(target.backend->Arm());
  EXPECT_TRUE(target.endpoints.empty());
  no_descriptors.reset();
  EXPECT_TRUE(Drive({&initiator, &target}, [&] { return target.endpoints.size() == 1; }));
}

TEST(ShmCapabilities, AreWhatTheInterfaceAsksFor) {
  Side side;
  const Capabilities& c = side.backend->capabilities();
  EXPECT_EQ(c.arrival, Arrival::kCopied);
  EXPECT_FALSE(c.needs_remote_cpu);
  EXPECT_GE(c.max_message_bytes, 128u * 1024);
  EXPECT_EQ(c.max_op_pieces, 1024u);
  EXPECT_EQ(side.backend->name(), "shm");
}

TEST(ShmReachable, EachObstacleIsNamed) {
  Side side;
  const std::string address = side.backend->Describe().address;
  const HostIdentity here = ReadHostIdentity();
  EXPECT_TRUE(side.backend->Reachable(address, here).ok());
  auto why = [&](auto change) {
    HostIdentity there = here;
    change(there);
    const absl::Status status = side.backend->Reachable(address, there);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_NE(status.message().find("tcp will be taken"), absl::string_view::npos);
    return std::string(status.message().data(), status.message().size());
  };
  EXPECT_NE(why([](HostIdentity& h) { h.boot_id = "other"; }).find("another host"),
            std::string::npos);
  EXPECT_NE(why([](HostIdentity& h) { ++h.net_namespace; }).find("network namespace"),
            std::string::npos);
  EXPECT_NE(why([](HostIdentity& h) { ++h.pid_namespace; }).find("pid namespace"),
            std::string::npos);
  EXPECT_NE(why([](HostIdentity& h) { h.uid += 5; }).find("uid"), std::string::npos);
}

}  // namespace
}  // namespace kvxfer::shm_test
