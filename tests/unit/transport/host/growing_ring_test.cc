// A small ring that a large one replaces: whatever the two sides do at whatever moment, records
// come out in order, nobody who sleeps is forgotten, and what has no place is found out.
#include "src/transport/host/growing_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/scale.h"

namespace kvxfer {
namespace {

using Kind = RingRecord::Kind;
using Got = GrowingReceiver::Got;

struct Memory {
  SmallRing small;
  LargeRing large;
};

struct Rings {
  std::unique_ptr<Memory> own = std::make_unique<Memory>();
  SmallRing* small = &own->small;
  LargeRing* large = &own->large;
  GrowingSender sender{small->ring()};
  GrowingReceiver receiver{small->ring()};

  Rings() = default;
  // Empty rings in memory that was used before.
  explicit Rings(Memory& used) : own(nullptr), small(&used.small), large(&used.large) {
    for (RingWords* words : {&small->words, &large->words}) {
      words->head = 0;
      words->tail = 0;
      words->receiver_sleeps = 0;
      words->sender_waits = 0;
    }
  }

  void Grow() {
    sender.Offer(large->ring());
    receiver.Offer(large->ring());
  }
};

std::optional<std::string> Take(GrowingReceiver& receiver) {
  RingRecord record;
  if (receiver.Peek(record) != Got::kRecord) return std::nullopt;
  std::array<std::byte, LargeRing::kMaxRecordBytes> body;
  receiver.Pop(record, body);
  return std::string(reinterpret_cast<const char*>(body.data()), record.bytes);
}

bool Push(GrowingSender& sender, const std::string& text) {
  return sender.Push(0, Kind::kLast, text);
}

TEST(GrowingRing, TheSmallRingIsEmptiedBeforeTheLargeOneIsRead) {
  Rings rings;
  ASSERT_TRUE(Push(rings.sender, "one"));
  EXPECT_EQ(rings.sender.max_record(), SmallRing::kMaxRecordBytes);
  rings.Grow();
  EXPECT_EQ(rings.sender.max_record(), LargeRing::kMaxRecordBytes);
  ASSERT_TRUE(Push(rings.sender, "two"));
  EXPECT_EQ(rings.sender.growth(), RingGrowth::kLarge);
  ASSERT_TRUE(Push(rings.sender, std::string(LargeRing::kMaxRecordBytes, '3')));
  EXPECT_EQ(Take(rings.receiver), "one");
  EXPECT_EQ(rings.receiver.growth(), RingGrowth::kOffered);
  EXPECT_EQ(Take(rings.receiver), "two");
  EXPECT_EQ(rings.receiver.growth(), RingGrowth::kLarge);
  EXPECT_EQ(Take(rings.receiver), std::string(LargeRing::kMaxRecordBytes, '3'));
  EXPECT_EQ(Take(rings.receiver), std::nullopt);
}

TEST(GrowingRing, AFullSmallRingMovesOnceThereIsSpaceForOneRecord) {
  Rings rings;
  while (Push(rings.sender, std::string(48, 'a'))) {
  }
  rings.Grow();
  EXPECT_FALSE(Push(rings.sender, "first of the large ring"));
  EXPECT_EQ(rings.sender.growth(), RingGrowth::kOffered);
  EXPECT_EQ(Take(rings.receiver), std::string(48, 'a'));
  EXPECT_TRUE(rings.receiver.BellDue());
  EXPECT_TRUE(Push(rings.sender, "first of the large ring"));
  for (uint64_t i = 1; i < SmallRing::kBytes / 64; ++i) {
    EXPECT_EQ(Take(rings.receiver), std::string(48, 'a'));
  }
  EXPECT_EQ(Take(rings.receiver), "first of the large ring");
}

TEST(GrowingRing, WhoSleepsAtTheSmallRingIsRung) {
  Rings rings;
  EXPECT_TRUE(rings.receiver.Arm());
  rings.Grow();
  ASSERT_TRUE(Push(rings.sender, "wake"));
  EXPECT_TRUE(rings.sender.BellDue());
  EXPECT_FALSE(rings.sender.BellDue());
  EXPECT_FALSE(rings.receiver.Arm());
  EXPECT_EQ(Take(rings.receiver), "wake");
  EXPECT_TRUE(rings.receiver.Arm());
  ASSERT_TRUE(Push(rings.sender, "again"));
  EXPECT_TRUE(rings.sender.BellDue());
}

// Pushes again what the receiver has no large ring for; the rest of it waits.
bool TakeBack(GrowingSender& sender, std::deque<std::string>& waiting) {
  std::deque<std::string> back;
  const bool good =
      sender.TakeBack([&](Kind, std::string body) { back.push_back(std::move(body)); });
  waiting.insert(waiting.begin(), back.begin(), back.end());
  while (!waiting.empty() && Push(sender, waiting.front())) waiting.pop_front();
  return good;
}

TEST(GrowingRing, AReceiverWithoutALargeRingGetsAllThroughTheSmallOne) {
  Rings rings;
  ASSERT_TRUE(Push(rings.sender, "one"));
  rings.sender.Offer(rings.large->ring());
  for (const char* text : {"two", "three"}) ASSERT_TRUE(Push(rings.sender, text));
  rings.receiver.Refuse();
  EXPECT_EQ(Take(rings.receiver), "one");
  // kMoved is void, and nothing is behind it yet.
  EXPECT_EQ(Take(rings.receiver), std::nullopt);
  EXPECT_EQ(rings.receiver.growth(), RingGrowth::kStays);
  EXPECT_TRUE(rings.receiver.Arm());
  std::deque<std::string> waiting;
  ASSERT_TRUE(TakeBack(rings.sender, waiting));
  EXPECT_TRUE(rings.sender.BellDue());
  EXPECT_TRUE(waiting.empty());
  EXPECT_EQ(rings.sender.max_record(), SmallRing::kMaxRecordBytes);
  ASSERT_TRUE(Push(rings.sender, "four"));
  for (const char* text : {"two", "three", "four"}) EXPECT_EQ(Take(rings.receiver), text);
  EXPECT_EQ(Take(rings.receiver), std::nullopt);
}

TEST(GrowingRing, ARefusalThatComesBeforeTheMoveLeavesAllAsItWas) {
  Rings rings;
  while (Push(rings.sender, std::string(48, 'a'))) {
  }
  rings.sender.Offer(rings.large->ring());
  EXPECT_FALSE(Push(rings.sender, "waits"));
  rings.receiver.Refuse();
  std::deque<std::string> waiting;
  ASSERT_TRUE(TakeBack(rings.sender, waiting));
  for (uint64_t i = 0; i < SmallRing::kBytes / 64; ++i) {
    EXPECT_EQ(Take(rings.receiver), std::string(48, 'a'));
  }
  ASSERT_TRUE(Push(rings.sender, "waits"));
  EXPECT_EQ(Take(rings.receiver), "waits");
  EXPECT_EQ(rings.receiver.growth(), RingGrowth::kRefused);
}

TEST(GrowingRing, ALyingReceiverIsFoundOut) {
  std::deque<std::string> waiting;
  {
    // Refuses what was not offered.
    Rings rings;
    EXPECT_FALSE(TakeBack(rings.sender, waiting));
  }
  {
    // Refuses twice.
    Rings rings;
    rings.sender.Offer(rings.large->ring());
    ASSERT_TRUE(Push(rings.sender, "moves"));
    EXPECT_TRUE(TakeBack(rings.sender, waiting));
    EXPECT_FALSE(TakeBack(rings.sender, waiting));
  }
  {
    // Has read what it has not got.
    Rings rings;
    rings.Grow();
    ASSERT_TRUE(Push(rings.sender, "moves"));
    EXPECT_EQ(Take(rings.receiver), "moves");
    EXPECT_FALSE(TakeBack(rings.sender, waiting));
  }
  {
    // Has spoilt what was put there.
    Rings rings;
    rings.sender.Offer(rings.large->ring());
    ASSERT_TRUE(Push(rings.sender, "moves"));
    rings.large->words.head.store(LargeRing::kBytes + 16);
    EXPECT_FALSE(TakeBack(rings.sender, waiting));
  }
}

TEST(GrowingRing, ALyingSenderIsFoundOut) {
  RingRecord record;
  {
    // Moves to a ring that it has not passed: whoever has the socket sees that.
    Rings rings;
    RingSender liar(rings.small->ring());
    ASSERT_TRUE(liar.Push(0, Kind::kMoved, ""));
    EXPECT_EQ(rings.receiver.Peek(record), Got::kEarly);
    EXPECT_EQ(rings.receiver.Peek(record), Got::kEarly);
  }
  {
    // Moves twice, where there is no large ring.
    Rings rings;
    rings.receiver.Refuse();
    RingSender liar(rings.small->ring());
    ASSERT_TRUE(liar.Push(0, Kind::kMoved, ""));
    EXPECT_EQ(rings.receiver.Peek(record), Got::kNothing);
    ASSERT_TRUE(liar.Push(0, Kind::kMoved, ""));
    EXPECT_EQ(rings.receiver.Peek(record), Got::kDamaged);
  }
  {
    Rings rings;
    rings.Grow();
    RingSender liar(rings.small->ring());
    ASSERT_TRUE(liar.Push(0, Kind::kMoved, "with a body"));
    EXPECT_EQ(rings.receiver.Peek(record), Got::kDamaged);
  }
  {
    // Moves twice.
    Rings rings;
    rings.Grow();
    RingSender small(rings.small->ring());
    RingSender large(rings.large->ring());
    ASSERT_TRUE(small.Push(0, Kind::kMoved, ""));
    ASSERT_TRUE(large.Push(0, Kind::kMoved, ""));
    EXPECT_EQ(rings.receiver.Peek(record), Got::kDamaged);
    EXPECT_EQ(rings.receiver.Peek(record), Got::kDamaged);
  }
  {
    // The large ring is spoilt before anything is in it.
    Rings rings;
    rings.Grow();
    RingSender small(rings.small->ring());
    ASSERT_TRUE(small.Push(0, Kind::kMoved, ""));
    rings.large->words.head.store(LargeRing::kBytes + 16);
    EXPECT_EQ(rings.receiver.Peek(record), Got::kDamaged);
  }
}

// --- every interleaving ---
//
// The sender pushes records until `total` are in; at some moment it passes the large ring. The
// receiver maps it or not, whenever the frame reaches it, and at the latest when kMoved shows that
// it has come. Each side sleeps whenever it may, and goes on only when its bell was rung or a frame
// comes. The steps of a side are those between which the other one may do something: whole calls,
// because within a call the order is message_ring.h's business, which the test with threads covers.

struct World {
  static constexpr size_t kBody = SmallRing::kMaxRecordBytes;  // four fill the small ring

