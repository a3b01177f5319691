// Small writes on the control stream: what lands and when, what is refused, and how they end.
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

constexpr size_t kBytes = 4096;

std::vector<std::byte> Bytes(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

class TcpInline : public TcpStranger {
 protected:
  Op Sole(const std::vector<OpRun>& runs, uint64_t id = 1) {
    return {.has_immediate = true,
            .sole = true,
            .rail = 1,
            .immediate = static_cast<uint32_t>(id),
            .id = id,
            .transfer = id,
            .blocks = Blocks(runs)};
  }

  // Without a turn of either side.
  size_t PostNow(const std::vector<Op>& ops) { return PostSome(ops); }

  // A link that is only sockets, one rail, accepted and authorised; b->accepted.back() is its end.
  void StrangerUp() {
    const size_t before = b->accepted.size();
    control = Stranger();
    Say(control, {.rails = 1, .target = b->incarnation});
    const tcp::Welcome welcome = Hear(control);
    rail = Stranger();
    Say(rail,
        {.role = tcp::Role::kData, .rails = 1, .target = b->incarnation, .link = welcome.link});
    ASSERT_TRUE(Drive({b.get()}, [&] { return b->accepted.size() == before + 1; }));
    b->accepted.back()->Authorize();
  }

  // A control frame with a write of `bytes` times 0x5A to the start of b's memory, in one run.
  std::vector<std::byte> WriteFrame(tcp::FrameHead head, uint32_t bytes) {
    constexpr size_t kHead = tcp::kControlHeadBytes;
    constexpr size_t kRun = kHead + tcp::kFrameHeadBytes;
    constexpr size_t kPayload = kRun + tcp::kWireRunBytes;
    std::vector<std::byte> out(kPayload + bytes + tcp::kTrailerBytes, std::byte{0x5A});
    const auto size = static_cast<uint32_t>(out.size() - kHead);
    const std::span<std::byte> at(out);
    tcp::Encode(tcp::ControlHead{.bytes = size, .kind = tcp::ControlKind::kFrame},
                at.first<kHead>());
    tcp::Encode(head, at.subspan<kHead, tcp::kFrameHeadBytes>());
    tcp::Encode(
        tcp::WireRun{
            .address = reinterpret_cast<uint64_t>(sink.data()), .bytes = bytes, .rkey = kRkey},
        at.subspan<kRun, tcp::kWireRunBytes>());
    tcp::Encode(tcp::Trailer{.valid = true, .has_immediate = true, .immediate = 9},
                at.last<tcp::kTrailerBytes>());
    return out;
  }

  void SendRaw(const Fd& fd, std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }

  size_t Arrived() {
    return sink.size() - static_cast<size_t>(std::count(sink.begin(), sink.end(), std::byte{0}));
  }

  Fd control;
  Fd rail;
};

TEST_F(TcpInline, TheBytesAndTheMessageBehindThemComeInWithOnePoll) {
  Up(kBytes);
  const std::vector<OpRun> runs{RunAt(0, 2048, 2048), RunAt(2048, 0, 2048)};
  ASSERT_EQ(PostNow({Sole(runs)}), 1u);
  ASSERT_TRUE(endpoint->Send(Bytes("open")));
  ASSERT_TRUE(Drive({b.get()}, [&] { return !b->immediates.empty() || !b->messages.empty(); }));
  // Expect both at once, without a turn of the initiator between.
  EXPECT_EQ(b->immediates, std::vector<uint32_t>{1});
  EXPECT_EQ(b->messages, std::vector<std::string>{"open"});
  EXPECT_EQ(std::memcmp(&sink[2048], &source[0], 2048), 0);
  EXPECT_EQ(std::memcmp(&sink[0], &source[2048], 2048), 0);
  a->Poll();
  ASSERT_TRUE(a->completions.contains(1));
  EXPECT_TRUE(a->completions[1].ok());
}

TEST_F(TcpInline, TheSourceMayChangeOnceTheOpIsComplete) {
  Up(kBytes);
  const std::vector<OpRun> runs{RunAt(0, 0, kBytes)};
  const std::vector<std::byte> before = source;
  ASSERT_EQ(PostNow({Sole(runs)}), 1u);
  std::array<Event, 1> event;
  ASSERT_EQ(a->backend->Poll(event, Input::kAll), 1u);
  ASSERT_EQ(event[0].kind, EventKind::kCompletion);
  std::fill(source.begin(), source.end(), std::byte{0xEE});
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !b->immediates.empty(); }));
  EXPECT_TRUE(sink == before);
}

