// cuda_ipc between processes: handles of memory, and what the death of either leaves.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "src/backends/cuda_ipc/wire.h"
#include "src/core/host_identity.h"
#include "tests/support/pattern.h"
#include "tests/support/status_macros.h"
#include "tests/unit/cuda_ipc_util.h"

namespace kvxfer::testing {
namespace {

using namespace cuda::api;  // NOLINT(google-build-using-namespace): the driver's own names
using std::chrono::milliseconds;
constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;

// What this process holds of others' memory.
uint64_t Opened() {
  const cuda_driver::LiveObjects live = LiveNow();
  return live.ipc_mappings + live.mappings + live.handles + live.reservations;
}

// An initiator here, connected to a peer.
class Dialled {
 public:
  explicit Dialled(const IpcPeer& peer) : Dialled(peer.address(), peer.host()) {}
  Dialled(const std::string& address, const HostIdentity& host) {
    auto made = Party::Make(CudaIpcFlavour(), "initiator");
    EXPECT_OK(made);
    party_ = *std::move(made);
    Dial(address, host);
  }
  ~Dialled() {
    keys_.clear();
    for (auto& link : party_->links) {
      if (!link->down) link->endpoint->Shutdown(absl::CancelledError("the test is over"));
      EXPECT_TRUE(Until([&] { return link->down; }));
    }
  }
  void Dial(const std::string& address, const HostIdentity& host) {
    auto endpoint = party_->backend().Connect(address, host);
    EXPECT_OK(endpoint);
    party_->links.push_back(std::make_unique<TestLink>());
    TestLink& link = *party_->links.back();
    link.endpoint = *std::move(endpoint);
    EXPECT_TRUE(Until([&] { return !link.messages.empty() || link.down; }));
    EXPECT_FALSE(link.down) << link.why;
  }

  Party& party() { return *party_; }
  TestLink& link(size_t i = 0) { return *party_->links[i]; }
  bool Until(const std::function<bool()>& done) {
    return Eventually(kAmple, [&] {
      party_->Turn();
      return done();
    });
  }
  absl::Status Register(const MemorySpan& span) {
    auto region = RegisterGpu(party_->backend(), span, 1);
    if (region.ok()) local_ = *std::move(region);
    return region.status();
  }
  // Kept here; null where it failed, and `why` says how.
  const RemoteKey* Import(const RemoteRegion& region, const std::string& key,
                          absl::Status* why = nullptr, size_t over = 0) {
    absl::StatusOr<std::unique_ptr<RemoteKey>> made;
    const bool known = Until([&] {
      made = link(over).endpoint->Import(region, key);
      return !absl::IsUnavailable(made.status());
    });
    if (why != nullptr) *why = made.status();
    if (why == nullptr) {
      EXPECT_OK(made);
    }
    if (!known || !made.ok()) return nullptr;
    keys_.push_back(*std::move(made));
    return keys_.back().get();
  }
  std::vector<std::unique_ptr<RemoteKey>>& keys() { return keys_; }
  Piece RunAt(const RemoteRegion& region, const RemoteKey* key, uint64_t offset, uint64_t bytes) {
    return RunOf(local_, region, key, offset, bytes);
  }
  // In ops as large as may be.
  absl::Status Move(OpKind kind, std::vector<Piece> runs) {
    const Op op = link().Make(kind, 1, std::move(runs));
    if (!Until([&] {
          return link().Post({&op, 1}) == 1 || link().down;
        }) ||
        !Until([&] { return link().ended.contains(op.id) || link().down; })) {
      return absl::DeadlineExceededError("the op does not end");
    }
    return link().ended.contains(op.id) ? link().ended[op.id] : link().why;
  }

