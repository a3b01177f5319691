// The ring of messages that two processes share, small and large: what goes in comes out, whatever
// the sizes; who sleeps is rung for; and what a damaged or lying other side does to it stays
// harmless.
#include "src/transport/host/message_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "src/transport/host/growing_ring.h"

namespace kvxfer {
namespace {

using Kind = RingRecord::Kind;

template <typename Memory>
struct Pair {
  std::unique_ptr<Memory> memory = std::make_unique<Memory>();
  RingSender sender{memory->ring()};
  RingReceiver receiver{memory->ring()};
};

template <typename Memory>
class MessageRing : public ::testing::Test {};
using Sizes = ::testing::Types<SmallRing, LargeRing>;
TYPED_TEST_SUITE(MessageRing, Sizes);

std::string Text(size_t bytes, size_t seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + seed);
  return text;
}

std::optional<std::string> Take(RingReceiver& receiver) {
  RingRecord record;
  if (receiver.Peek(record) != RingReceiver::Got::kRecord) return std::nullopt;
  std::array<std::byte, LargeRing::kMaxRecordBytes> body;
  receiver.Pop(record, body);
  return std::string(reinterpret_cast<const char*>(body.data()), record.bytes);
}

TYPED_TEST(MessageRing, EverySizeAtEveryPlace) {
  Pair<TypeParam> pair;
  for (size_t i = 0; i < 20'000; ++i) {
    const std::string text = Text(i * 7 % (TypeParam::kMaxRecordBytes + 1), i);
    ASSERT_TRUE(pair.sender.Push(i, i % 3 == 0 ? Kind::kMore : Kind::kLast, text));
    RingRecord record;
    ASSERT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kRecord);
    EXPECT_EQ(record.after, i);
    EXPECT_EQ(record.kind, i % 3 == 0 ? Kind::kMore : Kind::kLast);
    ASSERT_EQ(Take(pair.receiver), text) << i;
  }
}

TYPED_TEST(MessageRing, FillsAndGivesRoomBackAgainstAQueue) {
  Pair<TypeParam> pair;
  std::mt19937_64 random(7);
  std::deque<std::string> oracle;
  uint64_t refused = 0;
  for (size_t i = 0; i < 200'000; ++i) {
    if (random() % 8 < 5) {
      const std::string text =
          Text(random() % 16 == 0 ? random() % TypeParam::kMaxRecordBytes : random() % 200, i);
      if (pair.sender.Push(0, Kind::kLast, text)) {
        oracle.push_back(text);
      } else {
        ++refused;
        // Room is rung for, once there is some.
        ASSERT_EQ(Take(pair.receiver), oracle.front());
        oracle.pop_front();
        EXPECT_TRUE(pair.receiver.BellDue());
        EXPECT_FALSE(pair.receiver.BellDue());
      }
      continue;
    }
    const auto text = Take(pair.receiver);
    ASSERT_EQ(text.has_value(), !oracle.empty());
    if (!text.has_value()) continue;
    ASSERT_EQ(*text, oracle.front());
    oracle.pop_front();
  }
  EXPECT_GT(refused, 10u);
}

TYPED_TEST(MessageRing, TheReceiverThatSleepsIsRungForOnce) {
  Pair<TypeParam> pair;
  ASSERT_TRUE(pair.sender.Push(0, Kind::kLast, "awake"));
  EXPECT_FALSE(pair.sender.BellDue());
  // Expect that what is there already keeps it awake.
  EXPECT_FALSE(pair.receiver.Arm());
  ASSERT_TRUE(Take(pair.receiver).has_value());
  EXPECT_TRUE(pair.receiver.Arm());
  ASSERT_TRUE(pair.sender.Push(0, Kind::kLast, "asleep"));
  EXPECT_TRUE(pair.sender.BellDue());
  EXPECT_FALSE(pair.sender.BellDue());
  ASSERT_TRUE(Take(pair.receiver).has_value());
  EXPECT_TRUE(pair.receiver.Arm());
  pair.receiver.Disarm();
  ASSERT_TRUE(pair.sender.Push(0, Kind::kLast, "awake again"));
  EXPECT_FALSE(pair.sender.BellDue());
}

