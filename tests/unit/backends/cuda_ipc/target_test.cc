// cuda_ipc between processes, at the target: whom it lets in, and when it is quiet.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "src/backends/cuda_ipc/wire.h"
#include "src/core/base/host_identity.h"
#include "tests/support/pattern.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/backends/cuda_ipc/util.h"

namespace kvxfer::testing {
namespace {

using std::chrono::milliseconds;

// Where a child finds the party that started it.
std::vector<std::string> Invitation(Party& party, const GpuRegion& region) {
  return {party.backend().Describe().address,      std::to_string(party.host().pid),
          std::to_string(party.host().start_time), std::to_string(static_cast<uint32_t>(region.id)),
          std::to_string(region.local.rkey),       std::to_string(region.remote().base),
          std::to_string(region.remote().bytes),   region.key()};
}
HostIdentity InvitedBy(const std::vector<std::string>& arguments) {
  HostIdentity host = ReadHostIdentity();
  host.pid = static_cast<uint32_t>(Number(arguments[1]));
  host.start_time = Number(arguments[2]);
  return host;
}
RemoteRegion InvitedTo(const std::vector<std::string>& arguments) {
  return {.id = RegionId{static_cast<uint32_t>(Number(arguments[3]))},
          .rkey = static_cast<uint32_t>(Number(arguments[4])),
          .base = Number(arguments[5]),
          .bytes = Number(arguments[6]),
          .kind = MemoryKind::kCuda,
          .access = Access::kReadWrite};
}

// Writes without end, what changes with each round.
KVXFER_CHILD(CudaIpcWriter) {
  const RemoteRegion region = InvitedTo(arguments);
  const GpuMemory memory = GpuMemory::Plain(region.bytes);
  Dialled dialled(arguments[0], InvitedBy(arguments));
  CHILD_EXPECT(dialled.Register(memory.span()).ok());
  const RemoteKey* const key = dialled.Import(region, arguments[7]);
  CHILD_EXPECT(key != nullptr);
  for (uint64_t round = 0;; ++round) {
    std::memset(memory.bytes().data(), static_cast<int>(1 + round % 100), region.bytes);
    if (!dialled.Move(OpKind::kWrite, {dialled.RunAt(region, key, 0, region.bytes)}).ok()) {
      return 0;
    }
  }
}

class CudaIpcTarget : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(party_, Party::Make(CudaIpcFlavour(), "target"));
    ASSERT_OK_AND_ASSIGN(region_, RegisterGpu(party_->backend(), memory_.span(), 1));
  }
  bool Until(const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      party_->Turn();
      for (; greeted_ < party_->links.size(); ++greeted_) {
        if (!party_->links[greeted_]->Send("hello")) break;
        party_->links[greeted_]->endpoint->Authorize();
      }
      return done();
    });
  }

  GpuMemory memory_ = GpuMemory::Plain(kMiB);
  std::unique_ptr<Party> party_;
  GpuRegion region_;
  size_t greeted_ = 0;
};

TEST_F(CudaIpcTarget, TheInitiatorIsKilled) {
  ASSERT_OK_AND_ASSIGN(ChildProcess writer,
                       ChildProcess::Start("CudaIpcWriter", Invitation(*party_, region_)));
  ASSERT_TRUE(Until([&] { return FirstNonZero(memory_.bytes()) != kNoMismatch; }));
  TestLink& link = *party_->links.front();
  writer.Signal(SIGKILL);
  ASSERT_TRUE(Until([&] { return link.down; }));
  // Expect that the process was gone by then, and that nothing moves any more.
  EXPECT_TRUE(writer.WaitExit(Duration::zero()).has_value());
  const uint64_t digest = Digest(memory_.bytes());
  for (int i = 0; i < 20; ++i) {
    party_->Turn();
    ::usleep(500);
    ASSERT_EQ(Digest(memory_.bytes()), digest);
  }
}