 private:
  std::unique_ptr<Party> party_;
  GpuRegion local_;
  std::vector<std::unique_ptr<RemoteKey>> keys_;
};

// Scattered over all of it, across the borders of chunks.
std::vector<Piece> Scattered(Dialled& dialled, const RemoteRegion& region, const RemoteKey* key) {
  std::vector<Piece> runs;
  std::mt19937_64 random(TestSeed());
  for (uint64_t at = 0; at < region.bytes;) {
    const uint64_t bytes = std::min<uint64_t>(1 + random() % (256 * kKiB), region.bytes - at);
    runs.push_back(dialled.RunAt(region, key, at, bytes));
    at += bytes;
  }
  std::ranges::shuffle(runs, random);
  return runs;
}

class CudaIpcMemory : public ::testing::TestWithParam<const char*> {};

TEST_P(CudaIpcMemory, WritesAndReads) {
  const uint64_t opened = Opened();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  constexpr uint64_t kBytes = 5 * kMiB + 77;
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register(GetParam(), kBytes));
  {
    const GpuMemory memory = GpuMemory::Plain(kBytes);
    Dialled dialled(*peer);
    ASSERT_OK(dialled.Register(memory.span()));
    const RemoteKey* const key = dialled.Import(region, peer->key(region));
    ASSERT_NE(key, nullptr);
    EXPECT_GT(Opened(), opened);
    Pattern(1).Fill(memory.bytes());
    ASSERT_OK(dialled.Move(OpKind::kWrite, Scattered(dialled, region, key)));
    ASSERT_OK_AND_ASSIGN(const bool holds, peer->Holds(1, kBytes));
    EXPECT_TRUE(holds);
    ASSERT_OK(peer->Fill(2));
    ASSERT_OK(dialled.Move(OpKind::kRead, Scattered(dialled, region, key)));
    EXPECT_EQ(Pattern(2).Mismatch(memory.bytes()), kNoMismatch);
    const std::string path = dialled.link().endpoint->Describe();
    const bool other = std::string_view(GetParam()) == "other";
    EXPECT_NE(path.find(other ? "GPU 0 -> GPU 1 over" : "GPU 0 -> GPU 0 over the same GPU"),
              std::string::npos)
        << path;
    EXPECT_NE(path.find(std::to_string(peer->process().pid())), std::string::npos) << path;
  }
  EXPECT_EQ(Opened(), opened);
}

// A region that begins in the midst of an allocation.
TEST_P(CudaIpcMemory, FromTheMiddle) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  constexpr uint64_t kOffset = 3 * kMiB + 4096 + 5;
  constexpr uint64_t kBytes = 2 * kMiB + 3;
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register(GetParam(), kBytes, kOffset));
  const GpuMemory memory = GpuMemory::Plain(kBytes);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const RemoteKey* const key = dialled.Import(region, peer->key(region));
  ASSERT_NE(key, nullptr);
  ASSERT_OK(peer->Fill(3));
  ASSERT_OK(dialled.Move(OpKind::kRead, Scattered(dialled, region, key)));
  EXPECT_EQ(Pattern(3).Mismatch(memory.bytes(), kOffset), kNoMismatch);
}

// Expect that an allocation is opened once, however many regions and links use it, and closed with
// the last.
TEST_P(CudaIpcMemory, OpenedOnceAndClosedWithTheLast) {
  const cuda_driver::LiveObjects before = LiveNow();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion whole, peer->Register(GetParam(), kMiB));
  ASSERT_OK_AND_ASSIGN(const RemoteRegion first, peer->RegisterPart(0, 64 * kKiB));
  ASSERT_OK_AND_ASSIGN(const RemoteRegion second, peer->RegisterPart(64 * kKiB, 64 * kKiB));
  const auto opened = [&] {
    const cuda_driver::LiveObjects now = LiveNow();
    return now.ipc_mappings - before.ipc_mappings + now.mappings - before.mappings;
  };
  const GpuMemory memory = GpuMemory::Plain(kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  dialled.Dial(peer->address(), peer->host());
  for (const RemoteRegion& region : {whole, first, second}) {
    ASSERT_NE(dialled.Import(region, peer->key(region)), nullptr);
    EXPECT_EQ(opened(), 1u);
  }
  ASSERT_NE(dialled.Import(first, peer->key(first), nullptr, /*over=*/1), nullptr);
  EXPECT_EQ(opened(), 1u);
  while (!dialled.keys().empty()) {
    EXPECT_EQ(opened(), 1u);
    dialled.keys().pop_back();
  }
  EXPECT_EQ(opened(), 0u);
  // And again.
  ASSERT_NE(dialled.Import(second, peer->key(second)), nullptr);
  EXPECT_EQ(opened(), 1u);
}