  World(Memory& memory, size_t records, bool refuses)
      : rings(memory), total(records), refuse(refuses) {}

  enum Step { kSend, kReceive, kOffer, kFrame, kAnswer, kSteps };
  // Where the frame with the large ring, or the refusal, is.
  enum class Frame : uint8_t { kNotSent, kOffered, kRefused, kHandled };

  static std::string Record(size_t i) {
    return std::string(kBody, static_cast<char>('a' + i % 26));
  }

  bool Can(int step) const {
    switch (step) {
      case kSend:
        return (made < total || !waiting.empty()) && (!sender_sleeps || sender_rung);
      case kReceive:
        return !receiver_sleeps || receiver_rung;
      case kOffer:
        return frame == Frame::kNotSent;
      case kFrame:
        return frame == Frame::kOffered;
      case kAnswer:
        return frame == Frame::kRefused;
      default:
        return false;
    }
  }

  void Do(int step) {
    switch (step) {
      case kSend:
        return Send();
      case kReceive:
        return Receive();
      case kOffer:
        rings.sender.Offer(rings.large->ring());
        frame = Frame::kOffered;
        return;
      case kFrame:
        return TakeFrame();
      default:
        ASSERT_TRUE(TakeBack(rings.sender, waiting));
        frame = Frame::kHandled;
        sender_sleeps = !waiting.empty();
        if (rings.sender.BellDue()) receiver_rung = true;
    }
  }