// A stopped initiator says nothing: no kDown, until it goes on or ends.
TEST_F(CudaIpcTarget, AStoppedInitiatorIsNotQuiet) {
  ASSERT_OK_AND_ASSIGN(ChildProcess writer,
                       ChildProcess::Start("CudaIpcWriter", Invitation(*party_, region_)));
  ASSERT_TRUE(Until([&] { return FirstNonZero(memory_.bytes()) != kNoMismatch; }));
  TestLink& link = *party_->links.front();
  writer.Signal(SIGSTOP);
  writer.WaitStopped();
  link.endpoint->Shutdown(absl::CancelledError("by the test"));
  for (const Time end = Now() + milliseconds(300); Now() < end;) party_->Turn();
  EXPECT_FALSE(link.down);
  writer.Signal(SIGCONT);
  EXPECT_TRUE(Until([&] { return link.down; }));
}

// Writes once, and ruins its context. It stops when the link is down.
KVXFER_CHILD(CudaIpcRuinedWriter) {
  const RemoteRegion region = InvitedTo(arguments);
  const GpuMemory memory = GpuMemory::Plain(region.bytes);
  Dialled dialled(arguments[0], InvitedBy(arguments));
  CHILD_EXPECT(dialled.Register(memory.span()).ok());
  const RemoteKey* const key = dialled.Import(region, arguments[7]);
  CHILD_EXPECT(key != nullptr);
  StandInHooks().kvxfer_standin_fail_async(1, cuda::api::CUDA_ERROR_ILLEGAL_ADDRESS);
  CHILD_EXPECT(!dialled.Move(OpKind::kWrite, {dialled.RunAt(region, key, 0, region.bytes)}).ok());
  TestLink& link = dialled.link();
  link.endpoint->Shutdown(absl::CancelledError("by the test"));
  CHILD_EXPECT(dialled.Until([&] { return link.down; }));
  ::raise(SIGSTOP);
  std::_Exit(0);  // memory cannot be freed any more
}

// Nobody knows what a GPU still does whose context is ruined: its process has to end.
TEST_F(CudaIpcTarget, AnInitiatorWithARuinedContextIsQuietWhenItHasEnded) {
  ASSERT_OK_AND_ASSIGN(ChildProcess writer,
                       ChildProcess::Start("CudaIpcRuinedWriter", Invitation(*party_, region_)));
  int status = 0;
  ASSERT_TRUE(Until([&] { return ::waitpid(writer.pid(), &status, WUNTRACED | WNOHANG) > 0; }));
  ASSERT_TRUE(WIFSTOPPED(status));
  TestLink& link = *party_->links.front();
  for (const Time end = Now() + milliseconds(300); Now() < end;) party_->Turn();
  EXPECT_FALSE(link.down);
  writer.Signal(SIGCONT);
  EXPECT_TRUE(Until([&] { return link.down; }));
}

// One that was never let in has nothing to be quiet with.
TEST_F(CudaIpcTarget, AnUnauthorisedInitiatorIsQuietAtOnce) {
  ASSERT_OK_AND_ASSIGN(ChildProcess writer,
                       ChildProcess::Start("CudaIpcWriter", Invitation(*party_, region_)));
  ASSERT_TRUE(Eventually(kAmple, [&] {
    party_->Turn();
    return !party_->links.empty();
  }));
  TestLink& link = *party_->links.front();
  for (const Time end = Now() + milliseconds(100); Now() < end;) party_->Turn();
  writer.Signal(SIGSTOP);
  writer.WaitStopped();
  link.endpoint->Shutdown(absl::CancelledError("by the test"));
  ASSERT_TRUE(Eventually(kAmple, [&] {
    party_->Turn();
    return link.down;
  }));
  EXPECT_EQ(FirstNonZero(memory_.bytes()), kNoMismatch);
}