// Expect nothing held of a peer that was killed in the midst of writes, from kDown on, whatever the
// agent still has.
TEST_P(CudaIpcMemory, TheTargetIsKilled) {
  const cuda_driver::LiveObjects before = LiveNow();
  const uint64_t opened = Opened();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  constexpr uint64_t kBytes = 4 * kMiB;
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register(GetParam(), kBytes));
  const GpuMemory memory = GpuMemory::Plain(kBytes);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const RemoteKey* const key = dialled.Import(region, peer->key(region));
  ASSERT_NE(key, nullptr);
  TestLink& link = dialled.link();
  constexpr uint64_t kPiece = 64 * kKiB;
  size_t posted = 0;
  // No two that are under way go to one place.
  const auto post = [&] {
    if (link.open.size() >= kBytes / kPiece / 2) return;
    const uint64_t at = posted * kPiece % kBytes;
    const Op op = link.Make(OpKind::kWrite, 1, {dialled.RunAt(region, key, at, kPiece)});
    posted += link.Post({&op, 1});
  };
  for (int i = 0; i < 20; ++i) post();
  peer->process().Signal(SIGKILL);
  ASSERT_TRUE(dialled.Until([&] {
    if (!link.down) post();
    return link.down;
  }));
  EXPECT_EQ(link.ended.size(), posted);
  EXPECT_EQ(Opened(), opened);
  EXPECT_EQ(LiveNow().ipc_mappings, before.ipc_mappings);
}

INSTANTIATE_TEST_SUITE_P(Of, CudaIpcMemory, ::testing::Values("plain", "virtual", "other"),
                         [](const auto& info) { return std::string(info.param); });

uint64_t Number(const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); }

// Where a child finds the party that started it.
std::vector<std::string> Invitation(Party& party, const GpuRegion& region) {
  return {party.backend().Address(),
          std::to_string(party.host().pid),
          std::to_string(party.host().start_time),
          std::to_string(static_cast<uint32_t>(region.local.id)),
          std::to_string(region.local.rkey),
          std::to_string(region.remote().base),
          std::to_string(region.remote().bytes),
          region.key()};
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

// Copies need nothing of the target's CPU.
TEST(CudaIpcProcess, AStoppedTargetIsWrittenTo) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register("plain", kMiB));
  const GpuMemory memory = GpuMemory::Plain(kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const RemoteKey* const key = dialled.Import(region, peer->key(region));
  ASSERT_NE(key, nullptr);
  Pattern(5).Fill(memory.bytes());
  peer->process().Signal(SIGSTOP);
  peer->process().WaitStopped();
  EXPECT_OK(dialled.Move(OpKind::kWrite, {dialled.RunAt(region, key, 0, kMiB)}));
  peer->process().Signal(SIGCONT);
  ASSERT_OK_AND_ASSIGN(const bool holds, peer->Holds(5, kMiB));
  EXPECT_TRUE(holds);
}