TEST_F(TcpInline, EverySizeLandsWhicheverWayItGoes) {
  constexpr size_t kMost = tcp::kMaxInlineBytes;
  Up(2 * kMost);
  uint64_t id = 0;
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{7}, kMost - 1, kMost, kMost + 1}) {
    SCOPED_TRACE(bytes);
    std::fill(sink.begin(), sink.end(), std::byte{0});
    b->immediates.clear();
    const std::vector<OpRun> runs{RunAt(3, 5, bytes)};
    ASSERT_TRUE(PostAll({Sole(runs, ++id)}));
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !b->immediates.empty(); }));
    EXPECT_EQ(std::memcmp(&sink[5], &source[3], bytes), 0);
    EXPECT_EQ(
        std::count(sink.begin() + static_cast<ptrdiff_t>(5 + bytes), sink.end(), std::byte{0}),
        static_cast<ptrdiff_t>(sink.size() - 5 - bytes));
  }
}

TEST_F(TcpInline, WhatTheControlStreamCannotTakeGoesByTheRails) {
  Up(kBytes);
  constexpr size_t kOps = 400;  // far more than may wait, or the socket takes
  const std::vector<OpRun> runs{RunAt(0, 0, kBytes)};
  std::vector<Op> ops;
  for (size_t i = 1; i <= kOps; ++i) ops.push_back(Sole(runs, i));
  ASSERT_TRUE(PostAll(ops));
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->immediates.size() == kOps; }));
  ASSERT_TRUE(Settle(kOps));
  std::sort(b->immediates.begin(), b->immediates.end());
  for (size_t i = 0; i < kOps; ++i) EXPECT_EQ(b->immediates[i], i + 1);
  EXPECT_TRUE(sink == source);
}

TEST_F(TcpInline, TheTargetChecksRegionAndRights) {
  for (const bool writable : {true, false}) {
    SCOPED_TRACE(writable);
    Up(kBytes, {}, writable ? Access::kReadWrite : Access::kRemoteRead);
    const std::vector<OpRun> runs{RunAt(0, 0, 8), RunAt(8, writable ? kBytes - 7 : 16, 8)};
    ASSERT_TRUE(PostAll({Sole(runs)}));
    ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !a->down.empty() && !b->down.empty(); }));
    EXPECT_EQ(b->down[0].second.code(), absl::StatusCode::kPermissionDenied);
    EXPECT_EQ(Arrived(), 0u) << "part of a frame landed";
    endpoint.reset();
    b->accepted.clear();
  }
}

TEST_F(TcpInline, NothingLandsInARegionThatWasClosed) {
  Up(kBytes);
  const std::vector<OpRun> runs{RunAt(0, 0, kBytes)};
  ASSERT_EQ(PostNow({Sole(runs)}), 1u);
  ASSERT_TRUE(endpoint->Send(Bytes("open")));
  sink_registration.reset();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return !b->down.empty(); }));
  EXPECT_EQ(Arrived(), 0u);
  EXPECT_TRUE(b->immediates.empty());
}

TEST_F(TcpInline, AFenceBehindItIsTheEndOfIt) {
  Up(kBytes);
  const std::vector<OpRun> runs{RunAt(0, 0, 2048)};
  const std::vector<OpRun> others{RunAt(2048, 2048, 2048)};
  ASSERT_EQ(PostNow({Sole(runs, 5), Sole(others, 6)}), 2u);
  ASSERT_TRUE(endpoint->Send(Bytes("open")));
  b->accepted[0]->Fence({.transfer = 5});
  // Expect no answer before the initiator's word that nothing follows.
  for (int i = 0; i < 100; ++i) b->Poll();
  EXPECT_TRUE(b->fenced.empty());
  endpoint->Fence({.transfer = 5});
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->fenced.size() == 1; }));
  EXPECT_EQ(b->immediates, std::vector<uint32_t>{6});
  EXPECT_EQ(std::count(sink.begin(), sink.begin() + 2048, std::byte{0}), 2048);
  EXPECT_EQ(std::memcmp(&sink[2048], &source[2048], 2048), 0);
}

