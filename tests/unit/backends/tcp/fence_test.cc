// Fences, void frames, and what the end of a link means for bytes on the way.
#include "src/transport/fence_book.h"
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

constexpr size_t kOps = 32;
constexpr size_t kOpBytes = 1 << 20;

class TcpFence : public TcpPair {
 protected:
  void UpAndFilled(OpKind kind = OpKind::kWrite, uint32_t streams = 2) {
    Up(kOps * kOpBytes, Streams(streams));
    for (size_t i = 0; i < kOps; ++i) runs.push_back(RunAt(i * kOpBytes, i * kOpBytes, kOpBytes));
    for (size_t i = 0; i < kOps; ++i) {
      ops.push_back({.kind = kind,
                     .has_immediate = kind == OpKind::kWrite,
                     .rail = static_cast<uint32_t>(i % streams),
                     .immediate = static_cast<uint32_t>(i),
                     .id = i + 1,
                     .transfer = 5,
                     .blocks = Blocks({runs[i]})});
    }
  }

  // Posts and sends, without the target taking part, until the kernel's buffers are full.
  size_t FillTheKernel() {
    size_t posted = 0;
    for (int i = 0; i < 200; ++i) {
      posted += PostSome(std::span<const Op>(ops).subspan(posted));
      a->Poll();
    }
    return posted;
  }

  size_t Count(absl::StatusCode code) {
    size_t n = 0;
    for (const auto& [id, status] : a->completions) n += status.code() == code ? 1 : 0;
    return n;
  }

  // Drains what is on the way; a small write of transfer 6 on each rail is the end of it.
  void DrainWithMarkers() {
    const uint32_t rails = Rails();
    std::vector<Op> last;
    for (uint32_t r = 0; r < rails; ++r) {
      last.push_back(
          {.has_immediate = true, .rail = r, .immediate = 1000 + r, .id = 1000 + r, .transfer = 6});
    }
    ASSERT_TRUE(PostAll(last));
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] {
      return std::count_if(b->immediates.begin(), b->immediates.end(),
                           [](uint32_t i) { return i >= 1000; }) == rails;
    }));
  }

  std::vector<OpRun> runs;
  std::vector<Op> ops;
};

TEST_F(TcpFence, BeforeAnythingWasPostedItAnswersOnBothSides) {
  UpAndFilled();
  endpoint->Fence({.transfer = 5});
  b->accepted[0]->Fence({.transfer = 5});
  ASSERT_TRUE(
      Drive({a.get(), b.get()}, [&] { return a->fenced.size() == 1 && b->fenced.size() == 1; }));
  EXPECT_EQ(a->fenced[0], 5u);
  EXPECT_EQ(b->fenced[0], 5u);
}

TEST_F(TcpFence, AfterAllHasLandedItAnswersAndTakesNothingBack) {
  UpAndFilled();
  ASSERT_TRUE(PostAll(ops));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == kOps; }));
  endpoint->Fence({.transfer = 5});
  b->accepted[0]->Fence({.transfer = 5});
  ASSERT_TRUE(
      Drive({a.get(), b.get()}, [&] { return a->fenced.size() == 1 && b->fenced.size() == 1; }));
  EXPECT_TRUE(sink == source);
  EXPECT_EQ(Count(absl::StatusCode::kOk), kOps);
}

TEST_F(TcpFence, InTheMiddleTheSourceIsNotReadAgainAndTheVoidFrameDoesNotCount) {
  UpAndFilled();
  const size_t posted = FillTheKernel();
  ASSERT_LT(posted, kOps) << "the kernel took everything: the test shows nothing";
  endpoint->Fence({.transfer = 5});
  // Expect kFenced although the target has read nothing, each op complete before it.
  a->Poll();
  EXPECT_EQ(a->fenced.size(), 1u);
  EXPECT_EQ(a->completions.size(), posted);
  EXPECT_GE(Count(absl::StatusCode::kCancelled), 1u);  // one under way at least
  const size_t sent = Count(absl::StatusCode::kOk);
  // Whoever reads the source now reads this.
  const std::vector<std::byte> before = source;
  std::fill(source.begin(), source.end(), std::byte{0xEE});
  DrainWithMarkers();
  EXPECT_EQ(b->immediates.size(), sent + 2) << "an op that did not complete counted";
  for (size_t i = 0; i < sink.size(); ++i) {
    ASSERT_TRUE(sink[i] == before[i] || sink[i] == std::byte{0}) << "byte " << i;
  }
}