TEST(CudaIpcProcess, WhatCannotBeOpenedSaysWhyAndIsTriedAgain) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion plain, peer->Register("plain", kMiB));
  ASSERT_OK_AND_ASSIGN(const RemoteRegion other, peer->Register("virtual", 4 * kMiB));
  const GpuMemory memory = GpuMemory::Plain(4 * kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const uint64_t opened = Opened();
  const auto refused = [&](const RemoteRegion& region, std::initializer_list<const char*> words) {
    absl::Status why;
    EXPECT_EQ(dialled.Import(region, peer->key(region), &why), nullptr);
    EXPECT_EQ(Opened(), opened);
    for (const char* const word : words) {
      EXPECT_TRUE(absl::StrContains(why.message(), word)) << word << " in " << why;
    }
    return !why.ok() && !absl::IsUnavailable(why) && !absl::IsDeadlineExceeded(why);
  };
  const auto fail_here = [](const char* call, int error) {
    StandInHooks().kvxfer_standin_fail(call, 1, error);
  };
  const std::string pid = std::to_string(peer->process().pid());
  for (const int error :
       {CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_MAP_FAILED, CUDA_ERROR_INVALID_HANDLE,
        CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_OPERATING_SYSTEM, CUDA_ERROR_INVALID_VALUE}) {
    fail_here("cuIpcOpenMemHandle_v2", error);
    EXPECT_TRUE(refused(plain, {"cuIpcOpenMemHandle", pid.c_str(), "--ipc=host"})) << error;
  }
  for (const char* const call :
       {"cuMemImportFromShareableHandle", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    fail_here(call, CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_TRUE(refused(other, {call, pid.c_str()}));
  }
  ASSERT_OK(peer->FailNext("cuIpcGetMemHandle", CUDA_ERROR_NOT_SUPPORTED));
  EXPECT_TRUE(refused(plain, {"cuIpcGetMemHandle", pid.c_str()}));
  ASSERT_OK(peer->FailNext("cuMemExportToShareableHandle", CUDA_ERROR_UNKNOWN));
  EXPECT_TRUE(refused(other, {"cuMemExportToShareableHandle", pid.c_str()}));
  EXPECT_NE(dialled.Import(plain, peer->key(plain)), nullptr);
  EXPECT_NE(dialled.Import(other, peer->key(other)), nullptr);
  EXPECT_FALSE(dialled.link().down);
}

TEST(CudaIpcProcess, ARegionThatIsNoMore) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IpcPeer> peer, IpcPeer::Start());
  ASSERT_OK_AND_ASSIGN(const RemoteRegion region, peer->Register("plain", kMiB));
  const GpuMemory memory = GpuMemory::Plain(kMiB);
  Dialled dialled(*peer);
  ASSERT_OK(dialled.Register(memory.span()));
  const RemoteKey* const key = dialled.Import(region, peer->key(region));
  ASSERT_NE(key, nullptr);
  ASSERT_OK(peer->Deregister(region));
  absl::Status last;
  EXPECT_TRUE(dialled.Until([&] {
    last = dialled.Move(OpKind::kWrite, {dialled.RunAt(region, key, 0, 64)});
    return !last.ok();
  }));
  EXPECT_TRUE(Fails(last, absl::StatusCode::kFailedPrecondition, {"deregistered"}));
  absl::Status why;
  EXPECT_EQ(dialled.Import(region, peer->key(region), &why), nullptr);
  EXPECT_TRUE(Fails(why, absl::StatusCode::kFailedPrecondition, {"deregistered"}));
  // Nor one that there never was, or that has another key.
  RemoteRegion forged = region;
  forged.rkey ^= 1;
  const cuda_ipc::RegionKey key_of_forged{.region = 1, .rkey = forged.rkey};
  EXPECT_EQ(dialled.Import(forged, Encode(key_of_forged), &why), nullptr);
  EXPECT_TRUE(Fails(why, absl::StatusCode::kFailedPrecondition));
  EXPECT_FALSE(dialled.link().down);
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

int ConnectTo(const std::string& desk) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un name{};
  name.sun_family = AF_UNIX;
  std::memcpy(name.sun_path + 1, desk.data(), desk.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + desk.size());
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
std::string DeskOf(Party& party) {
  return cuda_ipc::DecodeWhereabouts(party.backend().Address())->desk;
}

TEST_F(CudaIpcTarget, StrangersAtTheDesk) {
  const std::string desk = DeskOf(*party_);
  const cuda_ipc::DialPacket unknown{.word = {9, 9, 9}};
  std::string dial(8, '\0');
  dial[0] = static_cast<char>(cuda_ipc::PacketType::kDial);
  dial.append(cuda_ipc::AsBytes(unknown));
  for (const std::string& words : {std::string("x"), std::string(4000, 'x'), dial, dial + "x"}) {
    const int fd = ConnectTo(desk);
    ASSERT_GE(fd, 0);
    ASSERT_GT(::send(fd, words.data(), words.size(), MSG_NOSIGNAL), 0);
    EXPECT_TRUE(Until([&] { return Ended(fd); })) << words.size();
    ::close(fd);
  }
  // Those that say nothing go when others come.
  std::vector<int> silent;
  for (int i = 0; i < 80; ++i) {
    silent.push_back(ConnectTo(desk));
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
                       ChildProcess::Start("CudaIpcOtherUser", {DeskOf(*party_)}));
  std::optional<int> exit;
  EXPECT_TRUE(Until([&] { return (exit = child.WaitExit(Duration::zero())).has_value(); }));
  EXPECT_EQ(exit.value_or(-1), 0);
  EXPECT_TRUE(party_->links.empty());
}

}  // namespace
}  // namespace kvxfer::testing
