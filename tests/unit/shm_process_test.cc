// The shm backend with the peer in a process of its own: death, stopping, other users, other
// namespaces. What needs root is skipped without it, and says so.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/un.h>

#include <fstream>
#include <random>
#include <sstream>

#include "kvxfer/memory.h"
#include "src/backends/shm/channel.h"
#include "src/backends/shm/wire.h"
#include "tests/unit/shm_test_util.h"

namespace kvxfer::shm_test {
namespace {

constexpr size_t kMiB = 1024 * 1024;
constexpr uid_t kNobody = 65534;

uint64_t AddressOf(const void* p) { return reinterpret_cast<uintptr_t>(p); }

std::string Text(const absl::Status& status) { return status.ToString(); }
bool Says(const absl::Status& status, std::string_view what) {
  return Text(status).find(what) != std::string::npos;
}

// --- The peer: a target that obeys commands ----------------------------------------------------

struct Served {
  std::string address;
  HostIdentity host;
  RemoteRegion region[2];  // 0: mapped, 1: attached
  std::string key[2];
};

std::string Describe(Side& side, const Side::Region regions[2]) {
  const HostIdentity host = ReadHostIdentity();
  std::ostringstream out;
  out << side.backend->Address() << ' ' << host.boot_id << ' ' << host.net_namespace << ' '
      << host.pid_namespace << ' ' << host.uid << ' ' << host.pid;
  for (int i = 0; i < 2; ++i) {
    out << ' ' << regions[i].remote.base << ' ' << regions[i].remote.bytes << ' ' << regions[i].key;
  }
  return out.str();
}

Served Parse(const std::string& text) {
  Served served;
  std::istringstream in(text);
  in >> served.address >> served.host.boot_id >> served.host.net_namespace >>
      served.host.pid_namespace >> served.host.uid >> served.host.pid;
  for (int i = 0; i < 2; ++i) {
    served.region[i].id = RegionId{static_cast<uint32_t>(i + 1)};
    served.region[i].access = Access::kReadWrite;
    in >> served.region[i].base >> served.region[i].bytes >> served.key[i];
  }
  return served;
}

// Commands: "check <way> <seed>", "fill <way> <seed>", "late", "shutdown", "downs".
std::string Obey(Side& side, std::byte* const data[2], size_t bytes, const std::string& command,
                 std::vector<HostBuffer>& late, std::vector<Side::Region>& late_regions) {
  std::istringstream in(command);
  std::string verb;
  size_t way = 0;
  uint64_t seed = 0;
  in >> verb >> way >> seed;
  if (verb == "check") return std::to_string(FirstWrong(data[way], bytes, seed));
  if (verb == "fill") Fill(data[way], bytes, seed);
  if (verb == "late") {
    late.push_back(*HostBuffer::Allocate(4096));
    late_regions.push_back(side.Register(late.back().span()));
    return std::to_string(late_regions.back().remote.base) + " " + late_regions.back().key;
  }
  if (verb == "shutdown") side.endpoints.front()->Shutdown(absl::CancelledError("by command"));
  if (verb == "downs") {
    std::string all = std::to_string(side.down.size());
    for (const auto& [endpoint, status] : side.down) all += " " + Text(status);
    return all;
  }
  return "done";
}

// The life of the peer; sleeps in poll() whenever Arm allows.
void Serve(int commands, size_t bytes) {
  Side side;
  const HostBuffer shared = *HostBuffer::Allocate(bytes);
  std::vector<std::byte> plain(bytes);
  std::byte* const data[2] = {shared.data(), plain.data()};
  const Side::Region regions[2] = {side.Register(shared.span()),
                                   side.Register({.data = plain.data(), .bytes = bytes})};
  std::vector<HostBuffer> late;
  std::vector<Side::Region> late_regions;
  Child::Tell(commands, Describe(side, regions));
  size_t greeted = 0;
  for (;;) {
    while (side.Poll() > 0) {
    }
    for (; greeted < side.endpoints.size(); ++greeted) {
      side.endpoints[greeted]->Authorize();
      Send(side.endpoints[greeted].get(), "hello");
    }
    pollfd fds[2] = {{commands, POLLIN, 0}, {side.backend->wait_fd(), POLLIN, 0}};
    if (poll(fds, 2, side.backend->Arm() ? -1 : 0) < 0) continue;
    if (fds[0].revents == 0) continue;
    const std::string command = Child::HearFrom(commands);
    if (command.empty()) return;
    Child::Tell(commands, Obey(side, data, bytes, command, late, late_regions));
  }
}

// An initiator connected to a peer that Serves.
struct Dialled {
  Side side;
  Served served;
  Endpoint* out = nullptr;
  HostBuffer buffer;
  Side::Region here;
  std::unique_ptr<RemoteKey> key[2];