TEST_F(TcpFence, AtTheTargetNothingLandsFromTheCallOn) {
  UpAndFilled();
  FillTheKernel();
  // The target is in the middle of frames.
  b->Poll(4);
  ASSERT_NE(std::count(sink.begin(), sink.end(), std::byte{0}),
            static_cast<ptrdiff_t>(sink.size()));
  b->accepted[0]->Fence({.transfer = 5});
  const std::vector<std::byte> received = sink;
  const size_t immediates = b->immediates.size();
  endpoint->Fence({.transfer = 5});
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->fenced.size() == 1; }));
  EXPECT_TRUE(sink == received);
  EXPECT_EQ(b->immediates.size(), immediates);
  // And the rails work on, for this transfer too.
  a->completions.clear();
  b->immediates.clear();
  ASSERT_TRUE(PostAll(ops));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == kOps; }));
  EXPECT_TRUE(sink == source);
}

TEST_F(TcpFence, TheTargetWaitsForTheMarkersOfTheInitiator) {
  UpAndFilled();
  FillTheKernel();
  b->accepted[0]->Fence({.transfer = 5});
  for (int i = 0; i < 100; ++i) b->Poll();
  EXPECT_TRUE(b->fenced.empty());
  EXPECT_TRUE(b->immediates.empty());
  endpoint->Fence({.transfer = 5});
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->fenced.size() == 1; }));
}

TEST_F(TcpFence, MarkersThatCameBeforeTheTargetAsksAreRemembered) {
  UpAndFilled();
  endpoint->Fence({.transfer = 5});
  DrainWithMarkers();
  EXPECT_TRUE(b->fenced.empty());
  b->accepted[0]->Fence({.transfer = 5});
  b->Poll();
  EXPECT_EQ(b->fenced, std::vector<uint64_t>{5});
}

TEST_F(TcpFence, OtherTransfersGoOn) {
  UpAndFilled();
  for (size_t i = 0; i < kOps; ++i) ops[i].transfer = 5 + (i / 2) % 2;
  const size_t posted = FillTheKernel();
  endpoint->Fence({.transfer = 5});
  b->accepted[0]->Fence({.transfer = 5});
  ASSERT_TRUE(PostAll(std::vector<Op>(ops.begin() + static_cast<ptrdiff_t>(posted), ops.end())));
  ASSERT_TRUE(Settle(kOps));
  const auto arrived = [&](const Op& op) {
    return op.transfer != 6 || std::ranges::count(b->immediates, op.immediate) == 1;
  };
  ASSERT_TRUE(Drive({a.get(), b.get()},
                    [&] { return b->fenced.size() == 1 && std::ranges::all_of(ops, arrived); }));
  for (const Op& op : ops) {
    if (op.transfer != 6) continue;
    EXPECT_TRUE(a->completions[op.id].ok()) << op.id << a->completions[op.id];
    const uint64_t at = (op.id - 1) * kOpBytes;
    EXPECT_EQ(std::memcmp(&sink[at], &source[at], kOpBytes), 0) << op.id;
  }
}

TEST_F(TcpFence, AReadThatIsFencedLandsNothingMore) {
  UpAndFilled(OpKind::kRead);
  // Requests are out, and responses lie in the socket.
  std::fill(source.begin(), source.end(), std::byte{0});
  size_t posted = 0;
  for (int i = 0; i < 20; ++i) {
    posted += PostSome(std::span<const Op>(ops).subspan(posted));
    a->Poll(1);
    b->Poll();
  }
  ASSERT_GT(posted, a->completions.size());
  endpoint->Fence({.transfer = 5});
  a->Poll(0);
  const std::vector<std::byte> received = source;
  b->accepted[0]->Fence({.transfer = 5});
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] {
    return a->fenced.size() == 1 && b->fenced.size() == 1 && a->completions.size() == posted;
  }));
  DrainWithMarkers();
  EXPECT_TRUE(source == received);
  // Reads work on.
  a->completions.clear();
  std::copy_n(Pattern(kOpBytes, 4).begin(), kOpBytes, sink.begin());
  ASSERT_TRUE(PostAll({ops[0]}));
  ASSERT_TRUE(Settle(1));
  EXPECT_TRUE(a->completions[1].ok()) << a->completions[1];
  EXPECT_EQ(std::memcmp(source.data(), sink.data(), kOpBytes), 0);
}

