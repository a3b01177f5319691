#include "src/core/base/keeping_allocator.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <utility>

namespace kvxfer {
namespace {

using Kept = std::map<int, int, std::less<>, KeepingAllocator<std::pair<const int, int>>>;

TEST(KeepingAllocator, ANodeThatGoesIsTheNextThatComes) {
  Kept kept;
  const int* const first = &kept.emplace(1, 10).first->second;
  kept.erase(1);
  const int* const second = &kept.emplace(2, 20).first->second;
  if (Kept::allocator_type::kKeeps) {
    EXPECT_EQ(second, first);
  }
  EXPECT_EQ(kept.at(2), 20);
}

TEST(KeepingAllocator, KeepsAFewAndFreesTheRest) {
  constexpr int kMany = 100;
  Kept kept;
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kMany; ++i) kept.emplace(i, i);
    for (int i = 0; i < kMany; i += 2) kept.erase(i);
    kept.clear();
  }
  EXPECT_TRUE(kept.empty());
}

// What one has allocated another one may free; a copy has nodes of its own.
TEST(KeepingAllocator, CopiesAndMoves) {
  Kept kept{{1, 1}, {2, 2}, {3, 3}};
  kept.erase(2);
  Kept copy = kept;
  Kept moved = std::move(kept);
  copy.emplace(4, 4);
  swap(copy, moved);
  EXPECT_EQ(moved.size(), 3u);
  EXPECT_EQ(copy.size(), 2u);
  copy = moved;
  moved.clear();
  EXPECT_EQ(copy.at(4), 4);
}

TEST(KeepingAllocator, SetsToo) {
  std::multiset<int64_t, std::less<>, KeepingAllocator<int64_t>> numbers{3, 3, 1};
  numbers.erase(numbers.find(3));
  numbers.insert(2);
  EXPECT_EQ(*numbers.begin(), 1);
  EXPECT_EQ(*numbers.rbegin(), 3);
}

}  // namespace
}  // namespace kvxfer
