// Data streams that break, and come back, while their link lives.
#include <gmock/gmock.h>

#include <set>
#include <thread>

#include "src/core/base/clock.h"
#include "tests/support/open_files.h"
#include "tests/support/tcp_streams.h"
#include "tests/unit/backends/tcp/test_util.h"

namespace kvxfer::tcp_test {
namespace {

using kvxfer::testing::Blackhole;
using kvxfer::testing::DataStreams;
using kvxfer::testing::OneDataStream;
using kvxfer::testing::OpenFiles;
using kvxfer::testing::PassOnlySmall;
using kvxfer::testing::StreamEnd;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

constexpr size_t kRailOpBytes = 64 * 1024;

class TcpRails : public TcpStranger {
 protected:
  void Break() {
    for (const StreamEnd& end : OneDataStream()) ::shutdown(end.fd, SHUT_RDWR);
  }

  bool Both(auto done, milliseconds timeout = seconds(10)) {
    return Drive({a.get(), b.get()}, done, timeout);
  }

  // What agents do about the last rail that failed, up to its being fenced.
  void FenceLast() {
    ASSERT_TRUE(Both([&] { return !a->rails_down.empty(); }));
    b->accepted[0]->Fence({.rail = a->rails_down.back().first});
    const size_t before = b->rails_fenced.size();
    ASSERT_TRUE(Both([&] { return b->rails_fenced.size() == before + 1; }));
    EXPECT_EQ(b->rails_fenced.back(), a->rails_down.back().first);
  }

  // How long the last rail that failed is left alone, and the hello, once it is fenced.
  Duration Pause() {
    FenceLast();
    const uint32_t rail = a->rails_down.back().first;
    const size_t before = a->rails_up.size();
    const Time start = Now();
    endpoint->ReopenRail(rail);
    EXPECT_TRUE(Both([&] { return a->rails_up.size() == before + 1; }));
    return Now() - start;
  }
  void Heal() {
    Pause();
    ASSERT_FALSE(HasFailure());
    const uint32_t rail = a->rails_down.back().first;
    EXPECT_EQ(a->rails_up.back(), rail);
    EXPECT_TRUE(endpoint->Describe().rails[rail].up);
  }

  // One write, which has to arrive.
  void Write(uint32_t rail) {
    const uint64_t id = ++last_id_;
    const std::vector<OpRun> runs{RunAt(0, 0, kRailOpBytes)};
    std::fill(sink.begin(), sink.end(), std::byte{0});
    const size_t before = b->immediates.size();
    ASSERT_TRUE(PostAll(
        {{.has_immediate = true, .rail = rail, .id = id, .transfer = id, .blocks = Blocks(runs)}}));
    ASSERT_TRUE(Both([&] { return b->immediates.size() == before + 1; }));
    EXPECT_EQ(std::memcmp(sink.data(), source.data(), kRailOpBytes), 0);
  }

