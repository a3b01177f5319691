// What lands, where, and when the target hears of it.
#include <numeric>

#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

class TcpData : public TcpPair {
 protected:
  // Moves all of the pattern in ops of up to 1 MiB over both rails, the last with immediate 77.
  void MoveAll(OpKind kind) {
    std::vector<std::vector<OpRun>> runs;
    std::vector<Op> ops;
    const size_t max = a->backend->capabilities().max_op_bytes;
    for (size_t at = 0; at < source.size(); at += max) {
      runs.push_back({RunAt(at, at, std::min(max, source.size() - at))});
    }
    for (size_t i = 0; i < runs.size(); ++i) {
      ops.push_back({.kind = kind,
                     .has_immediate = kind == OpKind::kWrite && i + 1 == runs.size(),
                     .rail = static_cast<uint32_t>(i % Rails()),
                     .immediate = 77,
                     .id = i + 1,
                     .transfer = 9,
                     .blocks = Blocks(runs[i])});
    }
    ASSERT_TRUE(PostAll(ops));
    ASSERT_TRUE(Settle(ops.size()));
    for (const auto& [id, status] : a->completions) EXPECT_TRUE(status.ok()) << id << status;
  }
};

TEST_F(TcpData, WritesOfEverySizeLandWholeAndOnlyThere) {
  for (const size_t bytes : {size_t{1}, size_t{7}, size_t{4095}, size_t{4096}, size_t{1} << 20,
                             (size_t{64} << 20) + 3}) {
    SCOPED_TRACE(bytes);
    Up(bytes, Streams(1));
    MoveAll(OpKind::kWrite);
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !b->immediates.empty(); }));
    EXPECT_EQ(b->immediates, std::vector<uint32_t>{77});
    EXPECT_TRUE(source == sink);
    endpoint.reset();
    b->accepted.clear();
  }
}

TEST_F(TcpData, ReadsOfEverySizeLandWhole) {
  for (const size_t bytes : {size_t{1}, size_t{7}, size_t{4095}, size_t{4096}, size_t{1} << 20,
                             (size_t{64} << 20) + 3}) {
    SCOPED_TRACE(bytes);
    Up(bytes);
    std::swap(source, sink);
    std::copy(sink.begin(), sink.end(), source.begin());
    std::fill(source.begin(), source.end(), std::byte{0});
    // The vectors were swapped with their buffers: register anew.
    sink_registration.reset();
    sink_registration = b->Register(sink.data(), bytes, kRkey, Access::kRemoteRead);
    MoveAll(OpKind::kRead);
    EXPECT_TRUE(source == sink);
    endpoint.reset();
    b->accepted.clear();
  }
}

// Whoever posts may not poll for long: Post itself sends what is small and what the socket takes.
TEST_F(TcpData, ABurstLeavesWithoutAPoll) {
  constexpr size_t kBytes = 16 * 1024;
  Up(6 * kBytes, Streams(1));
  std::vector<std::vector<OpRun>> runs;
  for (size_t i = 0; i < 6; ++i) runs.push_back({RunAt(i * kBytes, i * kBytes, kBytes)});
  for (size_t i = 0; i < runs.size(); ++i) {
    ASSERT_TRUE(endpoint->Post({.has_immediate = true,
                                .immediate = static_cast<uint32_t>(i),
                                .id = i + 1,
                                .transfer = i + 1,
                                .blocks = Blocks(runs[i])}));
  }
  ASSERT_TRUE(Drive({b.get()}, [&] { return b->immediates.size() == runs.size(); }));
  EXPECT_TRUE(source == sink);
  ASSERT_TRUE(Settle(runs.size()));
}

TEST_F(TcpData, TheImmediateComesAfterTheBytesOfItsRail) {
  Up(16 << 20);
  std::vector<OpRun> runs;
  for (size_t i = 0; i < 16; ++i) runs.push_back(RunAt(i << 20, i << 20, 1 << 20));
  std::vector<Op> ops;
  for (size_t i = 0; i < 16; ++i) {
    ops.push_back({.has_immediate = true,
                   .rail = static_cast<uint32_t>(i % 2),
                   .immediate = static_cast<uint32_t>(i),
                   .id = i + 1,
                   .transfer = 5,
                   .blocks = Blocks({runs[i]})});
  }
  std::span<const Op> left(ops);
  size_t seen = 0;
  ASSERT_TRUE(Drive({a.get()}, [&] {
    left = left.subspan(PostSome(left));
    b->Poll(1);
    for (; seen < b->immediates.size(); ++seen) {
      const size_t at = size_t{b->immediates[seen]} << 20;
      EXPECT_EQ(std::memcmp(sink.data() + at, source.data() + at, 1 << 20), 0) << at;
    }
    return seen == 16;
  }));
}