  absl::Status Connect(const std::string& description) {
    served = Parse(description);
    auto endpoint = side.backend->Connect(served.address, served.host);
    if (!endpoint.ok()) return endpoint.status();
    side.endpoints.push_back(*std::move(endpoint));
    out = side.endpoints.front().get();
    if (!Drive({&side}, [this] { return !side.messages.empty() || !side.down.empty(); })) {
      return absl::DeadlineExceededError("neither connected nor down");
    }
    if (!side.down.empty()) return side.down.at(out);
    buffer = *HostBuffer::Allocate(served.region[0].bytes);
    here = side.Register(buffer.span());
    return absl::OkStatus();
  }
  absl::Status Import(int way) {
    auto imported = out->Import(served.region[way], served.key[way]);
    if (!imported.ok()) return imported.status();
    key[way] = *std::move(imported);
    return absl::OkStatus();
  }
  Piece All(int way) const {
    return {.local = AddressOf(buffer.data()),
            .remote = served.region[way].base,
            .bytes = served.region[way].bytes,
            .registration = here.registration.get(),
            .key = key[way].get()};
  }
  absl::Status Do(OpKind kind, std::span<const Piece> runs) {
    return Move({&side}, side, out, kind, runs);
  }
};

class ShmProcessTest : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ways, ShmProcessTest, testing::Values(0, 1),
                         [](const auto& way) { return way.param == 0 ? "mapped" : "attached"; });

TEST_P(ShmProcessTest, WritesAndReadsLargeMemory) {
  constexpr size_t kBytes = 64 * kMiB + 3;
  const Child child([](int fd) { Serve(fd, kBytes); });
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  ASSERT_TRUE(pair.Import(GetParam()).ok());
  Fill(pair.buffer.data(), kBytes, 11);
  const Piece all = pair.All(GetParam());
  ASSERT_TRUE(pair.Do(OpKind::kWrite, {&all, 1}).ok());
  const std::string way = std::to_string(GetParam());
  EXPECT_EQ(child.Ask("check " + way + " 11"), std::to_string(kBytes));
  child.Ask("fill " + way + " 12");
  ASSERT_TRUE(pair.Do(OpKind::kRead, {&all, 1}).ok());
  EXPECT_EQ(FirstWrong(pair.buffer.data(), kBytes, 12), kBytes);
}

TEST_P(ShmProcessTest, AKilledTargetEndsEveryOpAtOnceWithTheCause) {
  Child child([](int fd) { Serve(fd, kMiB); });
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  ASSERT_TRUE(pair.Import(GetParam()).ok());
  const Piece all = pair.All(GetParam());
  uint64_t posted = 0;
  Time killed{};
  const Time end = Now() + kPatience;
  while (pair.side.down.empty()) {
    ASSERT_LT(Now(), end);
    const Op op{.kind = OpKind::kWrite, .id = posted + 1, .transfer = 5, .runs = {&all, 1}};
    posted += pair.out->Post({&op, 1});
    pair.side.Poll();
    if (posted >= 20 && killed == Time{}) {
      child.Kill(SIGKILL);
      killed = Now();
    }
  }
  EXPECT_LT(Now() - killed, std::chrono::seconds(2));
  EXPECT_EQ(pair.side.completions.size(), posted);
  EXPECT_TRUE(Says(pair.side.down.at(pair.out), "process " + std::to_string(child.pid())));
  EXPECT_TRUE(Says(pair.side.down.at(pair.out), "exited")) << pair.side.down.at(pair.out);
  EXPECT_EQ(pair.side.after_down, 0u);
}

TEST_P(ShmProcessTest, AStoppedTargetIsStillWrittenAndFenced) {
  const Child child([](int fd) { Serve(fd, kMiB); });
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  ASSERT_TRUE(pair.Import(GetParam()).ok());
  Fill(pair.buffer.data(), kMiB, 21);
  child.Kill(SIGSTOP);
  const Piece all = pair.All(GetParam());
  EXPECT_TRUE(pair.Do(OpKind::kWrite, {&all, 1}).ok());
  const Op op{.kind = OpKind::kWrite, .id = 1, .transfer = 6, .runs = {&all, 1}};
  ASSERT_EQ(pair.out->Post({&op, 1}), 1u);
  pair.out->Fence(6);
  EXPECT_TRUE(Drive({&pair.side}, [&] { return pair.side.fenced.size() == 1; }));
  EXPECT_EQ(pair.side.completions.at(1).code(), absl::StatusCode::kCancelled);
  child.Kill(SIGCONT);
  EXPECT_EQ(child.Ask("check " + std::to_string(GetParam()) + " 21"), std::to_string(kMiB));
}

// The parent is the target; the child writes the whole of its memory again and again.
void WriteForEver(int commands) {
  const std::string description = Child::HearFrom(commands);
  Dialled pair;
  const int way = description.back() == '1' ? 1 : 0;
  if (!pair.Connect(description.substr(0, description.size() - 2)).ok()) _exit(2);
  if (!pair.Import(way).ok()) _exit(3);
  const Piece all = pair.All(way);
  Child::Tell(commands, "writing");
  uint64_t id = 1;
  while (pair.side.down.empty()) {
    std::memset(pair.buffer.data(), static_cast<int>(id), pair.buffer.size());
    const Op op{.kind = OpKind::kWrite, .id = id, .transfer = 1, .runs = {&all, 1}};
    id += pair.out->Post({&op, 1});
    pair.side.Poll();
  }
  Child::Tell(commands, Text(pair.side.down.at(pair.out)));
}

struct Target {
  Side side;
  HostBuffer shared = *HostBuffer::Allocate(kMiB);
  std::vector<std::byte> plain = std::vector<std::byte>(kMiB);
  Side::Region regions[2] = {side.Register(shared.span()),
                             side.Register({.data = plain.data(), .bytes = kMiB})};

