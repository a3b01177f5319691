// Readers that wait for a lease: each leaves once, in order, and they are bounded.
#include "src/core/protocol/lease_waiters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvxfer::testing {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr Time At(int second) { return Time{} + seconds(second); }

LeaseWaiters::Waiter Waits(LeaseWaiters::Reader reader, uint64_t transfer, std::string lease,
                           Time until) {
  return {
      .reader = reader, .read = {.transfer = transfer, .lease = std::move(lease)}, .until = until};
}

using Keys = std::vector<std::pair<LeaseWaiters::Reader, uint64_t>>;

Keys KeysOf(const std::vector<LeaseWaiters::Waiter>& waiters) {
  Keys keys;
  for (const auto& waiter : waiters) keys.emplace_back(waiter.reader, waiter.read.transfer);
  return keys;
}

TEST(LeaseWaiters, ThoseOfALeaseLeaveWithItInTheOrderInWhichTheyCame) {
  LeaseWaiters waiters;
  EXPECT_TRUE(waiters.Add(Waits(2, 9, "a", At(5))).ok);
  EXPECT_TRUE(waiters.Add(Waits(1, 1, "b", At(3))).ok);
  EXPECT_TRUE(waiters.Add(Waits(1, 2, "a", At(4))).ok);
  EXPECT_FALSE(waiters.Add(Waits(1, 2, "b", At(9))).ok) << "it waits already";
  EXPECT_EQ(waiters.NextEnd(), At(3));
  EXPECT_THAT(KeysOf(waiters.TakeOf("c")), IsEmpty());
  EXPECT_THAT(KeysOf(waiters.TakeOf("a")), ElementsAre(Pair(2, 9), Pair(1, 2)));
  EXPECT_THAT(KeysOf(waiters.TakeOf("a")), IsEmpty());
  EXPECT_THAT(KeysOf(waiters.TakeOver(At(9))), ElementsAre(Pair(1, 1)));
  EXPECT_EQ(waiters.NextEnd(), std::nullopt);
  EXPECT_EQ(waiters.size(), 0u);
}

TEST(LeaseWaiters, TheyLeaveByTheirTimeByTheirWillAndWithTheirReader) {
  LeaseWaiters waiters;
  for (uint64_t transfer = 1; transfer <= 4; ++transfer) {
    ASSERT_TRUE(waiters.Add(Waits(1, transfer, "a", At(static_cast<int>(transfer)))).ok);
  }
  ASSERT_TRUE(waiters.Add(Waits(2, 1, "a", At(9))).ok);
  EXPECT_THAT(KeysOf(waiters.TakeOver(At(0))), IsEmpty());
  EXPECT_THAT(KeysOf(waiters.TakeOver(At(2))), ElementsAre(Pair(1, 1), Pair(1, 2)));
  waiters.Remove(1, 3);
  waiters.Remove(1, 3);
  waiters.Remove(7, 1);
  waiters.Sweep(7);
  EXPECT_EQ(waiters.size(), 2u);
  waiters.Sweep(1);
  EXPECT_THAT(KeysOf(waiters.TakeOf("a")), ElementsAre(Pair(2, 1)));
}

// All places are taken, by one reader most of them: others get theirs, until they have as many.
TEST(LeaseWaiters, NoReaderKeepsOthersFromWaiting) {
  LeaseWaiters waiters;
  uint64_t added = 0;
  while (waiters.Add(Waits(1, added + 1, "a", At(5))).ok) ++added;
  EXPECT_EQ(added, LeaseWaiters::kMaxOfReader);
  EXPECT_TRUE(waiters.Add(Waits(2, 1, "a", At(5))).ok);
  for (LeaseWaiters::Reader reader = 3; waiters.size() < LeaseWaiters::kMax; ++reader) {
    for (uint64_t transfer = 1; transfer <= LeaseWaiters::kMaxOfReader / 2; ++transfer) {
      if (waiters.size() == LeaseWaiters::kMax) break;
      ASSERT_TRUE(waiters.Add(Waits(reader, transfer, "b", At(5))).ok);
    }
  }
  const LeaseWaiters::Added one = waiters.Add(Waits(99, 1, "b", At(5)));
  EXPECT_TRUE(one.ok);
  ASSERT_TRUE(one.gave_way.has_value());
  EXPECT_EQ(one.gave_way->reader, 1u);
  EXPECT_EQ(one.gave_way->read.transfer, LeaseWaiters::kMaxOfReader);
  EXPECT_EQ(waiters.size(), LeaseWaiters::kMax);
  EXPECT_FALSE(waiters.Add(Waits(1, 5000, "b", At(5))).ok) << "it has the most itself";
  uint64_t last = 1;
  while (waiters.Add(Waits(99, last + 1, "b", At(5))).ok) ++last;
  EXPECT_GE(last, LeaseWaiters::kMaxOfReader / 2);
  EXPECT_EQ(waiters.TakeOver(At(5)).size(), LeaseWaiters::kMax);
}

}  // namespace
}  // namespace kvxfer::testing