TEST_F(TcpData, AThousandScatteredRunsGoInOneOp) {
  constexpr size_t kRuns = 1024;
  constexpr size_t kBytes = 1000;
  Up(kRuns * 2 * kBytes);
  std::vector<OpRun> runs;
  for (size_t i = 0; i < kRuns; ++i) {
    runs.push_back(RunAt(i * kBytes, (kRuns - 1 - i) * 2 * kBytes, kBytes));
  }
  const Op op{
      .has_immediate = true, .immediate = 1, .id = 1, .transfer = 1, .blocks = Blocks(runs)};
  ASSERT_TRUE(PostAll({op}));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !b->immediates.empty(); }));
  std::vector<std::byte> expected(sink.size());
  for (size_t i = 0; i < kRuns; ++i) {
    std::copy_n(source.begin() + static_cast<ptrdiff_t>(i * kBytes), kBytes,
                expected.begin() + static_cast<ptrdiff_t>((kRuns - 1 - i) * 2 * kBytes));
  }
  EXPECT_TRUE(sink == expected);
}

// Also where the kernel takes frames in parts, and where neighbours go as one run.
TEST_F(TcpData, PagedBlocksLandWhereTheirIdsSay) {
  for (const size_t bytes : {size_t{24}, size_t{1000}, size_t{4096}}) {
    SCOPED_TRACE(bytes);
    constexpr uint32_t kBlocks = 6000;
    constexpr uint32_t kEach = 256;  // of one op
    Up(kBlocks * bytes);
    std::vector<uint32_t> from(kBlocks);
    std::iota(from.begin(), from.end(), 0);
    std::vector<uint32_t> to = from;
    // Shuffled in groups of three, which stay neighbours.
    std::mt19937_64 random(bytes);
    for (uint32_t i = kBlocks / 3 - 1; i > 0; --i) {
      const auto j = static_cast<uint32_t>(random() % (i + 1));
      std::swap_ranges(to.begin() + 3 * i, to.begin() + 3 * i + 3, to.begin() + 3 * j);
    }
    PagedRegion local{.base = reinterpret_cast<uint64_t>(source.data()),
                      .block_bytes = bytes,
                      .stride = bytes,
                      .count = kBlocks};
    PagedRegion remote = local;
    remote.base = reinterpret_cast<uint64_t>(sink.data());
    const std::array<BlockPair, 1> pairs{BlockPair{.local = local,
                                                   .remote = remote,
                                                   .local_region = 0,
                                                   .remote_region = 0,
                                                   .id_count = kBlocks}};
    const std::array<const Registration*, 1> registrations{source_registration.get()};
    const std::array<const RemoteKey*, 1> keys{key.get()};
    const BlockView view{.pairs = pairs,
                         .local_ids = from.data(),
                         .remote_ids = to.data(),
                         .registrations = registrations,
                         .keys = keys};
    for (const OpKind kind : {OpKind::kWrite, OpKind::kRead}) {
      std::vector<Op> ops;
      for (uint32_t at = 0; at < kBlocks; at += kEach) {
        const uint32_t count = std::min(kEach, kBlocks - at);
        ops.push_back(
            {.kind = kind,
             .has_immediate = kind == OpKind::kWrite,
             .rail = at / kEach % Rails(),
             .id = at + 1,
             .transfer = 1,
             .blocks = {
                 .view = &view, .first = {.id = at}, .bytes = count * bytes, .pieces = count}});
      }
      ASSERT_TRUE(PostAll(ops));
      ASSERT_TRUE(Settle(ops.size()));
      if (kind == OpKind::kRead) break;
      ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == ops.size(); }));
      for (uint32_t i = 0; i < kBlocks; ++i) {
        ASSERT_EQ(std::memcmp(&sink[to[i] * bytes], &source[i * bytes], bytes), 0) << i;
      }
      std::fill(source.begin(), source.end(), std::byte{0});
      a->completions.clear();
    }
    for (uint32_t i = 0; i < kBlocks; ++i) {
      ASSERT_EQ(std::memcmp(&sink[to[i] * bytes], &source[i * bytes], bytes), 0) << i;
    }
    EXPECT_TRUE(source == Pattern(source.size(), 1));
    endpoint.reset();
    b->accepted.clear();
  }
}