  // Until the child's bytes are seen to come in.
  void AwaitWrites(const Child& child, int way) {
    const std::string description = Describe(side, regions) + " " + std::to_string(way);
    ASSERT_EQ(write(child.fd(), description.data(), description.size()),
              static_cast<ssize_t>(description.size()));
    ASSERT_TRUE(Drive({&side}, [this] { return !side.endpoints.empty(); }));
    side.endpoints.front()->Authorize();
    ASSERT_TRUE(Send(side.endpoints.front().get(), "hello"));
    ASSERT_EQ(child.Hear(), "writing");
    const volatile std::byte* last = (way == 0 ? shared.data() : plain.data()) + kMiB - 1;
    ASSERT_TRUE(Drive({&side}, [last] { return *last != std::byte{0}; }));
  }
  // Whether the memory is the same after a while in which a copier would have changed it.
  bool Quiet(int way) const {
    const std::byte* data = way == 0 ? shared.data() : plain.data();
    const std::vector<std::byte> before(data, data + kMiB);
    const Time end = Now() + std::chrono::milliseconds(50);
    while (Now() < end) {
      if (std::memcmp(before.data(), data, kMiB) != 0) return false;
    }
    return true;
  }
};

TEST_P(ShmProcessTest, AKilledInitiatorWritesNothingAfterDown) {
  for (int round = 0; round < 5; ++round) {
    Child child(WriteForEver);
    Target target;
    target.AwaitWrites(child, GetParam());
    if (HasFatalFailure()) return;
    child.Kill(SIGKILL);
    ASSERT_TRUE(Drive({&target.side}, [&] { return !target.side.down.empty(); }));
    EXPECT_TRUE(Says(target.side.down.begin()->second, "exited"))
        << target.side.down.begin()->second;
    EXPECT_TRUE(target.Quiet(GetParam()));
  }
}

TEST_P(ShmProcessTest, ShutdownByTheTargetIsQuietOnceDown) {
  for (int round = 0; round < 5; ++round) {
    const Child child(WriteForEver);
    Target target;
    target.AwaitWrites(child, GetParam());
    if (HasFatalFailure()) return;
    target.side.endpoints.front()->Shutdown(absl::CancelledError("the cache is going"));
    ASSERT_TRUE(Drive({&target.side}, [&] { return !target.side.down.empty(); }));
    EXPECT_TRUE(target.Quiet(GetParam()));
    EXPECT_NE(child.Hear().find("the cache is going"), std::string::npos);
  }
}

TEST_P(ShmProcessTest, AStoppedInitiatorKeepsTheTargetFromBeingDown) {
  const Child child(WriteForEver);
  Target target;
  target.AwaitWrites(child, GetParam());
  if (HasFatalFailure()) return;
  child.Kill(SIGSTOP);
  target.side.endpoints.front()->Shutdown(absl::CancelledError("stop"));
  EXPECT_FALSE(Drive(
      {&target.side}, [&] { return !target.side.down.empty(); }, std::chrono::milliseconds(100)));
  child.Kill(SIGCONT);
  EXPECT_TRUE(Drive({&target.side}, [&] { return !target.side.down.empty(); }));
  EXPECT_TRUE(target.Quiet(GetParam()));
}

TEST(ShmProcess, ARegionRegisteredLate) {
  const Child child([](int fd) { Serve(fd, 4096); });
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  for (int i = 0; i < 100; ++i) {
    std::istringstream told(child.Ask("late"));
    RemoteRegion region{.id = RegionId{99}, .bytes = 4096, .access = Access::kReadWrite};
    std::string key;
    told >> region.base >> key;
    auto imported = pair.out->Import(region, key);
    ASSERT_TRUE(imported.ok()) << imported.status();
    const Piece run{.local = AddressOf(pair.buffer.data()),
                    .remote = region.base,
                    .bytes = 4096,
                    .registration = pair.here.registration.get(),
                    .key = imported->get()};
    EXPECT_TRUE(pair.Do(OpKind::kWrite, {&run, 1}).ok());
  }
}

TEST(ShmProcess, ATargetThatExecsIsDown) {
  const Child child([](int fd) {
    Side side;
    const HostBuffer shared = *HostBuffer::Allocate(4096);
    const Side::Region regions[2] = {side.Register(shared.span()), side.Register(shared.span())};
    Child::Tell(fd, Describe(side, regions));
    if (!Drive({&side}, [&] { return side.endpoints.size() == 1; })) _exit(1);
    side.endpoints.front()->Authorize();
    Send(side.endpoints.front().get(), "hello");
    Child::HearFrom(fd);
    execlp("sleep", "sleep", "60", nullptr);
  });
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  ASSERT_EQ(write(child.fd(), "x", 1), 1);
  ASSERT_TRUE(Drive({&pair.side}, [&] { return !pair.side.down.empty(); }));
  EXPECT_TRUE(Says(pair.side.down.at(pair.out), "exited or dropped"));
}

// A target that runs another program while a process that it has made, without fork handlers,
// holds its socket.
void ExecBesideACopy(int fd) {
  Side side;
  std::vector<std::byte> plain(4096);
  const Side::Region region = side.Register({.data = plain.data(), .bytes = plain.size()});
  const Side::Region again = side.Register({.data = plain.data(), .bytes = plain.size()});
  const Side::Region regions[2] = {{nullptr, region.remote, region.key},
                                   {nullptr, again.remote, again.key}};
  Child::Tell(fd, Describe(side, regions));
  if (!Drive({&side}, [&] { return side.endpoints.size() == 1; })) _exit(1);
  side.endpoints.front()->Authorize();
  Send(side.endpoints.front().get(), "hello");
  Child::HearFrom(fd);
  const pid_t parent = getpid();
  if (_Fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(0);  // it went before that
    alarm(60);
    for (;;) pause();
  }
  execlp("sleep", "sleep", "60", nullptr);
  _exit(1);
}

TEST(ShmProcess, NothingMovesOnceTheTargetRunsAnotherProgram) {
  const Child child(ExecBesideACopy);
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  ASSERT_TRUE(pair.Import(1).ok());
  const Piece all = pair.All(1);
  ASSERT_TRUE(pair.Do(OpKind::kWrite, {&all, 1}).ok());
  ASSERT_EQ(write(child.fd(), "x", 1), 1);
  const Time end = Now() + kPatience;
  std::string program;
  while (program != "sleep" && Now() < end) {
    std::ifstream("/proc/" + std::to_string(child.pid()) + "/comm") >> program;
  }
  ASSERT_EQ(program, "sleep");
  for (const OpKind kind : {OpKind::kWrite, OpKind::kRead}) {
    const absl::Status moved = pair.Do(kind, {&all, 1});
    EXPECT_EQ(moved.code(), absl::StatusCode::kUnavailable) << moved;
    EXPECT_TRUE(Says(moved, "exec")) << moved;
  }
  EXPECT_TRUE(pair.side.down.empty());  // the copy of the socket hides it
}

TEST(ShmProcess, AForkedChildOfTheInitiatorHoldsNothingUp) {
  const Child child([](int fd) { Serve(fd, 4096); });
  Dialled pair;
  ASSERT_TRUE(pair.Connect(child.Hear()).ok());
  // Keeps a copy of every descriptor: no fork handler runs.
  const pid_t copy = _Fork();
  if (copy == 0) {
    alarm(60);
    for (;;) pause();
  }
  pair.out->Shutdown(absl::CancelledError("over"));
  const Time end = Now() + kPatience;
  std::string downs;
  do {
    downs = child.Ask("downs");
  } while (downs[0] == '0' && Now() < end);
  EXPECT_NE(downs.find("over"), std::string::npos) << downs;
  kill(copy, SIGKILL);
  waitpid(copy, nullptr, 0);
}

// --- Other users and namespaces ----------------------------------------------------------------

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
    return "mapped; " + Text(pair.Import(1)) + "; " + pair.out->Describe();
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
  const auto address = shm::DecodeAddress(side.backend->Address());
  ASSERT_TRUE(address.ok());
  const Child child([&address](int fd) {
    BecomeNobody();
    shm::UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::memcpy(name.sun_path + 1, address->socket.data(), address->socket.size());
    const auto length =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + address->socket.size());
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&name), length) != 0) _exit(7);
    Child::Tell(fd, "connected");
    pollfd wait{socket.get(), POLLIN, 0};
    poll(&wait, 1, 30'000);
    shm::Channel channel(std::move(socket));
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
