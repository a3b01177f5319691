// The ring of messages that two processes share: what goes in comes out, whatever the sizes; who
// sleeps is rung for; and what a damaged or lying other side does to it stays harmless.
#include "src/backends/shm/ring.h"

#include <gtest/gtest.h>

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

namespace kvxfer::shm {
namespace {

struct Pair {
  std::unique_ptr<RingMemory> memory = std::make_unique<RingMemory>();
  RingSender sender{memory.get()};
  RingReceiver receiver{memory.get()};
};

std::string Text(size_t bytes, size_t seed) {
  std::string text(bytes, '\0');
  for (size_t i = 0; i < bytes; ++i) text[i] = static_cast<char>(i * 31 + seed);
  return text;
}

std::optional<std::string> Take(RingReceiver& receiver) {
  RingRecord record;
  if (receiver.Peek(record) != RingReceiver::Got::kRecord) return std::nullopt;
  std::array<std::byte, kMaxRecordBytes> body;
  receiver.Pop(record, body);
  return std::string(reinterpret_cast<const char*>(body.data()), record.bytes);
}

TEST(ShmRing, EverySizeAtEveryPlace) {
  Pair pair;
  for (size_t i = 0; i < 20'000; ++i) {
    const std::string text = Text(i * 7 % (kMaxRecordBytes + 1), i);
    ASSERT_TRUE(pair.sender.Push(i, i % 3 == 0, text));
    RingRecord record;
    ASSERT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kRecord);
    EXPECT_EQ(record.after, i);
    EXPECT_EQ(record.more, i % 3 == 0 ? 1u : 0u);
    ASSERT_EQ(Take(pair.receiver), text) << i;
  }
}

TEST(ShmRing, FillsAndGivesRoomBackAgainstAQueue) {
  Pair pair;
  std::mt19937_64 random(7);
  std::deque<std::string> oracle;
  uint64_t refused = 0;
  for (size_t i = 0; i < 200'000; ++i) {
    if (random() % 8 < 5) {
      const std::string text =
          Text(random() % 16 == 0 ? random() % kMaxRecordBytes : random() % 200, i);
      if (pair.sender.Push(0, false, text)) {
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

TEST(ShmRing, TheReceiverThatSleepsIsRungForOnce) {
  Pair pair;
  ASSERT_TRUE(pair.sender.Push(0, false, "awake"));
  EXPECT_FALSE(pair.sender.BellDue());
  // Expect that what is there already keeps it awake.
  EXPECT_FALSE(pair.receiver.Arm());
  ASSERT_TRUE(Take(pair.receiver).has_value());
  EXPECT_TRUE(pair.receiver.Arm());
  ASSERT_TRUE(pair.sender.Push(0, false, "asleep"));
  EXPECT_TRUE(pair.sender.BellDue());
  EXPECT_FALSE(pair.sender.BellDue());
  ASSERT_TRUE(Take(pair.receiver).has_value());
  EXPECT_TRUE(pair.receiver.Arm());
  pair.receiver.Disarm();
  ASSERT_TRUE(pair.sender.Push(0, false, "awake again"));
  EXPECT_FALSE(pair.sender.BellDue());
}

TEST(ShmRing, ALyingSenderIsFoundOut) {
  RingRecord record;
  for (const uint64_t head : {uint64_t{8}, RingMemory::kBytes + 16, UINT64_MAX}) {
    Pair pair;
    pair.memory->head.store(head);
    EXPECT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kDamaged) << head;
  }
  for (const uint32_t bytes :
       {uint32_t{1}, uint32_t{17}, uint32_t{kMaxRecordBytes + 1}, UINT32_MAX}) {
    Pair pair;
    const RingRecord lie{.bytes = bytes};
    std::memcpy(pair.memory->data, &lie, sizeof(lie));
    pair.memory->head.store(sizeof(RingRecord));
    EXPECT_EQ(pair.receiver.Peek(record), RingReceiver::Got::kDamaged) << bytes;
  }
}

TEST(ShmRing, ALyingReceiverGetsNoRoomForIt) {
  for (const uint64_t tail : {RingMemory::kBytes * 2, UINT64_MAX, uint64_t{0}}) {
    Pair pair;
    size_t pushed = 0;
    while (pair.sender.Push(0, false, Text(1000, pushed))) ++pushed;
    pair.memory->tail.store(tail);
    EXPECT_FALSE(pair.sender.Push(0, false, Text(1000, 0))) << tail;
    EXPECT_EQ(pushed, RingMemory::kBytes / 1024);
  }
}

// Both sides sleep whenever they can, so a ring that is missed once stops the test for good.
TEST(ShmRing, NoWakeUpIsLostBetweenTwoThreads) {
  constexpr uint64_t kRecords = 100'000;
  Pair pair;
  std::atomic<uint64_t> bells[2] = {0, 0};  // of the receiver, of the sender
  const auto ring = [&bells](size_t whom) {
    bells[whom].fetch_add(1);
    bells[whom].notify_one();
  };
  std::jthread sender([&] {
    std::mt19937_64 random(3);
    for (uint64_t i = 0; i < kRecords; ++i) {
      const std::string text = Text(random() % 4000, i);
      for (;;) {
        const uint64_t heard = bells[1].load();
        if (pair.sender.Push(i, false, text)) break;
        bells[1].wait(heard);
      }
      if (pair.sender.BellDue()) ring(0);
    }
  });
  std::mt19937_64 random(3);
  for (uint64_t i = 0; i < kRecords;) {
    const uint64_t heard = bells[0].load();
    if (auto text = Take(pair.receiver)) {
      ASSERT_EQ(*text, Text(random() % 4000, i)) << i;
      if (pair.receiver.BellDue()) ring(1);
      ++i;
      continue;
    }
    if (pair.receiver.Arm()) bells[0].wait(heard);
    pair.receiver.Disarm();
  }
}

}  // namespace
}  // namespace kvxfer::shm
