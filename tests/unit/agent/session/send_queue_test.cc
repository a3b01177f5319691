// In which order transfers to one peer may begin: posting, priority, streams; held against a plain
// list for random work.
#include "src/agent/session/send_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <vector>

#include "tests/support/scale.h"

namespace kvxfer::testing {
namespace {

using ::testing::ElementsAre;

TransferPtr Record(uint64_t id, int priority = 0, uint64_t stream = 0, bool numbered = false) {
  auto record = std::make_shared<internal::TransferRecord>();
  record->id = id;
  record->layer_stream = stream;
  record->options.priority = priority;
  if (numbered) record->options.notification = "n";
  return record;
}

std::vector<uint64_t> Drain(SendQueue& queue) {
  std::vector<uint64_t> ids;
  while (!queue.idle()) {
    const TransferPtr record = queue.Pop();
    ids.push_back(record->id);
    if (record->layer_stream != 0) queue.NextOf(record->layer_stream);
  }
  return ids;
}

TEST(SendQueue, PriorityGoesFirstButForNumbers) {
  SendQueue queue;
  queue.Push(Record(1));
  queue.Push(Record(2, 5));
  queue.Push(Record(3, 0, 0, true));
  queue.Push(Record(4, 9, 0, true));  // its number comes after that of 3
  queue.Push(Record(5, 7));
  queue.Push(Record(6, 5));
  EXPECT_THAT(Drain(queue), ElementsAre(5, 2, 6, 1, 3, 4));
}

TEST(SendQueue, OfAStreamOneAtATime) {
  SendQueue queue;
  for (uint64_t id = 1; id <= 3; ++id) queue.Push(Record(id, 0, 7));
  queue.Push(Record(4));
  EXPECT_EQ(queue.Pop()->id, 1u);
  EXPECT_EQ(queue.Pop()->id, 4u);
  EXPECT_TRUE(queue.idle());
  EXPECT_FALSE(queue.empty());
  queue.Push(Record(5, 0, 7));
  EXPECT_TRUE(queue.idle()) << "1 is still being sent";
  EXPECT_TRUE(queue.NextOf(7));
  EXPECT_EQ(queue.Pop()->id, 2u);
  EXPECT_TRUE(queue.NextOf(7));
  EXPECT_EQ(queue.Pop()->id, 3u);
  EXPECT_TRUE(queue.NextOf(7));
  EXPECT_EQ(queue.Pop()->id, 5u);
  EXPECT_FALSE(queue.NextOf(7));
  EXPECT_FALSE(queue.NextOf(7)) << "nobody holds it";
  EXPECT_TRUE(queue.empty());
}

TEST(SendQueue, WhatIsRemovedHoldsNothingUp) {
  SendQueue queue;
  for (uint64_t id = 1; id <= 6; ++id) queue.Push(Record(id, 0, 7));
  EXPECT_EQ(queue.Remove(uint64_t{4})->id, 4u);
  EXPECT_EQ(queue.Remove(uint64_t{1})->id, 1u);
  EXPECT_EQ(queue.Remove(uint64_t{1}), nullptr);
  EXPECT_EQ(queue.front()->id, 2u);
  const auto removed = queue.Remove([](const auto& record) { return record.id % 2 == 0; });
  ASSERT_EQ(removed.size(), 2u);
  EXPECT_THAT(Drain(queue), ElementsAre(3, 5));
}

// A plain list, looked through from its beginning for what may begin.
class Oracle {
 public:
  void Push(const TransferPtr& record) {
    // Where a stream's place in the order is, is decided when its turn comes.
    if (record->layer_stream != 0 && Holds(record->layer_stream)) {
      behind_.push_back(record);
    } else {
      Insert(record);
    }
  }
  std::optional<uint64_t> Pop() {
    if (list_.empty()) return std::nullopt;
    const TransferPtr record = list_.front().record;
    list_.erase(list_.begin());
    if (record->layer_stream != 0) held_.push_back(record->layer_stream);
    return record->id;
  }
  void NextOf(uint64_t stream) {
    std::erase(held_, stream);
    Follow(stream);
  }
  void Remove(uint64_t id) {
    std::erase_if(behind_, [id](const TransferPtr& one) { return one->id == id; });
    const auto at = std::ranges::find(list_, id, [](const Entry& one) { return one.record->id; });
    if (at == list_.end()) return;
    const uint64_t stream = at->record->layer_stream;
    list_.erase(at);
    if (stream != 0) Follow(stream);
  }
  const std::vector<uint64_t>& held() const { return held_; }

 private:
  struct Entry {
    TransferPtr record;
    int priority = 0;
  };

  bool Holds(uint64_t stream) const {
    return std::ranges::find(held_, stream) != held_.end() ||
           std::ranges::find(list_, stream, [](const Entry& one) {
             return one.record->layer_stream;
           }) != list_.end();
  }
  void Follow(uint64_t stream) {
    const auto at =
        std::ranges::find(behind_, stream, [](const auto& one) { return one->layer_stream; });
    if (at == behind_.end()) return;
    const TransferPtr record = *at;
    behind_.erase(at);
    Insert(record);
  }
  static bool Numbered(const Entry& entry) {
    return entry.record->options.notification.has_value();
  }
  // Before the first of lower priority; a numbered one has at most that of the numbered ones
  // before.
  void Insert(const TransferPtr& record) {
    Entry entry{record, record->options.priority};
    if (Numbered(entry)) {
      for (const Entry& other : list_) {
        if (Numbered(other)) entry.priority = std::min(entry.priority, other.priority);
      }
    }
    const auto at = std::ranges::find_if(
        list_, [&](const Entry& other) { return other.priority < entry.priority; });
    list_.insert(at, entry);
  }

  std::vector<Entry> list_;
  std::vector<TransferPtr> behind_;
  std::vector<uint64_t> held_;
};

TEST(SendQueue, AsAPlainListDoes) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < Scaled(2'000) && !HasFailure(); ++round) {
    SendQueue queue;
    Oracle oracle;
    uint64_t last = 0;
    for (int step = 0; step < 60; ++step) {
      switch (random() % 6) {
        case 0:
        case 1: {
          const auto record =
              Record(++last, static_cast<int>(random() % 3), random() % 4, random() % 3 == 0);
          queue.Push(record);
          oracle.Push(record);
          break;
        }
        case 2:
        case 3: {
          const auto id = oracle.Pop();
          ASSERT_EQ(queue.idle(), !id.has_value());
          if (!id.has_value()) break;
          EXPECT_EQ(queue.Pop()->id, *id);
          break;
        }
        case 4: {
          if (oracle.held().empty()) break;
          const uint64_t stream = oracle.held()[random() % oracle.held().size()];
          oracle.NextOf(stream);
          queue.NextOf(stream);
          break;
        }
        default: {
          const uint64_t id = 1 + random() % (last + 1);
          oracle.Remove(id);
          queue.Remove(id);
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvxfer::testing