TEST_F(TcpData, AnOpWithoutBytesCarriesItsImmediate) {
  Up(16);
  const std::vector<OpRun> empty{RunAt(16, 16, 0)};
  ASSERT_TRUE(PostAll(
      {{.has_immediate = true, .immediate = 0xFFFFFFFF, .id = 1, .transfer = 1},
       {.has_immediate = true, .immediate = 2, .id = 2, .transfer = 1, .blocks = Blocks(empty)},
       {.kind = OpKind::kRead, .id = 3, .transfer = 1}}));
  ASSERT_TRUE(Settle(3));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == 2; }));
  EXPECT_EQ(b->immediates, (std::vector<uint32_t>{0xFFFFFFFF, 2}));
  for (const auto& [id, status] : a->completions) EXPECT_TRUE(status.ok()) << id << status;
}

TEST_F(TcpData, ManySmallOpsKeepTheOrderOfTheirRailWithOneEventAPoll) {
  Up(4096);
  const std::vector<OpRun> run{RunAt(0, 0, 64)};
  std::vector<Op> ops;
  for (uint32_t i = 0; i < 3000; ++i) {
    ops.push_back(
        {.has_immediate = true, .immediate = i, .id = i + 1, .transfer = 1, .blocks = Blocks(run)});
  }
  std::span<const Op> left(ops);
  ASSERT_TRUE(Drive({}, [&] {
    left = left.subspan(PostSome(left));
    a->Poll(1);
    b->Poll(1);
    return b->immediates.size() == 3000 && a->completions.size() == 3000;
  }));
  EXPECT_TRUE(std::is_sorted(b->immediates.begin(), b->immediates.end()));
}

TEST_F(TcpData, RandomOpsOfBothKindsMatchACopyByHand) {
  constexpr size_t kBytes = 4 << 20;
  constexpr size_t kPart = 32 * 1024;
  constexpr size_t kLongest[] = {128, 1500, 20'000};  // short runs, some of either, and long ones
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    Up(kBytes, Streams(3));
    std::mt19937_64 random(seed);
    std::vector<std::byte> expected = sink;
    // Each op writes its own part of b, in pieces that are disjoint.
    std::vector<std::vector<OpRun>> runs(kBytes / kPart);
    std::vector<Op> ops;
    for (size_t i = 0; i < runs.size(); ++i) {
      size_t at = i * kPart;
      const size_t longest = kLongest[random() % std::size(kLongest)];
      while (at < (i + 1) * kPart) {
        const size_t bytes = std::min<size_t>(random() % longest, (i + 1) * kPart - at);
        const size_t from = random() % (kBytes - bytes);
        runs[i].push_back(RunAt(from, at, bytes));
        std::copy_n(source.begin() + static_cast<ptrdiff_t>(from), bytes,
                    expected.begin() + static_cast<ptrdiff_t>(at));
        at += bytes;
      }
      ops.push_back({.has_immediate = true,
                     .rail = static_cast<uint32_t>(random() % 3),
                     .immediate = 0,
                     .id = i + 1,
                     .transfer = 1 + i % 7,
                     .blocks = Blocks(runs[i])});
    }
    ASSERT_TRUE(PostAll(ops));
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == ops.size(); }));
    EXPECT_TRUE(sink == expected);
    endpoint.reset();
    b->accepted.clear();
  }
}

TEST_F(TcpData, AFullRailTakesNoMoreAndTakesAgainOnceDrained) {
  Up(1 << 20);
  const std::vector<OpRun> run{RunAt(0, 0, 1 << 20)};
  uint64_t posted = 0;
  for (int i = 0; i < 100; ++i) {
    const Op op{.id = posted + 1, .transfer = 1, .blocks = Blocks(run)};
    posted += endpoint->Post(op) ? 1 : 0;
    a->Poll();
  }
  EXPECT_LT(posted, 50u);  // b reads nothing: the kernel's buffers and the queue are full
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return a->completions.size() == posted; }));
  const Op op{.id = posted + 1, .transfer = 1, .blocks = Blocks(run)};
  EXPECT_TRUE(endpoint->Post(op));
}