  uint64_t last_id_ = 1000;
};

TEST_F(TcpRails, ABrokenStreamTakesOnlyItsRailDownAndIsMadeAnew) {
  Up(kRailOpBytes);
  Break();
  ASSERT_TRUE(Both([&] { return a->rails_down.size() == 1; }));
  const auto [rail, why] = a->rails_down[0];
  EXPECT_EQ(why.code(), absl::StatusCode::kUnavailable);
  for (const std::string& part : {std::string("tcp peer " + b->backend->Describe().listen_address),
                                  "data stream " + std::to_string(rail), std::string("127.0.0.1:"),
                                  std::string(" → " + b->backend->Describe().listen_address)}) {
    EXPECT_THAT(std::string(why.message()), HasSubstr(part));
  }
  EXPECT_THAT(endpoint->Describe().path, HasSubstr("not in use"));
  EXPECT_FALSE(endpoint->Describe().rails[rail].up);
  const Op refused{.rail = rail, .id = 1, .transfer = 1};
  EXPECT_FALSE(endpoint->Post(refused));
  ASSERT_NO_FATAL_FAILURE(Write(1 - rail));
  // Expect it to stay down until it may be made anew.
  Drive(
      {a.get(), b.get()}, [] { return false; }, milliseconds(100));
  EXPECT_TRUE(a->rails_up.empty());
  ASSERT_NO_FATAL_FAILURE(Heal());
  ASSERT_NO_FATAL_FAILURE(Write(rail));
  EXPECT_TRUE(a->down.empty());
  EXPECT_TRUE(b->down.empty());
}

TEST_F(TcpRails, EveryOpOfTheRailEndsBeforeItIsSaidToBeDown) {
  Up(8 << 20);
  std::vector<OpRun> runs;
  for (size_t i = 0; i < 32; ++i) runs.push_back(RunAt(i % 8 << 20, i % 8 << 20, 1 << 20));
  std::set<uint64_t> on_rail[2];
  for (uint64_t id = 1; id <= 32; ++id) {
    const auto rail = static_cast<uint32_t>(id % 2);
    const Op op{.kind = id % 4 < 2 ? OpKind::kWrite : OpKind::kRead,
                .rail = rail,
                .id = id,
                .transfer = id,
                .blocks = Blocks({runs[id - 1]})};
    if (endpoint->Post(op)) on_rail[rail].insert(id);
    a->Poll();
  }
  Break();
  ASSERT_TRUE(Drive({a.get()}, [&] { return !a->rails_down.empty(); }));
  const uint32_t down = a->rails_down[0].first;
  size_t failed = 0;
  for (const uint64_t id : on_rail[down]) {
    ASSERT_TRUE(a->completions.contains(id)) << id;
    if (a->completions[id].ok()) continue;
    ++failed;
    EXPECT_EQ(a->completions[id].code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_GT(failed, 0u);
  ASSERT_TRUE(Both([&] {
    return std::ranges::all_of(on_rail[1 - down],
                               [&](uint64_t id) { return a->completions.contains(id); });
  }));
  for (const uint64_t id : on_rail[1 - down]) EXPECT_TRUE(a->completions[id].ok()) << id;
}

TEST_F(TcpRails, BehindTheFenceNothingLandsThatWasOnTheWay) {
  Up(4 << 20);
  std::vector<OpRun> runs;
  for (size_t i = 0; i < 4; ++i) runs.push_back(RunAt(i << 20, i << 20, 1 << 20));
  std::vector<Op> ops;
  for (size_t i = 0; i < 4; ++i) {
    ops.push_back({.has_immediate = true, .id = i, .transfer = 5, .blocks = Blocks({runs[i]})});
  }
  for (int i = 0; i < 50; ++i) {
    ops.erase(ops.begin(), ops.begin() + static_cast<ptrdiff_t>(PostSome(ops)));
    a->Poll();
  }
  b->Poll(1);  // in the middle of it
  b->accepted[0]->Fence({.rail = 0});
  const std::vector<std::byte> received = sink;
  const size_t told = b->immediates.size();
  b->Poll();
  ASSERT_EQ(b->rails_fenced, std::vector<uint32_t>{0});
  for (int i = 0; i < 100; ++i) {
    a->Poll();
    b->Poll();
  }
  EXPECT_TRUE(sink == received);
  EXPECT_EQ(b->immediates.size(), told);
  EXPECT_EQ(a->rails_down.size(), 1u);
}

TEST_F(TcpRails, AStreamThatNobodyAnswersIsGivenUpInTime) {
  Up(kRailOpBytes);
  Blackhole(OneDataStream());
  const auto start = std::chrono::steady_clock::now();
  const std::vector<OpRun> runs{RunAt(0, 0, kRailOpBytes)};
  ASSERT_TRUE(PostAll({{.rail = 0, .id = 1, .transfer = 1, .blocks = Blocks(runs)},
                       {.rail = 1, .id = 2, .transfer = 2, .blocks = Blocks(runs)}}));
  // The kernel takes the bytes of both: neither op fails.
  ASSERT_TRUE(Settle(2));
  ASSERT_TRUE(Both([&] { return !a->rails_down.empty(); }));
  const auto took = std::chrono::steady_clock::now() - start;
  EXPECT_GE(took, seconds(2));
  EXPECT_LT(took, milliseconds(4500));
  EXPECT_THAT(std::string(a->rails_down[0].second.message()), HasSubstr("acknowledged"));
  EXPECT_EQ(a->rails_down.size(), 1u);
  const uint32_t rail = a->rails_down[0].first;
  ASSERT_NO_FATAL_FAILURE(Write(1 - rail));
  ASSERT_NO_FATAL_FAILURE(Heal());
  ASSERT_NO_FATAL_FAILURE(Write(rail));
  EXPECT_TRUE(a->down.empty());
}

TEST_F(TcpRails, AStreamThatServesReadsIsGivenUpByTheOtherSide) {
  Up(1 << 20, Streams(1));
  const std::vector<OpRun> runs{RunAt(0, 0, 1 << 20)};
  const Op op{.kind = OpKind::kRead, .id = 1, .transfer = 1, .blocks = Blocks(runs)};
  ASSERT_TRUE(endpoint->Post(op));
  a->Poll();
  // The request is there, and acknowledged; what answers it is lost.
  std::this_thread::sleep_for(milliseconds(200));
  Blackhole(OneDataStream());
  ASSERT_TRUE(Both([&] { return !a->rails_down.empty(); }));
  EXPECT_THAT(std::string(a->rails_down[0].second.message()), HasSubstr("the peer's end"));
  EXPECT_EQ(a->completions[1].code(), absl::StatusCode::kUnavailable);
  ASSERT_NO_FATAL_FAILURE(Heal());
  ASSERT_NO_FATAL_FAILURE(Write(0));
}

TEST_F(TcpRails, AStoppedPeerIsNotTakenForADeadPath) {
  Up(16 << 20, Streams(1));
  std::vector<OpRun> runs;
  for (size_t i = 0; i < 16; ++i) runs.push_back(RunAt(i << 20, i << 20, 1 << 20));
  std::vector<Op> ops;
  for (size_t i = 0; i < 16; ++i) {
    ops.push_back({.has_immediate = i == 15, .id = i, .transfer = 5, .blocks = Blocks({runs[i]})});
  }
  // b does nothing; its window closes.
  std::span<const Op> left(ops);
  EXPECT_FALSE(Drive(
      {a.get()},
      [&] {
        left = left.subspan(PostSome(left));
        return !a->rails_down.empty() || !a->down.empty();
      },
      milliseconds(4500)));
  ASSERT_FALSE(left.empty()) << "the kernel took everything: the test shows nothing";
  ASSERT_TRUE(Both([&] {
    left = left.subspan(PostSome(left));
    return left.empty();
  }));
  ASSERT_TRUE(Both([&] { return b->immediates.size() == 1; }));
  EXPECT_TRUE(sink == source);
}

TEST_F(TcpRails, AFenceIsAnsweredThoughAStreamBrokeBeforeItsMarker) {
  Up(kRailOpBytes);
  Break();
  ASSERT_TRUE(Both([&] { return !a->rails_down.empty(); }));
  endpoint->Fence({.transfer = 5});
  b->accepted[0]->Fence({.transfer = 5});
  ASSERT_TRUE(Both([&] { return a->fenced.size() == 1 && b->fenced.size() == 1; }));
}

TEST_F(TcpRails, AFenceIsAnsweredWhenTheStreamBreaksThatHasItsMarker) {
  Up(kRailOpBytes);
  b->accepted[0]->Fence({.transfer = 5});
  // The initiator does not know yet; its marker is lost.
  Break();
  endpoint->Fence({.transfer = 5});
  ASSERT_TRUE(Both([&] { return b->fenced.size() == 1; }));
}

TEST_F(TcpRails, AfterARailCameBackAFenceWaitsForItsMarkerToo) {
  Up(kRailOpBytes);
  b->accepted[0]->Fence({.transfer = 5});
  Break();
  ASSERT_TRUE(Both([&] { return !a->rails_down.empty(); }));
  ASSERT_NO_FATAL_FAILURE(Heal());
  const uint32_t rail = a->rails_down[0].first;
  // Of the transfer that only the target has fenced so far.
  const std::vector<OpRun> runs{RunAt(0, 0, kRailOpBytes)};
  ASSERT_TRUE(PostAll(
      {{.has_immediate = true, .rail = rail, .id = 1, .transfer = 5, .blocks = Blocks(runs)}}));
  a->Poll();
  EXPECT_TRUE(b->fenced.empty());
  endpoint->Fence({.transfer = 5});
  ASSERT_TRUE(Both([&] { return b->fenced.size() == 1; }));
  ASSERT_NO_FATAL_FAILURE(Write(rail));
  EXPECT_EQ(b->immediates.size(), 1u) << "of the fenced transfer";
}

TEST_F(TcpRails, FlappingLeavesNothingBehind) {
  Up(kRailOpBytes);
  ASSERT_NO_FATAL_FAILURE(Write(0));
  const size_t before = OpenFiles();
  for (int i = 0; i < 20; ++i) {
    Break();
    ASSERT_TRUE(Both([&] { return a->rails_down.size() == static_cast<size_t>(i) + 1; }));
    ASSERT_NO_FATAL_FAILURE(Heal());
    ASSERT_NO_FATAL_FAILURE(Write(a->rails_down.back().first));
  }
  EXPECT_EQ(OpenFiles(), before);
  EXPECT_TRUE(a->down.empty());
}

TEST_F(TcpRails, AllRailsDownTheLinkLivesAndMessagesPass) {
  Up(kRailOpBytes);
  for (const StreamEnd& end : DataStreams()) ::shutdown(end.fd, SHUT_RDWR);
  ASSERT_TRUE(Both([&] { return a->rails_down.size() == 2; }));
  ASSERT_TRUE(endpoint->Send(std::as_bytes(std::span("still here"))));
  ASSERT_TRUE(Both([&] { return b->messages.size() == 1; }));
  for (const uint32_t rail : {0u, 1u}) {
    b->accepted[0]->Fence({.rail = rail});
    ASSERT_TRUE(Both([&] { return b->rails_fenced.size() == rail + 1; }));
    endpoint->ReopenRail(rail);
  }
  ASSERT_TRUE(Both([&] { return a->rails_up.size() == 2; }));
  for (const uint32_t rail : {0u, 1u}) ASSERT_NO_FATAL_FAILURE(Write(rail));
}

// Expect a rail that comes up and carries nothing to be tried less and less often, and one that
// carries again as soon as any.
// Also where each life gets less than would prove it.
TEST_F(TcpRails, WhereSmallOpsAreNotHeardEitherAPathIsTriedLessOften) {
  Up(kRailOpBytes, Streams(1));
  PassOnlySmall(ListenAddress().port(), 1000);
  Break();
  Duration pause = Pause();
  EXPECT_LT(pause, seconds(1));
  const std::vector<OpRun> runs{RunAt(0, 0, 4096)};
  for (uint64_t id = 1; id <= 3; ++id) {
    ASSERT_TRUE(PostAll({{.id = id, .transfer = id, .blocks = Blocks(runs)}}));
    ASSERT_TRUE(Both([&] { return a->rails_down.size() == id + 1; }));
    pause = Pause();
  }
  EXPECT_GE(pause, seconds(1));
}

TEST_F(TcpRails, APathThatTakesOnlySmallPacketsIsTriedLessOften) {
  Up(2 * kRailOpBytes, Streams(1));
  ASSERT_NO_FATAL_FAILURE(Write(0));
  PassOnlySmall(ListenAddress().port(), 1000);
  Break();
  Pause();
  const std::vector<OpRun> runs{RunAt(0, 0, 2 * kRailOpBytes)};
  Duration pause{};
  for (uint64_t id = 1; id <= 2; ++id) {
    ASSERT_TRUE(PostAll({{.id = id, .transfer = id, .blocks = Blocks(runs)}}));
    ASSERT_TRUE(Both([&] { return a->rails_down.size() == id + 1; }));
    EXPECT_THAT(std::string(a->rails_down.back().second.message()), HasSubstr("MTU"));
    if (id == 2) PassOnlySmall(ListenAddress().port(), UINT32_MAX);
    pause = Pause();
  }
  EXPECT_GE(pause, seconds(1));
  ASSERT_NO_FATAL_FAILURE(Write(0));
  // Under load one may take longer than it should.
  for (int i = 0; i < 10 && pause >= milliseconds(500); ++i) {
    ASSERT_NO_FATAL_FAILURE(Write(0));
    Break();
    pause = Pause();
  }
  EXPECT_LT(pause, milliseconds(500));
  EXPECT_TRUE(a->down.empty());
}

// A peer that is busy elsewhere has left as many messages unread as there may be; what tells it of
// the rail comes on top of them.
TEST_F(TcpRails, ARailThatFailsBesideAFullQueueOfMessagesDoesNotEndTheLink) {
  Up(kRailOpBytes);
  size_t sent = 0;
  for (const size_t bytes : {size_t{64 * 1024}, size_t{1}}) {
    const std::vector<std::byte> message(bytes);
    while (b->accepted[0]->Send(message)) ++sent;
  }
  Break();
  Drive(
      {b.get()}, [] { return false; }, milliseconds(20));
  EXPECT_TRUE(b->down.empty());
  ASSERT_TRUE(Both([&] { return a->rails_down.size() == 1 && a->messages.size() == sent; }));
  EXPECT_THAT(std::string(a->rails_down[0].second.message()), HasSubstr("data stream"));
  ASSERT_NO_FATAL_FAILURE(Heal());
  EXPECT_TRUE(a->down.empty());
  EXPECT_TRUE(b->down.empty());
}

TEST_F(TcpRails, StreamsOfEarlierLivesAndOtherLinksAreRefused) {
  Up(kRailOpBytes);
  const Fd control = Stranger();
  Say(control, {.rails = 1, .target = b->incarnation});
  const tcp::LinkId link = Hear(control).link;
  const tcp::Preamble good{
      .role = tcp::Role::kData, .rails = 1, .target = b->incarnation, .link = link, .life = 5};
  const auto taken = [&](const tcp::Preamble& preamble, Fd& stream) {
    stream = Stranger();
    Say(stream, preamble);
    char answer[tcp::kWelcomeBytes];
    ssize_t n = -1;
    EXPECT_TRUE(Drive({b.get()}, [&] {
      n = ::recv(stream.get(), answer, sizeof answer, MSG_DONTWAIT);
      return n >= 0 || errno != EAGAIN;
    }));
    return n > 0;
  };
  Fd first, stale, same, guess, other, later;
  ASSERT_TRUE(taken(good, first));
  ASSERT_TRUE(Drive({b.get()}, [&] { return b->accepted.size() == 2; }));
  tcp::Preamble bad = good;
  bad.life = 4;
  EXPECT_FALSE(taken(bad, stale));
  EXPECT_FALSE(taken(good, same));
  bad = good;
  bad.life = 6;
  bad.link[15] ^= 1;
  EXPECT_FALSE(taken(bad, guess));
  bad = good;
  bad.life = 6;
  bad.target = Incarnation::Random();
  EXPECT_FALSE(taken(bad, other));
  // A later life takes the place of the one before, which is closed.
  bad = good;
  bad.life = 6;
  EXPECT_TRUE(taken(bad, later));
  char byte;
  EXPECT_TRUE(Drive({b.get()}, [&] { return ::recv(first.get(), &byte, 1, MSG_DONTWAIT) == 0; }));
  EXPECT_TRUE(b->down.empty());
}

}  // namespace
}  // namespace kvxfer::tcp_test
