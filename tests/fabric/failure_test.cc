// The contract where something is wrong: keys, bounds and rights, what is closed in the middle of
// it, other processes and their deaths.
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/fabric/pair.h"
#include "tests/support/child_process.h"

namespace kvxfer::testing {
namespace {

// With shm the target refuses what waits for its delivery, and the initiator never hears of it;
// what does not wait is written by cross-memory attach, whatever the key.
bool SaysNo() { return Provider() != "shm"; }

// tcp;ofi_rxm looks at the key when a write begins: the rest of one that has begun lands in a
// region that was closed since. Only closing the endpoint ends it.
bool RegionsFence() { return Provider() != "tcp;ofi_rxm"; }

class FabricFailureContract : public FabricPair {
 protected:
  // A write of `memory` that must not land: it fails, and nothing of it comes afterwards.
  void ExpectRefused(const RemoteMemory& memory, Memory* from, const Write& write) {
    // With tcp;ofi_rxm what was refused takes the connection with it: there must be one again.
    Memory other(&target, 64);
    ASSERT_TRUE(Until(
        [&] { return Put(from, other, {.bytes = 1}) == 0 && AllEnded() && TakeErrors() == 0; }));
    const ssize_t posted = Insist([&] { return initiator.Post(peer, from, memory, write); });
    if (posted != 0) return;
    if (SaysNo()) {
      ASSERT_TRUE(AllEnded());
      EXPECT_EQ(TakeErrors(), 1);
    }
    Linger(std::chrono::milliseconds(5));
  }

  // Writes until there is no room or there are `most`.
  void Fill(Memory* from, const RemoteMemory& to, size_t bytes, int most) {
    for (int i = 0; i < most; ++i) {
      if (initiator.Post(peer, from, to, {.bytes = bytes}) != 0) return;
    }
  }