TEST_F(TcpFence, AtTheTargetAFencedReadIsServedNoMore) {
  UpAndFilled(OpKind::kRead, 1);
  sink = Pattern(sink.size(), 9);
  sink_registration.reset();
  sink_registration = b->Register(sink.data(), sink.size(), kRkey, Access::kReadWrite);
  for (size_t i = 0; i < kOps; ++i) {
    runs[i].remote = reinterpret_cast<uint64_t>(&sink[i * kOpBytes]);
    ops[i].blocks = Blocks({runs[i]});
  }
  std::fill(source.begin(), source.end(), std::byte{0});
  std::span<const Op> left(ops);
  for (int i = 0; i < 50; ++i) {
    left = left.subspan(PostSome(left));
    if (i == 0) a->Poll();
    b->Poll();
  }
  b->accepted[0]->Fence({.transfer = 5});
  std::fill(sink.begin(), sink.end(), std::byte{0xEE});
  ASSERT_TRUE(Settle(1));
  for (int i = 0; i < 200; ++i) {
    a->Poll();
    b->Poll();
  }
  EXPECT_GE(Count(absl::StatusCode::kCancelled), 1u);
  EXPECT_EQ(std::count(source.begin(), source.end(), std::byte{0xEE}) > 1000000, false);
  endpoint->Fence({.transfer = 5});
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->fenced.size() == 1; }));
}

TEST_F(TcpFence, AMessageThatWasSentFirstIsSeenBeforeMoreLands) {
  UpAndFilled();
  FillTheKernel();
  ASSERT_TRUE(endpoint->Send(std::as_bytes(std::span("abort"))));
  b->Poll();
  EXPECT_EQ(b->messages.size(), 1u);
  EXPECT_EQ(std::count(sink.begin(), sink.end(), std::byte{0}),
            static_cast<ptrdiff_t>(sink.size()));
}

TEST_F(TcpFence, AfterTheInitiatorIsGoneNothingLandsThatIsInTheSocketStill) {
  UpAndFilled();
  FillTheKernel();
  a.reset();  // its sockets close; the bytes it sent are in b's sockets
  ASSERT_TRUE(Drive({b.get()}, [&] { return !b->down.empty(); }));
  EXPECT_EQ(std::count(sink.begin(), sink.end(), std::byte{0}),
            static_cast<ptrdiff_t>(sink.size()));
  EXPECT_EQ(b->down[0].second.code(), absl::StatusCode::kUnavailable) << b->down[0].second;
}

TEST_F(TcpFence, ShutdownAtTheTargetLandsNothingMore) {
  UpAndFilled();
  FillTheKernel();
  b->Poll(4);
  b->accepted[0]->Shutdown(absl::CancelledError("enough"));
  b->Poll();
  ASSERT_EQ(b->down.size(), 1u);
  const std::vector<std::byte> received = sink;
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !a->down.empty(); }));
  EXPECT_TRUE(sink == received);
  EXPECT_NE(std::string(a->down[0].second.message()).find("enough"), std::string::npos)
      << a->down[0].second;
}

TEST_F(TcpFence, ARegionThatClosesUnderAWriteEndsTheLink) {
  UpAndFilled();
  FillTheKernel();
  b->Poll(4);
  sink_registration.reset();
  const std::vector<std::byte> received = sink;
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !b->down.empty() && !a->down.empty(); }));
  EXPECT_TRUE(sink == received);
}

TEST(TcpFenceBook, AnswersOncePerAskWhenEveryRailHasItsMarker) {
  FenceBook book(3);
  EXPECT_EQ(book.Ask(1), 0u);
  EXPECT_TRUE(book.IsFenced(1));
  EXPECT_EQ(book.OnMarker(1, 0), 0u);
  EXPECT_EQ(book.OnMarker(1, 0), 0u);
  EXPECT_EQ(book.OnMarker(1, 2), 0u);
  EXPECT_EQ(book.Ask(1), 0u);
  EXPECT_EQ(book.OnMarker(1, 1), 2u);
  EXPECT_FALSE(book.IsFenced(1));
  EXPECT_EQ(book.remembered(), 0u);
}

TEST(TcpFenceBook, ForgetsTheOldestEarlyMarkersOnly) {
  FenceBook book(1);
  EXPECT_EQ(book.Ask(999'999), 0u);
  for (uint64_t t = 1; t <= FenceBook::kMaxEarly + 10; ++t) EXPECT_EQ(book.OnMarker(t, 0), 0u);
  EXPECT_EQ(book.remembered(), FenceBook::kMaxEarly + 1);
  EXPECT_EQ(book.Ask(10), 0u);
  EXPECT_EQ(book.Ask(11), 1u);
  EXPECT_TRUE(book.IsFenced(999'999));
}

}  // namespace
}  // namespace kvxfer::tcp_test
