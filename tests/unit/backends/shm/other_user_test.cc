// The shm backend between processes of other users and in other namespaces. What needs root is
// skipped without it, and says so.
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "src/backends/shm/channel.h"
#include "src/backends/shm/wire.h"
#include "tests/unit/backends/shm/peer_util.h"
#include "tests/unit/backends/shm/socket_util.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {
namespace {

void BecomeNobody() {
  if (setgid(kNobody) != 0 || setuid(kNobody) != 0) _exit(8);
  prctl(PR_SET_DUMPABLE, 1);  // a change of user has cleared it
}

// Runs `body` in a child without privileges, and returns what it says.
std::string AsOrdinaryUser(const std::function<std::string()>& body) {
  const Child child([&body](int fd) {
    if (geteuid() == 0) BecomeNobody();
    Child::Tell(fd, body());
  });
  return child.Hear();
}

TEST(ShmOtherUser, WithoutPrivilegesBothWaysWork) {
  EXPECT_EQ(AsOrdinaryUser([]() -> std::string {
              const Child child([](int fd) { Serve(fd, 4096); });
              Dialled pair;
              absl::Status status = pair.Connect(child.Hear());
              for (int way : {0, 1}) {
                if (status.ok()) status = pair.Import(way);
                const Piece all = status.ok() ? pair.All(way) : Piece{};
                if (status.ok()) status = pair.Do(OpKind::kWrite, {&all, 1});
              }
              return Text(status);
            }),
            "OK");
}

TEST(ShmOtherUser, ANotDumpablePeerIsMappedButNotAttached) {
  const std::string said = AsOrdinaryUser([]() -> std::string {
    const Child child([](int fd) {
      prctl(PR_SET_DUMPABLE, 0);
      Serve(fd, 4096);
    });
    Dialled pair;
    if (absl::Status status = pair.Connect(child.Hear()); !status.ok()) return Text(status);
    if (absl::Status status = pair.Import(0); !status.ok()) return Text(status);
    const Piece all = pair.All(0);
    if (absl::Status status = pair.Do(OpKind::kWrite, {&all, 1}); !status.ok()) {
      return Text(status);
    }
    return "mapped; " + Text(pair.Import(1)) + "; " + pair.out->Describe().path;
  });
  EXPECT_EQ(said.find("mapped; PERMISSION_DENIED"), 0u) << said;
  EXPECT_NE(said.find("not dumpable"), std::string::npos) << said;
  EXPECT_NE(said.find("HostBuffer"), std::string::npos) << said;
}

TEST(ShmOtherUser, IsRefusedByTheDialler) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to start a process of another user";
  const Child child([](int fd) {
    BecomeNobody();
    Serve(fd, 4096);
  });
  Dialled pair;
  const absl::Status status = pair.Connect(child.Hear());
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(Says(status, "uid 65534")) << status;
  const absl::Status reachable =
      pair.side.backend->Reachable(pair.served.address, pair.served.host);
  EXPECT_TRUE(Says(reachable, "uid 65534")) << reachable;
}

TEST(ShmOtherUser, IsRefusedByTheAcceptor) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to start a process of another user";
  Side side;
  const auto address = shm::DecodeAddress(side.backend->Describe().address);
  ASSERT_TRUE(address.ok());
  const Child child([&address](int fd) {
    BecomeNobody();
    shm::UniqueFd socket = NewSocket();
    const SocketName name(address->socket);
    if (connect(socket.get(), name.get(), name.length) != 0) _exit(7);
    Child::Tell(fd, "connected");
    pollfd wait{socket.get(), POLLIN, 0};
    poll(&wait, 1, 30'000);
    shm::Channel::Buffer buffer;
    shm::Channel channel(std::move(socket), &buffer);
    shm::Channel::Frame frame;
    std::string heard;
    while (channel.Receive(frame) == shm::Channel::Got::kFrame) heard += frame.body;
    Child::Tell(fd, heard);
  });
  ASSERT_EQ(child.Hear(), "connected");
  for (int i = 0; i < 100; ++i) side.Poll();
  const std::string heard = child.Hear();
  EXPECT_NE(heard.find("processes of one user only"), std::string::npos) << heard;
  EXPECT_TRUE(side.endpoints.empty());
}

// A peer in a namespace of its own.
void ServeUnshared(int fd, int what) {
  if (unshare(what) != 0) {
    Child::Tell(fd, "no");
    return;
  }
  // A pid namespace begins with the next child.
  const pid_t inner = fork();
  if (inner == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    Serve(fd, 4096);
    _exit(0);
  }
  waitpid(inner, nullptr, 0);
}

void ExpectUnreachable(int what, std::string_view reachable_says, std::string_view connect_says) {
  const Child child([what](int fd) { ServeUnshared(fd, what); });
  const std::string description = child.Hear();
  if (description == "no") GTEST_SKIP() << "unshare is not permitted here";
  Dialled pair;
  const absl::Status status = pair.Connect(description);
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(Says(status, connect_says)) << status;
  const absl::Status reachable =
      pair.side.backend->Reachable(pair.served.address, pair.served.host);
  EXPECT_TRUE(Says(reachable, reachable_says)) << reachable;
  EXPECT_TRUE(Says(reachable, "tcp will be taken")) << reachable;
}

TEST(ShmNamespaces, AnotherPidNamespace) {
  ExpectUnreachable(CLONE_NEWPID, "another pid namespace", "different pid namespaces");
}

TEST(ShmNamespaces, AnotherNetworkNamespace) {
  ExpectUnreachable(CLONE_NEWNET, "another network namespace", "refused");
}

}  // namespace
}  // namespace kvxfer::shm_test