TEST_F(TcpInline, TheFenceWaitsForTheMarkerOfTheControlStreamToo) {
  Up(kBytes);
  StrangerUp();
  b->accepted.back()->Fence({.transfer = 5});
  const std::vector<std::byte> write =
      WriteFrame({.kind = tcp::FrameKind::kWrite, .runs = 1, .bytes = 64, .transfer = 5}, 64);
  std::array<std::byte, tcp::kFrameHeadBytes> marker;
  tcp::Encode(tcp::FrameHead{.kind = tcp::FrameKind::kFence, .transfer = 5}, marker);
  std::array<std::byte, tcp::kLifeBytes> life;  // of its one rail
  tcp::EncodeLife(1, life);
  SendRaw(rail, marker);
  SendRaw(control, write);
  for (int i = 0; i < 100; ++i) b->Poll();
  EXPECT_TRUE(b->fenced.empty());
  std::array<std::byte, tcp::kControlHeadBytes> head;
  tcp::Encode(
      tcp::ControlHead{.bytes = marker.size() + life.size(), .kind = tcp::ControlKind::kFrame},
      head);
  SendRaw(control, head);
  SendRaw(control, marker);
  SendRaw(control, life);
  ASSERT_TRUE(Drive({b.get()}, [&] { return b->fenced.size() == 1; }));
  EXPECT_EQ(Arrived(), 0u);
  EXPECT_TRUE(b->immediates.empty());
}

TEST_F(TcpInline, WithoutAuthorizeItWaitsAndCostsNothing) {
  Up(kBytes, {}, Access::kReadWrite, /*authorize=*/false);
  const std::vector<OpRun> runs{RunAt(0, 0, kBytes)};
  ASSERT_EQ(PostNow({Sole(runs)}), 1u);
  ASSERT_TRUE(endpoint->Send(Bytes("open")));
  for (int i = 0; i < 100; ++i) {
    a->Poll();
    b->Poll();
  }
  EXPECT_EQ(Arrived(), 0u);
  EXPECT_TRUE(b->immediates.empty());
  EXPECT_TRUE(b->backend->Arm());
  b->accepted[0]->Authorize();
  ASSERT_TRUE(Drive({a.get(), b.get()}, [&] { return b->messages.size() == 1; }));
  EXPECT_EQ(b->immediates, std::vector<uint32_t>{1});
  EXPECT_TRUE(sink == source);
}

TEST_F(TcpInline, TheAgentSeesAMessageBeforeTheWriteBehindItLands) {
  Up(kBytes);
  const std::vector<OpRun> runs{RunAt(0, 0, kBytes)};
  ASSERT_TRUE(endpoint->Send(Bytes("before")));
  ASSERT_EQ(PostNow({Sole(runs)}), 1u);
  ASSERT_TRUE(endpoint->Send(Bytes("behind")));
  ASSERT_TRUE(Drive({b.get()}, [&] { return b->messages.size() == 1; }));
  EXPECT_EQ(Arrived(), 0u);
  ASSERT_TRUE(Drive({b.get()}, [&] { return b->messages.size() == 2; }));
  EXPECT_TRUE(sink == source);
}

TEST_F(TcpInline, CutAtEveryByteItLandsOnceAndOnlyWhole) {
  Up(kBytes);
  StrangerUp();
  const std::vector<std::byte> frame =
      WriteFrame({.kind = tcp::FrameKind::kWrite, .runs = 1, .bytes = 64, .transfer = 5}, 64);
  for (size_t cut = 1; cut < frame.size(); ++cut) {
    SCOPED_TRACE(cut);
    std::fill(sink.begin(), sink.end(), std::byte{0});
    b->immediates.clear();
    SendRaw(control, std::span(frame).first(cut));
    for (int i = 0; i < 3; ++i) b->Poll();
    ASSERT_EQ(Arrived(), 0u);
    SendRaw(control, std::span(frame).subspan(cut));
    ASSERT_TRUE(Drive({b.get()}, [&] { return !b->immediates.empty(); }));
    ASSERT_EQ(b->immediates, std::vector<uint32_t>{9});
    ASSERT_EQ(Arrived(), 64u);
  }
}