// Sees GPU 0 alone.
KVXFER_CHILD(CudaIpcWithHiddenGpu) {
  const RemoteRegion region = InvitedTo(arguments);
  const GpuMemory memory = GpuMemory::Plain(region.bytes);
  Dialled dialled(arguments[0], InvitedBy(arguments));
  CHILD_EXPECT(dialled.Register(memory.span()).ok());
  absl::Status why;
  CHILD_EXPECT(dialled.Import(region, arguments[7], &why) == nullptr);
  CHILD_EXPECT(absl::StrContains(why.message(), "CUDA_VISIBLE_DEVICES"));
  return 0;
}

TEST_F(CudaIpcTarget, AGpuThatThePeerDoesNotSee) {
  const GpuMemory hidden = GpuMemory::Plain(64 * kKiB, 1);
  ASSERT_OK_AND_ASSIGN(const GpuRegion region, RegisterGpu(party_->backend(), hidden.span(), 2));
  ::setenv("CUDA_VISIBLE_DEVICES", "0", 1);
  auto child = ChildProcess::Start("CudaIpcWithHiddenGpu", Invitation(*party_, region));
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  ASSERT_OK(child);
  std::optional<int> exit;
  EXPECT_TRUE(Until([&] { return (exit = child->WaitExit(Duration::zero())).has_value(); }));
  EXPECT_EQ(exit.value_or(-1), 0);
}

// --- at the desk ---

int ConnectTo(const std::string& listener) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, listener.data(), listener.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + listener.size());
  if (::connect(fd, reinterpret_cast<const sockaddr*>(&name), bytes) == 0) return fd;
  ::close(fd);
  return -1;
}
// The other side has ended it.
bool Ended(int fd) {
  char byte;
  const ssize_t got = ::recv(fd, &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN);
}
std::string ListenerOf(Party& party) {
  return cuda_ipc::DecodeMetadataAddress(party.backend().Describe().address)->listener;
}

TEST_F(CudaIpcTarget, StrangersAtTheListener) {
  const std::string listener = ListenerOf(*party_);
  const cuda_ipc::DialPacket unknown{.word = {9, 9, 9}};
  std::string dial(8, '\0');
  dial[0] = static_cast<char>(cuda_ipc::PacketType::kDial);
  dial.append(wire::Encode(unknown));
  for (const std::string& words : {std::string("x"), std::string(4000, 'x'), dial, dial + "x"}) {
    const int fd = ConnectTo(listener);
    ASSERT_GE(fd, 0);
    ASSERT_GT(::send(fd, words.data(), words.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(Until([&] { return Ended(fd); })) << words.size();
    ::close(fd);
  }
  // Those that say nothing go when others come.
  std::vector<int> silent;
  for (int i = 0; i < 80; ++i) {
    silent.push_back(ConnectTo(listener));
    party_->Turn();
  }
  EXPECT_TRUE(Until([&] { return Ended(silent.front()); }));
  EXPECT_FALSE(Ended(silent.back()));
  ASSERT_OK_AND_ASSIGN(ChildProcess writer,
                       ChildProcess::Start("CudaIpcWriter", Invitation(*party_, region_)));
  EXPECT_TRUE(Until([&] { return FirstNonZero(memory_.bytes()) != kNoMismatch; }));
  for (const int fd : silent) ::close(fd);
}

KVXFER_CHILD(CudaIpcOtherUser) {
  constexpr uid_t kNobody = 65534;
  if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return 8;
  const int fd = ConnectTo(arguments[0]);
  CHILD_EXPECT(fd >= 0);
  CHILD_EXPECT(Eventually(kAmple, [&] { return Ended(fd); }));
  return 0;
}

TEST_F(CudaIpcTarget, AnotherUserIsRefused) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  ASSERT_OK_AND_ASSIGN(ChildProcess child,
                       ChildProcess::Start("CudaIpcOtherUser", {ListenerOf(*party_)}));
  std::optional<int> exit;
  EXPECT_TRUE(Until([&] { return (exit = child.WaitExit(Duration::zero())).has_value(); }));
  EXPECT_EQ(exit.value_or(-1), 0);
  EXPECT_TRUE(party_->links.empty());
}

}  // namespace
}  // namespace kvxfer::testing