TYPED_TEST(MessageRing, ALyingSenderIsFoundOut) {
  RingRecord record;
  for (const uint64_t head : {uint64_t{8}, TypeParam::kBytes + 16, UINT64_MAX}) {
    Pair<TypeParam> pair;
    pair.memory->words.head.store(head);
    EXPECT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kDamaged) << head;
  }
  for (const uint32_t bytes :
       {uint32_t{1}, uint32_t{17}, uint32_t{TypeParam::kMaxRecordBytes + 1}, UINT32_MAX}) {
    Pair<TypeParam> pair;
    const RingRecord lie{.bytes = bytes};
    std::memcpy(pair.memory->data, &lie, sizeof(lie));
    pair.memory->words.head.store(sizeof(RingRecord));
    EXPECT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kDamaged) << bytes;
  }
  for (const uint32_t kind : {uint32_t{3}, UINT32_MAX}) {
    Pair<TypeParam> pair;
    const RingRecord lie{.kind = static_cast<Kind>(kind)};
    std::memcpy(pair.memory->data, &lie, sizeof(lie));
    pair.memory->words.head.store(sizeof(RingRecord));
    EXPECT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kDamaged) << kind;
  }
}

// Expect that a head that moves back is as good as one that moves too far.
TYPED_TEST(MessageRing, AHeadThatMovesBackIsFoundOut) {
  Pair<TypeParam> pair;
  ASSERT_TRUE(pair.sender.Push(0, Kind::kLast, "one"));
  ASSERT_TRUE(pair.sender.Push(0, Kind::kLast, "two"));
  ASSERT_EQ(Take(pair.receiver), "one");
  ASSERT_EQ(Take(pair.receiver), "two");
  RingRecord record;
  for (const uint64_t back : {uint64_t{0}, uint64_t{32}, uint64_t{63}}) {
    pair.memory->words.head.store(back);
    EXPECT_TRUE(pair.receiver.filled());
    EXPECT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kDamaged) << back;
  }
}

// What was checked is what is used: the header is copied out before.
TYPED_TEST(MessageRing, ARecordThatChangesWhileItIsReadStaysAsItWas) {
  Pair<TypeParam> pair;
  ASSERT_TRUE(pair.sender.Push(5, Kind::kMore, "body"));
  ASSERT_TRUE(pair.sender.Push(6, Kind::kLast, "next"));
  RingRecord record;
  ASSERT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kRecord);
  const RingRecord lie{.bytes = UINT32_MAX, .kind = Kind::kMoved, .after = 99};
  std::memcpy(pair.memory->data, &lie, sizeof(lie));
  pair.memory->words.head.store(UINT64_MAX);
  std::array<std::byte, TypeParam::kMaxRecordBytes> body{};
  pair.receiver.Pop(record, body);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(body.data()), record.bytes), "body");
  EXPECT_EQ(record.after, 5u);
  EXPECT_EQ(body[4], std::byte{0});
  // The next one is where it was.
  pair.memory->words.head.store(64);
  EXPECT_EQ(Take(pair.receiver), "next");
}

TYPED_TEST(MessageRing, ALyingReceiverGetsNoRoomForIt) {
  constexpr size_t kBody = TypeParam::kBytes / 64 - sizeof(RingRecord);
  for (const uint64_t tail : {TypeParam::kBytes * 2, UINT64_MAX, uint64_t{0}}) {
    Pair<TypeParam> pair;
    size_t pushed = 0;
    while (pair.sender.Push(0, Kind::kLast, Text(kBody, pushed))) ++pushed;
    pair.memory->words.tail.store(tail);
    EXPECT_FALSE(pair.sender.Push(0, Kind::kLast, Text(kBody, 0))) << tail;
    EXPECT_EQ(pushed, 64u);
  }
}

// Both sides sleep whenever they can, so a ring that is missed once stops the test for good.
TYPED_TEST(MessageRing, NoWakeUpIsLostBetweenTwoThreads) {
  constexpr uint64_t kRecords = 100'000;
  constexpr size_t kMost = std::min<size_t>(4000, TypeParam::kMaxRecordBytes + 1);
  Pair<TypeParam> pair;
  std::atomic<uint64_t> bells[2] = {0, 0};  // of the receiver, of the sender
  const auto ring = [&bells](size_t whom) {
    bells[whom].fetch_add(1);
    bells[whom].notify_one();
  };
  std::jthread sender([&] {
    std::mt19937_64 random(3);
    for (uint64_t i = 0; i < kRecords; ++i) {
      const std::string text = Text(random() % kMost, i);
      for (;;) {
        const uint64_t heard = bells[1].load();
        if (pair.sender.Push(i, Kind::kLast, text)) break;
        bells[1].wait(heard);
      }
      if (pair.sender.BellDue()) ring(0);
    }
  });
  std::mt19937_64 random(3);
  for (uint64_t i = 0; i < kRecords;) {
    const uint64_t heard = bells[0].load();
    if (auto text = Take(pair.receiver)) {
      ASSERT_EQ(*text, Text(random() % kMost, i)) << i;
      if (pair.receiver.BellDue()) ring(1);
      ++i;
      continue;
    }
    if (pair.receiver.Arm()) bells[0].wait(heard);
    pair.receiver.Disarm();
  }
}

}  // namespace
}  // namespace kvxfer
