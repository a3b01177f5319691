// Rings between two sides that pass frames to each other: how they begin, grow and are refused, and
// what a peer gains that passes rings which make no sense.
#include "src/transport/ring_pair.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "src/core/base/own_fd.h"
#include "src/transport/host/growing_ring.h"
#include "src/transport/host/mapping.h"
#include "src/transport/host/ring_file.h"
#include "tests/support/open_files.h"
#include "tests/support/status_macros.h"

namespace kvxfer::net {
namespace {

using testing::NoDescriptors;

// One side, with the frames that are on their way to the other one.
struct OneSide final : RingPair::Socket {
  struct Frame {
    RingFrame kind = RingFrame::kBell;
    OwnFd file;
  };

  void PassRingFrame(RingFrame frame, int file) override {
    const bool passes = file >= 0 && !loses_files;
    out.push_back({frame, OwnFd(passes ? fcntl(file, F_DUPFD_CLOEXEC, 0) : -1)});
  }
  // Handles what `frame` of the peer says.
  absl::Status Take(Frame frame) {
    ++received;
    switch (frame.kind) {
      case RingFrame::kRings:
        return rings.Take(frame.file, bell.get());
      case RingFrame::kBell:
        return rings.TakeBell(std::move(frame.file));
      case RingFrame::kGrow:
        return rings.TakeGrowth(frame.file);
      case RingFrame::kNotGrown:
        return rings.TakeNotGrown(0);
    }
    return absl::OkStatus();
  }
  absl::Status TakeAll(OneSide& from) {
    while (!from.out.empty()) {
      Frame frame = std::move(from.out.front());
      from.out.pop_front();
      if (absl::Status taken = Take(std::move(frame)); !taken.ok()) return taken;
    }
    return absl::OkStatus();
  }
  bool Rung() {
    eventfd_t rung = 0;
    return eventfd_read(bell.get(), &rung) == 0;
  }
  void Send(std::string_view message) { rings.Send(std::as_bytes(std::span(message)), 0); }
  // The next whole message; frames of `from` come where they must.
  std::optional<std::string> Receive(OneSide& from) {
    for (;;) {
      RingPair::Part part;
      switch (rings.Receive(0, buffer, part)) {
        case RingPair::Got::kPart:
          partial.append(part.body);
          if (!part.more) return std::exchange(partial, {});
          break;
        case RingPair::Got::kBehind:
          EXPECT_FALSE(from.out.empty());
          EXPECT_OK(TakeAll(from));
          break;
        case RingPair::Got::kDamaged:
          ADD_FAILURE() << "damaged";
          return std::nullopt;
        case RingPair::Got::kNothing:
          return std::nullopt;
      }
    }
  }

  bool loses_files = false;
  std::deque<Frame> out;
  uint64_t received = 0;  // frames
  OwnFd bell{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  RingPair rings{this};
  std::string partial;
  std::array<char, RingPair::kMaxPartBytes> buffer{};
};

struct TwoSides {
  OneSide a;  // connecting
  OneSide b;