TEST_F(TcpData, MessagesArriveWholeInOrderUpToTheLargest) {
  Up(16);
  const size_t max = a->backend->capabilities().max_message_bytes;
  std::vector<std::string> sent;
  for (size_t i = 0; i < 60; ++i) {
    sent.emplace_back(i % 3 == 0 ? max - i : i, static_cast<char>('a' + i % 26));
    ASSERT_TRUE(Drive({a.get(), b.get()},
                      [&] { return endpoint->Send(std::as_bytes(std::span(sent.back()))); }));
  }
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->messages.size() == sent.size(); }));
  EXPECT_TRUE(b->messages == sent);
  EXPECT_TRUE(b->accepted[0]->Send(std::as_bytes(std::span(sent[1]))));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return a->messages.size() == 1; }));
  EXPECT_EQ(a->messages[0], sent[1]);
}

// Expect the message that follows another one to be found without epoll, and no other input.
TEST_F(TcpData, ALikelyMessageIsFoundWithoutAskingForAllInput) {
  Up(16);
  std::array<Event, 4> events;
  const auto poll = [&](Input input) { return b->backend->Poll(events, input); };
  ASSERT_TRUE(endpoint->Send(std::as_bytes(std::span("one"))));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->messages.size() == 1; }));
  b->Poll();  // finds that there is no more
  ASSERT_TRUE(endpoint->Send(std::as_bytes(std::span("two"))));
  EXPECT_EQ(poll(Input::kInMemory), 0u);
  // Over loopback the bytes are there once they are sent.
  ASSERT_EQ(poll(Input::kLikely), 1u);
  EXPECT_EQ(events[0].kind, EventKind::kMessage);
  EXPECT_EQ(std::memcmp(events[0].message.data(), "two", 3), 0);
  EXPECT_EQ(poll(Input::kLikely), 0u);
}

TEST_F(TcpData, AMessageQueueIsBounded) {
  Up(16);
  const std::string message(256 * 1024, 'x');
  size_t sent = 0;
  while (sent < 1000 && endpoint->Send(std::as_bytes(std::span(message)))) ++sent;
  EXPECT_LT(sent, 100u);
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->messages.size() == sent; }));
  EXPECT_TRUE(endpoint->Send(std::as_bytes(std::span(message))));
}

TEST_F(TcpData, OpsBeyondTheCapabilitiesCompleteAsInvalid) {
  Up(16);
  const std::vector<OpRun> large{RunAt(0, 0, (1 << 20) + 1)};
  std::vector<OpRun> keyless{RunAt(0, 0, 1)};
  keyless[0].key = nullptr;
  ASSERT_TRUE(PostAll({{.id = 1, .transfer = 1, .blocks = Blocks(large)},
                       {.id = 2, .transfer = 1, .blocks = Blocks(keyless)},
                       {.rail = 2, .id = 3, .transfer = 1},
                       {.id = 4, .transfer = 0}}));
  ASSERT_TRUE(Settle(4));
  for (const auto& [id, status] : a->completions) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << id << status;
  }
  // Ops go from the side that connected.
  const Op op{.id = 9, .transfer = 1};
  EXPECT_TRUE(b->accepted[0]->Post(op));
  ASSERT_TRUE(Drive({b.get()}, [&] { return b->completions.size() == 1; }));
  EXPECT_EQ(b->completions[9].code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(TcpData, AnIdleLinkHasNothingToDo) {
  Up(1 << 20);
  MoveAll(OpKind::kWrite);
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !b->immediates.empty(); }));
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  while (std::chrono::steady_clock::now() < end) {
    a->Poll();
    b->Poll();
  }
  EXPECT_TRUE(a->backend->Arm());
  EXPECT_TRUE(b->backend->Arm());
  pollfd fds[2] = {{a->backend->Describe().wait_fd, POLLIN, 0},
                   {b->backend->Describe().wait_fd, POLLIN, 0}};
  EXPECT_EQ(::poll(fds, 2, 200), 0);
  // And wakes up for what comes.
  ASSERT_TRUE(endpoint->Send(std::as_bytes(std::span("hello"))));
  EXPECT_EQ(::poll(&fds[1], 1, 2000), 1);
}

}  // namespace
}  // namespace kvxfer::tcp_test