  void ExpectUnchangedFromNowOn(Memory* memory) {
    const uint64_t digest = Digest(memory->bytes());
    Linger(std::chrono::milliseconds(50));
    EXPECT_EQ(Digest(memory->bytes()), digest);
  }
};

TEST_F(FabricFailureContract, AWrongKeyWritesNothing) {
  Memory from(&initiator, 4096);
  Memory to(&target, 4096);
  Pattern(1).Fill(from.bytes());
  RemoteMemory wrong = to.remote();
  wrong.key ^= 0x5a5a;
  for (uint8_t& byte : wrong.raw) byte = static_cast<uint8_t>(byte ^ 0x5a);
  ExpectRefused(wrong, &from, {.bytes = 4096});
  EXPECT_EQ(FirstNonZero(to.bytes()), kNoMismatch);
}

TEST_F(FabricFailureContract, OutOfBoundsWritesNothing) {
  Memory from(&initiator, 4096);
  std::vector<std::byte> bytes(3 * 4096);
  Fid<fid_mr> region;
  ASSERT_EQ(target.Register(bytes.data() + 4096, 4096, kAllAccess, 0, &region), 0);
  target.Enable(region.get());
  const RemoteMemory remote = target.Tell(region.get(), bytes.data() + 4096);
  Pattern(1).Fill(from.bytes());
  ExpectRefused(remote, &from, {.to = 1, .bytes = 4096});
  EXPECT_EQ(FirstNonZero(bytes), kNoMismatch);
}

TEST_F(FabricFailureContract, BelowTheRegionWritesNothing) {
  Memory from(&initiator, 4096);
  std::vector<std::byte> bytes(3 * 4096);
  Fid<fid_mr> region;
  ASSERT_EQ(target.Register(bytes.data() + 4096, 4096, kAllAccess, 0, &region), 0);
  target.Enable(region.get());
  RemoteMemory remote = target.Tell(region.get(), bytes.data() + 4096);
  remote.base -= 1;
  Pattern(1).Fill(from.bytes());
  ExpectRefused(remote, &from, {.bytes = 4096});
  EXPECT_EQ(FirstNonZero(bytes), kNoMismatch);
}

TEST_F(FabricFailureContract, WithoutTheRightNothingIsWritten) {
  Memory from(&initiator, 4096);
  Memory to(&target, 4096, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ);
  Pattern(1).Fill(from.bytes());
  ExpectRefused(to.remote(), &from, {.bytes = 4096});
  EXPECT_EQ(FirstNonZero(to.bytes()), kNoMismatch);
}

TEST_F(FabricFailureContract, AClosedRegionIsQuiet) {
  const size_t bytes = Fitting(1 << 20);
  Memory from(&initiator, bytes);
  Memory to(&target, bytes);
  for (int round = 0; round < 5; ++round) {
    Pattern(static_cast<uint64_t>(round)).Fill(from.bytes());
    Memory region(&target, bytes);
    Fill(&from, region.remote(), bytes, 40);
    for (int i = 0; i < round * 10; ++i) Step();
    region.Deregister();
    if (RegionsFence()) ExpectUnchangedFromNowOn(&region);
    if (!SaysNo()) continue;
    EXPECT_TRUE(AllEnded());
    TakeErrors();
    std::fill(region.bytes().begin(), region.bytes().end(), std::byte{0});
    ExpectRefused(region.remote(), &from, {.bytes = bytes});
    EXPECT_EQ(FirstNonZero(region.bytes()), kNoMismatch);
  }
}

TEST_F(FabricFailureContract, AClosedEndpointIsQuiet) {
  const size_t bytes = Fitting(1 << 20);
  Memory from(&initiator, bytes);
  Memory to(&target, bytes);
  Pattern(3).Fill(from.bytes());
  Fill(&from, to.remote(), bytes, 40);
  for (int i = 0; i < 20; ++i) Step();
  target.CloseEndpoint();
  const uint64_t digest = Digest(to.bytes());
  for (int i = 0; i < 10; ++i) initiator.Post(peer, &from, to.remote(), {.bytes = bytes});
  Linger(std::chrono::milliseconds(50));
  EXPECT_EQ(Digest(to.bytes()), digest);
}

TEST_F(FabricFailureContract, TheInitiatorMayCloseInTheMiddleOfIt) {
  const size_t bytes = Fitting(1 << 18);
  Memory to(&target, bytes);
  {
    Memory from(&initiator, bytes);
    Pattern(3).Fill(from.bytes());
    Fill(&from, to.remote(), bytes, 40);
    initiator.CloseEndpoint();
    // The source is the application's again; nothing reads it any more.
    std::fill(from.bytes().begin(), from.bytes().end(), kPoison);
    Linger(std::chrono::milliseconds(20));
  }
  const auto poisoned = [](std::byte b) { return b == kPoison; };
  EXPECT_FALSE(IsFake() && std::any_of(to.data(), to.data() + bytes, poisoned));
}

// --- other processes ----------------------------------------------------------------------------

constexpr size_t kBlock = 4096;
constexpr size_t kBlocks = 64;

struct Greeting {
  char name[256] = {};
  uint64_t name_bytes = 0;
  RemoteMemory memory{};
};

Greeting Greet(const Side& side, const Memory& memory) {
  Greeting greeting;
  const std::string name = side.name();
  greeting.name_bytes = name.size();
  std::copy(name.begin(), name.end(), greeting.name);
  greeting.memory = memory.remote();
  return greeting;
}

// From now on nothing lands.
void MakeQuiet(Side* side, Memory* memory) {
  if (!RegionsFence()) side->CloseEndpoint();
  memory->Deregister();
}

// Both ways over a socket; false: the other side is gone.
template <typename T>
bool Give(int fd, const T& value) {
  return send(fd, &value, sizeof(value), MSG_NOSIGNAL) == sizeof(value);
}
template <typename T>
bool Take(int fd, T* value) {
  return recv(fd, value, sizeof(*value), MSG_WAITALL) == sizeof(*value);
}

fi_addr_t InsertGreeting(Side* side, const Greeting& greeting) {
  return side->Insert(std::string(greeting.name, greeting.name_bytes));
}

// Takes blocks until the other side says how many there are; they are there then.
KVXFER_CHILD(FabricTargetProcess) {
  const int fd = std::stoi(arguments.back());
  Side side;
  Memory memory(&side, kBlock * kBlocks);
  CHILD_EXPECT(Give(fd, Greet(side, memory)));
  uint64_t expected = 0;
  while (recv(fd, &expected, sizeof(expected), MSG_DONTWAIT) < 0) side.Poll();
  CHILD_EXPECT(StepUntil([&] { side.Poll(); }, [&] { return side.arrived.size() >= expected; }));
  CHILD_EXPECT(Pattern(9).Mismatch(memory.bytes()) == kNoMismatch);
  CHILD_EXPECT(side.arrived.size() == expected);
  CHILD_EXPECT(Give(fd, expected));
  // Polls on for the last answers to leave.
  while (recv(fd, &expected, sizeof(expected), MSG_DONTWAIT) < 0) side.Poll();
  return 0;
}

// Writes without end.
KVXFER_CHILD(FabricInitiatorProcess) {
  const int fd = std::stoi(arguments.back());
  Side side;
  Memory memory(&side, kBlock * kBlocks);
  CHILD_EXPECT(Give(fd, Greet(side, memory)));
  Greeting other;
  CHILD_EXPECT(Take(fd, &other));
  const fi_addr_t peer = InsertGreeting(&side, other);
  Pattern(9).Fill(memory.bytes());
  while (true) {
    side.Post(peer, &memory, other.memory, {.bytes = memory.bytes().size()});
    side.Poll();
    side.ended.clear();
  }
}

class Other {
 public:
  explicit Other(std::string_view child) {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    auto started = ChildProcess::Start(child, {}, fds[1]);
    EXPECT_TRUE(started.ok()) << started.status();
    if (started.ok()) process = *std::move(started);
    prefix = absl::StrCat(process.pid(), ":");
    close(fds[1]);
    fd = fds[0];
    EXPECT_TRUE(Take(fd, &greeting));
  }
  ~Other() {
    close(fd);
    if (Provider() != "shm") return;
    // Who is killed leaves its segments behind.
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      const std::string name = entry.path().filename();
      if (name.starts_with(prefix)) std::filesystem::remove(entry.path());
    }
  }
  Other(const Other&) = delete;
  Other& operator=(const Other&) = delete;