  void Begin() {
    ASSERT_OK(a.rings.Offer(a.bell.get()));
    ASSERT_OK(b.TakeAll(a));
    ASSERT_OK(a.TakeAll(b));
    ASSERT_TRUE(a.rings.ready());
    ASSERT_TRUE(b.rings.ready());
  }
};

std::string Text(size_t bytes, size_t seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + seed);
  return text;
}

TEST(RingPair, MessagesOfEverySizePassBothWays) {
  TwoSides pair;
  ASSERT_NO_FATAL_FAILURE(pair.Begin());
  for (const size_t bytes : {0u, 1u, 1008u, 1009u, 4032u, 4033u, 60'000u, 262'144u}) {
    for (auto [from, to] : {std::pair(&pair.a, &pair.b), std::pair(&pair.b, &pair.a)}) {
      from->Send(Text(bytes, bytes));
      std::optional<std::string> got;
      for (int turn = 0; turn < 100 && !got; ++turn) {
        got = to->Receive(*from);
        from->rings.Flush(0);
      }
      ASSERT_EQ(got, Text(bytes, bytes)) << bytes;
      EXPECT_FALSE(from->rings.queued());
      EXPECT_EQ(from->rings.queued_bytes(), 0u);
    }
  }
}

// An idle peer holds this much, in both processes together.
TEST(RingPair, AnIdlePairHoldsThreePages) {
  EXPECT_EQ(RingPair::kSmallBytes, 2 * (4096 + 256));
  EXPECT_LE(RingPair::kSmallBytes, 3u * 4096);
  TwoSides pair;
  ASSERT_NO_FATAL_FAILURE(pair.Begin());
  for (int i = 0; i < 1000; ++i) {
    pair.a.Send(Text(200, 1));
    ASSERT_EQ(pair.b.Receive(pair.a), Text(200, 1));
  }
  EXPECT_EQ(pair.a.rings.growth(), RingGrowth::kSmall);
  EXPECT_TRUE(pair.a.out.empty());
}

TEST(RingPair, AMessageThatDoesNotFitGoesAtOnceThroughALargeRing) {
  TwoSides pair;
  ASSERT_NO_FATAL_FAILURE(pair.Begin());
  pair.a.Send("before");
  pair.a.Send(Text(50'000, 3));
  pair.a.Send("after");
  EXPECT_EQ(pair.a.rings.growth(), RingGrowth::kLarge);
  EXPECT_EQ(pair.b.rings.growth(), RingGrowth::kSmall);  // the other direction
  EXPECT_FALSE(pair.a.rings.queued());
  ASSERT_EQ(pair.a.out.size(), 1u);
  EXPECT_EQ(pair.b.Receive(pair.a), "before");
  EXPECT_EQ(pair.b.Receive(pair.a), Text(50'000, 3));
  EXPECT_EQ(pair.b.Receive(pair.a), "after");
  EXPECT_TRUE(pair.b.out.empty());
}

TEST(RingPair, ARingThatIsFullAgainAndAgainGrows) {
  TwoSides pair;
  ASSERT_NO_FATAL_FAILURE(pair.Begin());
  std::vector<std::string> sent;
  size_t taken = 0;
  for (int times = 1; times <= 4; ++times) {
    EXPECT_EQ(pair.a.rings.growth(), RingGrowth::kSmall) << times;
    while (!pair.a.rings.queued() && pair.a.rings.growth() == RingGrowth::kSmall) {
      sent.push_back(Text(500, sent.size()));
      pair.a.Send(sent.back());
    }
    if (times == 4) break;
    while (const auto got = pair.b.Receive(pair.a)) ASSERT_EQ(*got, sent[taken++]);
    EXPECT_TRUE(pair.a.Rung()) << "waits for space";
    pair.a.rings.Flush(0);
    while (const auto got = pair.b.Receive(pair.a)) ASSERT_EQ(*got, sent[taken++]);
    EXPECT_EQ(taken, sent.size());
  }
  EXPECT_NE(pair.a.rings.growth(), RingGrowth::kSmall);
  // Nothing is lost or overtaken on the way there.
  for (int i = 0; i < 200; ++i) {
    sent.push_back(Text(500, sent.size()));
    pair.a.Send(sent.back());
    if (const auto got = pair.b.Receive(pair.a)) {
      ASSERT_EQ(*got, sent[taken++]);
    }
    pair.a.rings.Flush(0);
  }
  while (const auto got = pair.b.Receive(pair.a)) ASSERT_EQ(*got, sent[taken++]);
  EXPECT_EQ(taken, sent.size());
  EXPECT_EQ(pair.a.rings.growth(), RingGrowth::kLarge);
}

// Messages of all sizes are sent before the receiver can say that it has no large ring.
TEST(RingPair, AReceiverWithoutADescriptorGetsAllThroughTheSmallRing) {
  for (const bool lost_on_the_way : {false, true}) {
    TwoSides pair;
    ASSERT_NO_FATAL_FAILURE(pair.Begin());
    pair.a.loses_files = lost_on_the_way;
    std::vector<std::string> sent = {"before", Text(30'000, 1), "between", Text(70'000, 2),
                                     "after"};
    for (const std::string& message : sent) pair.a.Send(message);
    if (!lost_on_the_way) {
      ASSERT_EQ(pair.a.out.size(), 1u);
      pair.a.out.front().file.Reset();
    }
    size_t taken = 0;
    for (int turn = 0; turn < 200 && taken < sent.size(); ++turn) {
      while (const auto got = pair.b.Receive(pair.a)) {
        ASSERT_LT(taken, sent.size());
        ASSERT_EQ(*got, sent[taken++]);
      }
      ASSERT_OK(pair.a.TakeAll(pair.b));
      pair.a.rings.Flush(0);
    }
    EXPECT_EQ(taken, sent.size());
    EXPECT_EQ(pair.a.rings.growth(), RingGrowth::kRefused);
    EXPECT_EQ(pair.a.rings.queued_bytes(), 0u);
    EXPECT_TRUE(pair.a.out.empty()) << "tries again";
  }
}

TEST(RingPair, ASenderWithoutADescriptorStaysWithTheSmallRing) {
  TwoSides pair;
  ASSERT_NO_FATAL_FAILURE(pair.Begin());
  {
    const NoDescriptors none;
    pair.a.Send(Text(30'000, 1));
  }
  EXPECT_EQ(pair.a.rings.growth(), RingGrowth::kRefused);
  EXPECT_TRUE(pair.a.out.empty());
  std::optional<std::string> got;
  for (int turn = 0; turn < 100 && !got; ++turn) {
    got = pair.b.Receive(pair.a);
    pair.a.rings.Flush(0);
  }
  EXPECT_EQ(got, Text(30'000, 1));
}

TEST(RingPair, WhoSleepsIsRungForTheLargeRing) {
  TwoSides pair;
  ASSERT_NO_FATAL_FAILURE(pair.Begin());
  EXPECT_TRUE(pair.b.rings.Arm());
  pair.a.Send(Text(30'000, 1));
  EXPECT_TRUE(pair.b.Rung());
  pair.b.rings.Disarm();
  EXPECT_EQ(pair.b.Receive(pair.a), Text(30'000, 1));
  EXPECT_TRUE(pair.b.rings.Arm());
  pair.a.Send("small");
  EXPECT_TRUE(pair.b.Rung());
  // Awake on both sides: no bell.
  pair.b.rings.Disarm();
  EXPECT_EQ(pair.b.Receive(pair.a), "small");
  pair.a.Send("again");
  EXPECT_FALSE(pair.b.Rung());
}

// --- a ring that makes no sense ---

constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

OneSide::Frame FileFrame(RingFrame kind, uint64_t bytes, int seals) {
  OwnFd file(memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  }
  return {kind, std::move(file)};
}

bool BrokeTheRules(const absl::Status& status) { return absl::IsInvalidArgument(status); }

TEST(RingPair, FilesOfAnotherSizeOrWithoutSealsAreRefused) {
  struct Lie {
    uint64_t bytes;
    int seals;
  };
  for (const RingFrame kind : {RingFrame::kRings, RingFrame::kGrow}) {
    const uint64_t right = kind == RingFrame::kRings ? RingPair::kSmallBytes : sizeof(LargeRing);
    // Shrunk, grown, not sealed against either, or not for good; of a silly size.
    for (const Lie& lie :
         {Lie{right - 1, kSealed}, Lie{right + 1, kSealed}, Lie{0, kSealed},
          Lie{uint64_t{1} << 40, kSealed}, Lie{right, 0}, Lie{right, F_SEAL_SHRINK | F_SEAL_SEAL},
          Lie{right, F_SEAL_GROW | F_SEAL_SEAL}, Lie{right, F_SEAL_SHRINK | F_SEAL_GROW}}) {
      TwoSides pair;
      if (kind == RingFrame::kGrow) {
        ASSERT_NO_FATAL_FAILURE(pair.Begin());
      }
      EXPECT_TRUE(BrokeTheRules(pair.b.Take(FileFrame(kind, lie.bytes, lie.seals))))
          << lie.bytes << " " << lie.seals;
    }
    TwoSides pair;
    if (kind == RingFrame::kGrow) {
      ASSERT_NO_FATAL_FAILURE(pair.Begin());
    }
    OneSide::Frame pipe{kind, OwnFd(open("/dev/null", O_RDWR | O_CLOEXEC))};
    EXPECT_TRUE(BrokeTheRules(pair.b.Take(std::move(pipe))));
    EXPECT_OK(pair.b.Take(FileFrame(kind, right, kSealed)));
  }
}

TEST(RingPair, GrowthWithoutEndIsRefused) {
  TwoSides pair;
  // Before there is anything to grow.
  EXPECT_TRUE(BrokeTheRules(pair.b.Take(FileFrame(RingFrame::kGrow, sizeof(LargeRing), kSealed))));
  ASSERT_NO_FATAL_FAILURE(pair.Begin());
  EXPECT_OK(pair.b.Take(FileFrame(RingFrame::kGrow, sizeof(LargeRing), kSealed)));
  EXPECT_TRUE(BrokeTheRules(pair.b.Take(FileFrame(RingFrame::kGrow, sizeof(LargeRing), kSealed))));
  // Nor after it was refused, or is in use.
  TwoSides refused;
  ASSERT_NO_FATAL_FAILURE(refused.Begin());
  EXPECT_OK(refused.b.Take({RingFrame::kGrow, OwnFd()}));
  EXPECT_TRUE(
      BrokeTheRules(refused.b.Take(FileFrame(RingFrame::kGrow, sizeof(LargeRing), kSealed))));
  TwoSides grown;
  ASSERT_NO_FATAL_FAILURE(grown.Begin());
  grown.a.Send(Text(30'000, 1));
  EXPECT_EQ(grown.b.Receive(grown.a), Text(30'000, 1));
  EXPECT_TRUE(BrokeTheRules(grown.b.Take(FileFrame(RingFrame::kGrow, sizeof(LargeRing), kSealed))));
}

TEST(RingPair, FramesOutOfPlaceBreakTheRules) {
  TwoSides pair;
  EXPECT_TRUE(BrokeTheRules(pair.a.Take({RingFrame::kNotGrown, OwnFd()})));
  ASSERT_NO_FATAL_FAILURE(pair.Begin());
  EXPECT_TRUE(BrokeTheRules(pair.a.Take({RingFrame::kNotGrown, OwnFd()})));
  EXPECT_TRUE(BrokeTheRules(pair.a.rings.TakeNone()));
  EXPECT_TRUE(
      BrokeTheRules(pair.b.Take(FileFrame(RingFrame::kRings, RingPair::kSmallBytes, kSealed))));
  EXPECT_TRUE(BrokeTheRules(
      pair.b.Take({RingFrame::kBell, OwnFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))})));
  EXPECT_OK(pair.b.Take({RingFrame::kBell, OwnFd()}));  // wakes
  TwoSides blocking;
  ASSERT_OK(blocking.a.rings.Offer(blocking.a.bell.get()));
  EXPECT_TRUE(BrokeTheRules(blocking.a.Take({RingFrame::kBell, OwnFd(eventfd(0, EFD_CLOEXEC))})));
  EXPECT_FALSE(blocking.a.rings.ready());
}

// A side of which the peer keeps the rings.
struct Spoilt {
  OneSide victim;  // accepting
  Mapping mapping;
  SmallRing* rings = nullptr;  // the first is the liar's

  Spoilt() {
    OneSide::Frame frame = FileFrame(RingFrame::kRings, RingPair::kSmallBytes, kSealed);
    auto mapped = MapRingFile(frame.file.get(), RingPair::kSmallBytes);
    EXPECT_OK(mapped);
    mapping = *std::move(mapped);
    rings = std::launder(reinterpret_cast<SmallRing*>(mapping.data()));
    EXPECT_OK(victim.Take(std::move(frame)));
    EXPECT_OK(victim.Take({RingFrame::kBell, OwnFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))}));
  }
  RingPair::Got Receive() {
    RingPair::Part part;
    return victim.rings.Receive(0, victim.buffer, part);
  }
};

TEST(RingPair, AHeadThatMakesNoSenseIsDamageOnce) {
  for (const uint64_t head : {uint64_t{8}, SmallRing::kBytes + 16, LargeRing::kBytes, UINT64_MAX}) {
    Spoilt spoilt;
    spoilt.rings[0].words.head.store(head);
    EXPECT_EQ(spoilt.Receive(), RingPair::Got::kDamaged) << head;
    EXPECT_EQ(spoilt.Receive(), RingPair::Got::kNothing) << head;
    EXPECT_TRUE(spoilt.victim.rings.Arm()) << "would be awake for ever";
  }
  // Back.
  Spoilt spoilt;
  RingSender sender(spoilt.rings[0].ring());
  ASSERT_TRUE(sender.Push(0, RingRecord::Kind::kLast, "one"));
  EXPECT_EQ(spoilt.Receive(), RingPair::Got::kPart);
  spoilt.rings[0].words.head.store(0);
  EXPECT_EQ(spoilt.Receive(), RingPair::Got::kDamaged);
}

// The caller asks the socket then, and finds that nothing was passed.
TEST(RingPair, AMoveToARingThatWasNotPassedIsBehind) {
  Spoilt spoilt;
  RingSender sender(spoilt.rings[0].ring());
  ASSERT_TRUE(sender.Push(0, RingRecord::Kind::kMoved, ""));
  EXPECT_EQ(spoilt.Receive(), RingPair::Got::kBehind);
  spoilt.victim.rings.Distrust();
  EXPECT_EQ(spoilt.Receive(), RingPair::Got::kNothing);
}

TEST(RingPair, ALargeRingIsCheckedAsTheSmallOne) {
  Spoilt spoilt;
  OneSide::Frame frame = FileFrame(RingFrame::kGrow, sizeof(LargeRing), kSealed);
  ASSERT_OK_AND_ASSIGN(const Mapping mapping, MapRingFile(frame.file.get(), sizeof(LargeRing)));
  auto* const large = std::launder(reinterpret_cast<LargeRing*>(mapping.data()));
  ASSERT_OK(spoilt.victim.Take(std::move(frame)));
  RingSender small(spoilt.rings[0].ring());
  ASSERT_TRUE(small.Push(0, RingRecord::Kind::kMoved, ""));
  RingSender sender(large->ring());
  ASSERT_TRUE(sender.Push(0, RingRecord::Kind::kLast, "one"));
  EXPECT_EQ(spoilt.Receive(), RingPair::Got::kPart);
  // What is put into the small ring now is heard no more.
  ASSERT_TRUE(small.Push(0, RingRecord::Kind::kLast, "too late"));
  EXPECT_EQ(spoilt.Receive(), RingPair::Got::kNothing);
  large->words.head.store(LargeRing::kBytes * 2);
  EXPECT_EQ(spoilt.Receive(), RingPair::Got::kDamaged);
}

// A tail that makes no sense gives the sender no space, and what waits stays bounded by its caller.
TEST(RingPair, ALyingReceiverGetsNothingMore) {
  for (const uint64_t tail : {uint64_t{1} << 20, UINT64_MAX}) {
    Spoilt spoilt;
    while (!spoilt.victim.rings.queued() && spoilt.victim.rings.growth() == RingGrowth::kSmall) {
      spoilt.victim.Send(Text(500, 1));
    }
    spoilt.rings[1].words.tail.store(tail);
    const size_t waits = spoilt.victim.rings.queued_bytes();
    spoilt.victim.rings.Flush(0);
    EXPECT_EQ(spoilt.victim.rings.queued_bytes(), waits);
  }
}

}  // namespace
}  // namespace kvxfer::net