  void Send() {
    sender_sleeps = sender_rung = false;
    if (waiting.empty()) waiting.push_back(Record(made++));
    if (!Push(rings.sender, waiting.front())) {
      sender_sleeps = true;
      return;
    }
    waiting.pop_front();
    if (rings.sender.BellDue()) receiver_rung = true;
  }

  void TakeFrame() {
    if (refuse) {
      rings.receiver.Refuse();
      frame = Frame::kRefused;
    } else {
      rings.receiver.Offer(rings.large->ring());
      frame = Frame::kHandled;
    }
  }

  void Receive() {
    receiver_sleeps = receiver_rung = false;
    rings.receiver.Disarm();
    RingRecord record;
    if (rings.receiver.Peek(record) == Got::kEarly) {
      ASSERT_EQ(frame, Frame::kOffered);
      TakeFrame();
    }
    const auto text = Take(rings.receiver);
    if (!text) {
      receiver_sleeps = rings.receiver.Arm();
      return;
    }
    ASSERT_EQ(*text, Record(taken)) << taken;
    ++taken;
    if (rings.receiver.BellDue()) sender_rung = true;
  }

  Rings rings;
  const size_t total;
  const bool refuse;
  size_t made = 0;
  size_t taken = 0;
  std::deque<std::string> waiting;  // at the sender
  Frame frame = Frame::kNotSent;
  bool sender_sleeps = false;
  bool receiver_sleeps = false;
  bool sender_rung = false;
  bool receiver_rung = false;
};

struct Search {
  Memory* memory;
  size_t total;
  bool refuse;
  std::vector<int> path{};
  size_t ends = 0;
  size_t moves = 0;

