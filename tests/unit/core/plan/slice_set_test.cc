// A set of slices holds what was put in, nothing else while it is exact; a queue gives each of them
// once, and a walk cuts them as they were cut first.

#include "src/core/plan/slice_set.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

#include "src/core/plan/block_list.h"
#include "src/core/plan/slice_walk.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::testing {
namespace {

std::vector<uint32_t> Members(const SliceSet& set, uint32_t below) {
  std::vector<uint32_t> members;
  for (uint32_t i = set.Next(0); i < below; i = set.Next(i + 1)) members.push_back(i);
  return members;
}

TEST(SliceSet, IsExactUpToItsBound) {
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  for (const uint32_t size : {1u, 63u, 64u, 65u, 1000u, SliceSet::kExact}) {
    SliceSet set;
    std::set<uint32_t> plain;
    EXPECT_TRUE(set.empty());
    for (uint32_t i = 0; i < size / 2 + 1; ++i) {
      const auto slice = static_cast<uint32_t>(random() % size);
      set.Add(slice);
      plain.insert(slice);
    }
    EXPECT_EQ(Members(set, kNoSlice), std::vector<uint32_t>(plain.begin(), plain.end()));
    const auto cut = static_cast<uint32_t>(random() % size);
    set.RemoveBelow(cut);
    EXPECT_EQ(Members(set, kNoSlice), std::vector<uint32_t>(plain.lower_bound(cut), plain.end()));
  }
}

// Beyond it: a superset, in groups that double.
TEST(SliceSet, BeyondItsBoundGroupsCountAsWhole) {
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  for (uint32_t factor = 2; factor <= 1024; factor *= 2) {
    SliceSet set;
    std::set<uint32_t> groups;
    const uint32_t size = SliceSet::kExact * factor;
    set.Add(size - 1);
    groups.insert((size - 1) / factor);
    for (int i = 0; i < 300; ++i) {
      const auto slice = static_cast<uint32_t>(random() % size);
      set.Add(slice);
      groups.insert(slice / factor);
      EXPECT_EQ(set.Next(slice), slice);
    }
    std::vector<uint32_t> want;
    for (const uint32_t group : groups) {
      for (uint32_t i = 0; i < factor; ++i) want.push_back(group * factor + i);
    }
    EXPECT_EQ(Members(set, size), want) << factor;
  }
}

TEST(SliceSet, UnionOfTwoHoldsBoth) {
  for (const uint32_t far : {100u, 5000u, 40'000u}) {
    SliceSet a;
    SliceSet b;
    a.Add(3);
    b.Add(far);
    SliceSet both = a;
    both.Add(b);
    SliceSet other = b;
    other.Add(a);
    for (const uint32_t slice : {3u, far}) {
      EXPECT_EQ(both.Next(slice), slice);
      EXPECT_EQ(other.Next(slice), slice);
    }
    EXPECT_EQ(Members(both, 2 * far), Members(other, 2 * far));
  }
}

// A list of `count` blocks of two slices each.
BlockList Blocks(uint64_t count) {
  const RegionTable local({{RegionId{1}, 1 << 20, 1 << 20, Access::kReadWrite}}, "here");
  const RegionTable remote({{RegionId{1}, 1 << 24, 1 << 20, Access::kReadWrite}}, "there");
  DescriptorBlocks blocks;
  std::vector<Descriptor> from;
  std::vector<Descriptor> to;
  for (uint64_t i = 0; i < count; ++i) {
    from.push_back({.address = (1u << 20) + 300 * i, .bytes = 128});
    to.push_back({.address = (1u << 24) + 256 * i, .bytes = 128});
  }
  blocks.local = from;
  blocks.remote = to;
  auto list = BlockList::FromDescriptors(blocks, Direction::kWrite, local, remote);
  EXPECT_OK(list);
  return *std::move(list);
}

struct Cut {
  BlockPosition first{};
  uint64_t bytes = 0;
  uint32_t pieces = 0;
  bool operator==(const Cut&) const = default;
};

Cut CutOf(const BlockRange& slice) {
  return {.first = slice.first, .bytes = slice.bytes, .pieces = slice.pieces};
}

TEST(SliceQueue, TakesAgainWhatTheFirstWalkCut) {
  const BlockList blocks = Blocks(50);
  const SliceLimits limits{.max_bytes = 64, .max_pieces = 4};
  const BlockView view = blocks.View({}, {});
  std::vector<Cut> first;
  for (SliceCursor cursor(&view); !cursor.done();) first.push_back(CutOf(cursor.Next(limits)));
  const auto total = static_cast<uint32_t>(first.size());
  ASSERT_EQ(total, 100u);
  std::mt19937 random(static_cast<uint32_t>(TestSeed()));
  for (int round = 0; round < 200; ++round) {
    SliceWalk walk(&view);
    SliceQueue queue;
    std::multiset<uint32_t> want;
    std::multiset<uint32_t> got;
    // More is added in the middle of the walk, before and behind where it is.
    for (int batch = 0; batch < 3; ++batch) {
      SliceSet added;
      for (int i = 0; i < 20; ++i) added.Add(static_cast<uint32_t>(random() % total));
      for (const uint32_t slice : Members(added, total)) {
        // Still to be taken: once is enough.
        if (queue.slices().Next(slice) != slice) want.insert(slice);
      }
      queue.Add(added);
      for (auto steps = random() % 30; steps > 0 || batch == 2; --steps) {
        const uint32_t slice = queue.Front(total);
        if (slice == kNoSlice) break;
        BlockRange range;
        if (!walk.StepTo(slice, limits, &range)) continue;
        EXPECT_EQ(first[slice], CutOf(range));
        EXPECT_EQ(walk.done(), slice + 1 == total);
        EXPECT_EQ(queue.IsLast(slice, total), queue.slices().Next(slice + 1) == kNoSlice);
        queue.Pop(slice);
        got.insert(slice);
      }
    }
    EXPECT_EQ(got, want);
    EXPECT_TRUE(queue.slices().empty());
  }
}

// What is under way when slices before it come is taken once more, after them: it was not the last.
TEST(SliceQueue, SlicesThatComeBeforeTheOneUnderWayAreNotLost) {
  SliceSet one;
  one.Add(7);
  SliceQueue queue;
  queue.Add(one);
  EXPECT_EQ(queue.Front(10), 7u);
  EXPECT_TRUE(queue.IsLast(7, 10));
  SliceSet before;
  before.Add(3);
  queue.Add(before);
  EXPECT_FALSE(queue.IsLast(7, 10));
  queue.Pop(7);
  std::vector<uint32_t> taken;
  for (uint32_t slice = queue.Front(10); slice != kNoSlice; slice = queue.Front(10)) {
    taken.push_back(slice);
    queue.Pop(slice);
  }
  EXPECT_EQ(taken, (std::vector<uint32_t>{3, 7}));
}

}  // namespace
}  // namespace kvxfer::testing