TEST_F(TcpInline, HostileFramesEndTheLinkAndLandNothing) {
  Up(kBytes);
  using tcp::FrameKind;
  const tcp::FrameHead good{.kind = FrameKind::kWrite, .runs = 1, .bytes = 64, .transfer = 5};
  std::vector<tcp::FrameHead> bad(9, good);
  bad[0].bytes = 63;                                    // less than its run
  bad[1].bytes = 65;                                    // more than there is
  bad[2].bytes = tcp::kMaxFrameBytes;                   // beyond the control stream's bound
  bad[3].runs = 0;                                      // fewer than there are
  bad[4].runs = 2;                                      // more
  bad[5].runs = tcp::kMaxFrameRuns;                     // beyond the bound
  bad[6].number = 1;                                    // a rail that is not there
  bad[7].kind = FrameKind::kReadRequest;                // no place here
  bad[8] = {.kind = FrameKind::kFence, .transfer = 5};  // with something behind it
  for (size_t i = 0; i <= bad.size(); ++i) {
    SCOPED_TRACE(i);
    b->down.clear();
    StrangerUp();
    std::vector<std::byte> frame = WriteFrame(i < bad.size() ? bad[i] : good, 64);
    if (i == bad.size()) {  // a head that is cut off
      frame.resize(tcp::kControlHeadBytes + 8);
      tcp::Encode(tcp::ControlHead{.bytes = 8, .kind = tcp::ControlKind::kFrame},
                  std::span(frame).first<tcp::kControlHeadBytes>());
    }
    SendRaw(control, frame);
    ASSERT_TRUE(Drive({b.get()}, [&] { return !b->down.empty(); }));
    EXPECT_EQ(b->down[0].second.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Arrived(), 0u);
  }
}

// Expect that frames of which nobody hears do not keep one Poll for themselves: everybody else's
// turn would never come.
TEST_F(TcpInline, FramesThatTellNothingAreBoundedInAPoll) {
  Up(kBytes);
  StrangerUp();
  constexpr size_t kFrames = 2000;
  std::vector<std::byte> flood;
  for (uint32_t i = 0; i < kFrames; ++i) {
    // Each write but the last is without an immediate; that one says when all are through.
    std::vector<std::byte> frame = WriteFrame(
        {.kind = tcp::FrameKind::kWrite, .runs = 1, .bytes = 8, .transfer = 1, .number = 0}, 8);
    const bool last = i + 1 == kFrames;
    tcp::Encode(tcp::Trailer{.valid = true, .has_immediate = last, .immediate = last ? 9u : 0u},
                std::span(frame).last<tcp::kTrailerBytes>());
    flood.insert(flood.end(), frame.begin(), frame.end());
  }
  SendRaw(control, flood);
  size_t polls = 0;
  ASSERT_TRUE(Drive({b.get()}, [&] { return ++polls, !b->immediates.empty(); }));
  EXPECT_EQ(b->immediates, std::vector<uint32_t>{9});
  EXPECT_GE(polls, kFrames / 256);
}

// Expect that what comes by a data stream lands although messages never cease.
TEST_F(TcpInline, MessagesWithoutEndDoNotHoldTheDataUp) {
  constexpr size_t kBulk = 1 << 20;
  Up(kBulk);
  const std::vector<OpRun> bulk{RunAt(0, 0, kBulk)};
  ASSERT_EQ(PostNow({{.has_immediate = true,
                      .rail = 0,
                      .immediate = 7,
                      .id = 7,
                      .transfer = 7,
                      .blocks = Blocks(bulk)}}),
            1u);
  const auto refill = [&] {
    while (endpoint->Send(Bytes(std::string(1000, 'm')))) {
    }
    a->Poll();
  };
  for (int i = 0; i < 20; ++i) refill();
  for (int i = 0; i < 10'000 && b->immediates.empty(); ++i) {
    refill();
    b->Poll();
  }
  EXPECT_EQ(b->immediates, std::vector<uint32_t>{7});
  EXPECT_FALSE(b->messages.empty());
}

}  // namespace
}  // namespace kvxfer::tcp_test
