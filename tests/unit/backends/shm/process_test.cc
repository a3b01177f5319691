// The shm backend with the peer in a process of its own: large memory, death, stopping.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <sstream>

#include "kvxfer/memory.h"
#include "tests/unit/backends/shm/peer_util.h"
#include "tests/unit/backends/shm/test_util.h"

namespace kvxfer::shm_test {
namespace {

class ShmProcessTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ways, ShmProcessTest, ::testing::Values(0, 1),
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
  const RunBlocks all({pair.All(GetParam())});
  uint64_t posted = 0;
  Time killed{};
  const Time end = Now() + kPatience;
  while (pair.side.down.empty()) {
    ASSERT_LT(Now(), end);
    const Op op{.kind = OpKind::kWrite, .id = posted + 1, .transfer = 5, .blocks = all.range()};
    posted += pair.out->Post(op) ? 1 : 0;
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
  const RunBlocks blocks({all});
  const Op op{.kind = OpKind::kWrite, .id = 1, .transfer = 6, .blocks = blocks.range()};
  ASSERT_TRUE(pair.out->Post(op));
  pair.out->Fence({.transfer = 6});
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
  const RunBlocks all({pair.All(way)});
  Child::Tell(commands, "writing");
  uint64_t id = 1;
  while (pair.side.down.empty()) {
    std::memset(pair.buffer.data(), static_cast<int>(id), pair.buffer.size());
    const Op op{.kind = OpKind::kWrite, .id = id, .transfer = 1, .blocks = all.range()};
    id += pair.out->Post(op) ? 1 : 0;
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
    const Piece run = RunBetween(pair.here, region, 4096, imported->get());
    EXPECT_TRUE(pair.Do(OpKind::kWrite, {&run, 1}).ok());
  }
}

}  // namespace
}  // namespace kvxfer::shm_test