  ChildProcess process;
  std::string prefix;
  int fd = -1;
  Greeting greeting;
};

TEST(FabricProcessContract, AnotherProcessGetsEveryByte) {
  Other other("FabricTargetProcess");
  Side side;
  Memory memory(&side, kBlock * kBlocks);
  Pattern(9).Fill(memory.bytes());
  const fi_addr_t peer = InsertGreeting(&side, other.greeting);
  const bool data = side.info().domain_attr->cq_data_size > 0;
  for (size_t i = 0; i < kBlocks; ++i) {
    const Write write = {
        .from = i * kBlock, .to = i * kBlock, .bytes = kBlock, .has_data = data, .data = i};
    ssize_t result = -FI_EAGAIN;
    ASSERT_TRUE(StepUntil([&] { side.Poll(); },
                          [&] {
                            result = side.Post(peer, &memory, other.greeting.memory, write);
                            return result != -FI_EAGAIN;
                          }));
    ASSERT_EQ(result, 0);
  }
  EXPECT_TRUE(StepUntil([&] { side.Poll(); }, [&] { return side.outstanding() == 0; }));
  uint64_t count = data ? kBlocks : 0;
  ASSERT_TRUE(Give(other.fd, count));
  ASSERT_TRUE(Take(other.fd, &count));
  ASSERT_TRUE(Give(other.fd, count));
  EXPECT_EQ(other.process.WaitExit(kAmple), 0);
}

// Ops to a process that was killed fail or are never heard of again; everything can be closed.
TEST(FabricProcessContract, AKilledTargetHoldsNobodyUp) {
  Other other("FabricTargetProcess");
  Side side;
  Memory memory(&side, kBlock * kBlocks);
  const fi_addr_t peer = InsertGreeting(&side, other.greeting);
  const auto write = [&] {
    return side.Post(peer, &memory, other.greeting.memory, {.bytes = kBlock * kBlocks});
  };
  for (int i = 0; i < 200; ++i) {
    write();
    side.Poll();
  }
  other.process.Signal(SIGKILL);
  EXPECT_EQ(other.process.WaitExit(kAmple), 128 + SIGKILL);
  for (int i = 0; i < 10; ++i) write();
  if (!IsFake()) {
    StepUntil([&] { side.Poll(); },
              [end = Now() + std::chrono::milliseconds(300)] { return Now() > end; });
    return;
  }
  // All that was posted before may have come through, and the queue may have been full since.
  EXPECT_TRUE(StepUntil([&] { side.Poll(); }, [&] { return write() != -FI_EAGAIN; }));
  EXPECT_TRUE(StepUntil([&] { side.Poll(); }, [&] { return side.outstanding() == 0; }));
  EXPECT_NE(side.ended.back().error, 0);
}

// What a killed process had on its way lands, or does not; nothing lands in a closed region.
TEST(FabricProcessContract, AKilledInitiatorWritesNoMore) {
  for (int round = 0; round < 3; ++round) {
    Other other("FabricInitiatorProcess");
    Side side;
    Memory memory(&side, kBlock * kBlocks);
    InsertGreeting(&side, other.greeting);
    ASSERT_TRUE(Give(other.fd, Greet(side, memory)));
    ASSERT_TRUE(StepUntil([&] { side.Poll(); },
                          [&] { return FirstNonZero(memory.bytes()) != kNoMismatch; }));
    const auto linger = [&](Duration time) {
      StepUntil([&] { side.Poll(); }, [end = Now() + time] { return Now() > end; });
    };
    linger(std::chrono::milliseconds(10 * round));
    other.process.Signal(SIGKILL);
    EXPECT_EQ(other.process.WaitExit(kAmple), 128 + SIGKILL);
    MakeQuiet(&side, &memory);
    std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0});
    linger(std::chrono::milliseconds(30));
    EXPECT_EQ(FirstNonZero(memory.bytes()), kNoMismatch);
  }
}

// A stopped process: what it had posted may go on or wait, nobody else is held up.
TEST(FabricProcessContract, AStoppedInitiatorHoldsNobodyUp) {
  Other other("FabricInitiatorProcess");
  Side side;
  Memory memory(&side, kBlock * kBlocks);
  InsertGreeting(&side, other.greeting);
  ASSERT_TRUE(Give(other.fd, Greet(side, memory)));
  ASSERT_TRUE(
      StepUntil([&] { side.Poll(); }, [&] { return FirstNonZero(memory.bytes()) != kNoMismatch; }));
  other.process.Signal(SIGSTOP);
  other.process.WaitStopped();
  const auto linger = [&] {
    StepUntil([&] { side.Poll(); },
              [end = Now() + std::chrono::milliseconds(20)] { return Now() > end; });
  };
  linger();
  MakeQuiet(&side, &memory);
  std::fill(memory.bytes().begin(), memory.bytes().end(), std::byte{0});
  other.process.Signal(SIGCONT);
  linger();
  EXPECT_EQ(FirstNonZero(memory.bytes()), kNoMismatch);
}

}  // namespace
}  // namespace kvxfer::testing