  // Runs the steps of `path`, then each step that may follow, and so on, to the end.
  void Run() {
    World world(*memory, total, refuse);
    for (const int step : path) ASSERT_NO_FATAL_FAILURE(world.Do(step));
    bool any = false;
    for (int step = 0; step < World::kSteps; ++step) {
      if (!world.Can(step)) continue;
      any = true;
      path.push_back(step);
      Run();
      path.pop_back();
      if (::testing::Test::HasFatalFailure()) return;
    }
    if (any) return;
    // Nobody can do anything: all of it must have come.
    ++ends;
    const RingGrowth growth = world.rings.receiver.growth();
    moves += growth == RingGrowth::kLarge || growth == RingGrowth::kStays ? 1 : 0;
    ASSERT_EQ(world.taken, total) << "somebody sleeps for good";
  }
};

TEST(GrowingRing, NoOrderOfStepsLosesARecordOrAWakeUp) {
  const auto memory = std::make_unique<Memory>();
  for (const bool refuse : {false, true}) {
    Search search{.memory = memory.get(), .total = testing::kSanitized ? 4 : 5, .refuse = refuse};
    ASSERT_NO_FATAL_FAILURE(search.Run());
    EXPECT_GT(search.ends, testing::kSanitized ? 100u : 1000u);
    EXPECT_GT(search.moves, testing::kSanitized ? 10u : 100u);
    EXPECT_LT(search.moves, search.ends);
  }
}

// --- two threads ---

// Where the frame with the large ring is.
enum class Passed : uint32_t { kNo, kOffered, kMapped, kRefused };
enum class Answer : uint8_t { kMapsAtOnce, kMapsWhenItMust, kRefuses };

// Both sides sleep whenever they can, so a ring that is missed once stops the test for good. The
// large ring is passed before record `grow_at`.
void TwoThreads(uint64_t grow_at, Answer answer) {
  constexpr uint64_t kRecords = 4000;
  Rings rings;
  std::atomic<Passed> passed{Passed::kNo};
  std::atomic<uint64_t> bells[2] = {0, 0};  // of the receiver, of the sender
  const auto ring = [&bells](size_t whom) {
    bells[whom].fetch_add(1);
    bells[whom].notify_one();
  };
  const auto text = [](uint64_t i) {
    return std::string(i * 37 % SmallRing::kMaxRecordBytes, static_cast<char>('a' + i % 26));
  };
  std::jthread sender([&] {
    std::deque<std::string> waiting;
    bool refused = false;
    for (uint64_t i = 0;
         i < kRecords || !waiting.empty() || (answer == Answer::kRefuses && !refused);) {
      const uint64_t heard = bells[1].load();
      if (i == grow_at && passed.load() == Passed::kNo) {
        rings.sender.Offer(rings.large->ring());
        passed.store(Passed::kOffered);
        ring(0);
      }
      if (!refused && passed.load() == Passed::kRefused) {
        refused = true;
        ASSERT_TRUE(TakeBack(rings.sender, waiting));
      } else if (!waiting.empty() && Push(rings.sender, waiting.front())) {
        waiting.pop_front();
      } else if (waiting.empty() && i < kRecords) {
        waiting.push_back(text(i++));
        continue;
      } else {
        bells[1].wait(heard);
      }
      if (rings.sender.BellDue()) ring(0);
    }
  });
  const auto take_frame = [&] {
    if (answer == Answer::kRefuses) {
      rings.receiver.Refuse();
      passed.store(Passed::kRefused);
    } else {
      rings.receiver.Offer(rings.large->ring());
      passed.store(Passed::kMapped);
    }
    ring(1);
  };
  for (uint64_t i = 0; i < kRecords;) {
    const uint64_t heard = bells[0].load();
    RingRecord record;
    const bool early = rings.receiver.Peek(record) == Got::kEarly;
    if (early || (answer == Answer::kMapsAtOnce && passed.load() == Passed::kOffered)) {
      ASSERT_EQ(passed.load(), Passed::kOffered);
      take_frame();
    }
    if (const auto got = Take(rings.receiver)) {
      ASSERT_EQ(*got, text(i)) << i;
      if (rings.receiver.BellDue()) ring(1);
      ++i;
      continue;
    }
    if (rings.receiver.Arm()) bells[0].wait(heard);
    rings.receiver.Disarm();
  }
  if (passed.load() == Passed::kOffered) take_frame();
}

TEST(GrowingRing, NoWakeUpIsLostBetweenTwoThreadsThatGrow) {
  for (const uint64_t grow_at : {0u, 1u, 3u, 100u, 1000u, 3999u}) {
    for (const Answer answer : {Answer::kMapsAtOnce, Answer::kMapsWhenItMust, Answer::kRefuses}) {
      ASSERT_NO_FATAL_FAILURE(TwoThreads(grow_at, answer));
    }
  }
}

}  // namespace
}  // namespace kvxfer
