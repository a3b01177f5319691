#include "src/core/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/plan/run_oracle.h"

namespace kvxfer {
namespace {

using Slices = std::vector<std::vector<PlannedRun>>;

absl::StatusOr<BlockList> FromPaged(const PagedBlocks& blocks, const RegionTable& local,
                                    const RegionTable& remote) {
  static IdPool pool;
  return BlockList::FromPaged(blocks, Direction::kWrite, local, remote, pool);
}

RegionTable TableOf(const std::vector<std::pair<uint64_t, uint64_t>>& ranges) {
  std::vector<RegionView> regions;
  for (size_t i = 0; i < ranges.size(); ++i) {
    regions.push_back({.id = RegionId{static_cast<uint32_t>(i + 1)},
                       .base = ranges[i].first,
                       .bytes = ranges[i].second,
                       .access = Access::kReadWrite});
  }
  return RegionTable(regions, "table");
}

Slices Walk(const BlockList& list, const SliceLimits& limits) {
  Slices slices;
  const BlockView view = ViewOf(list);
  SliceCursor cursor(&view);
  while (!cursor.done()) {
    slices.push_back(RunsOf(cursor.Next(limits)));
    EXPECT_FALSE(slices.back().empty());
    if (slices.back().empty()) break;
  }
  return slices;
}

bool Equal(const BlockRange& a, const BlockRange& b) {
  return a.view == b.view && a.first == b.first && a.bytes == b.bytes && a.pieces == b.pieces;
}

// The runs that a slice says it has: all pieces of blocks; if merged, those of a walk, except that
// the runs of blocks that have several are counted one by one.
void ExpectCount(const BlockView& view, const RunOracle& oracle, const SliceLimits& limits,
                 size_t at, const BlockRange& slice) {
  const size_t walked = oracle.Runs(at, slice.bytes).size();
  if (!limits.merged) {
    ASSERT_EQ(slice.pieces, oracle.Pieces(at, slice.bytes));
  } else if (view.block_pieces.empty()) {
    ASSERT_EQ(slice.pieces, walked);
  } else {
    ASSERT_GE(slice.pieces, walked);
    ASSERT_LE(slice.pieces, oracle.Pieces(at, slice.bytes));
  }
}

// The specification at the heads of plan.h and of RunWalk. A slice ends only because a limit was
// reached.
void ExpectSlices(const BlockView& view, const RunOracle& oracle, const SliceLimits& limits) {
  size_t at = 0;  // byte
  SliceCursor cursor(&view);
  while (!cursor.done()) {
    SliceCursor copy = cursor;
    const BlockRange slice = cursor.Next(limits);
    ASSERT_TRUE(Equal(copy.Next(limits), slice)) << "equal limits, another slice";
    ASSERT_GT(slice.bytes, 0u);
    ASSERT_LE(slice.bytes, limits.max_bytes);
    ASSERT_LE(slice.pieces, limits.max_pieces);
    ASSERT_LE(slice.bytes, oracle.bytes() - at);
    ASSERT_NO_FATAL_FAILURE(ExpectCount(view, oracle, limits, at, slice));
    ASSERT_EQ(RunsOf(slice), oracle.Runs(at, slice.bytes));
    if (!cursor.done() && slice.bytes < limits.max_bytes) {
      ASSERT_EQ(slice.pieces, limits.max_pieces);
      if (limits.merged && view.block_pieces.empty()) {
        ASSERT_GT(oracle.Runs(at, slice.bytes + 1).size(), slice.pieces) << "one more byte fits";
      }
    }
    at += slice.bytes;
  }
  ASSERT_EQ(at, oracle.bytes());
}

void ExpectSpecification(const BlockView& view, const RunOracle& oracle, SliceLimits limits) {
  for (const bool merged : {false, true}) {
    limits.merged = merged;
    SCOPED_TRACE(merged ? "merged" : "one by one");
    ASSERT_NO_FATAL_FAILURE(ExpectSlices(view, oracle, limits));
  }
}

TEST(SliceCursor, NothingIsDoneAtOnce) {
  EXPECT_TRUE(SliceCursor().done());
  const BlockList none;
  const BlockView view = ViewOf(none);
  SliceCursor cursor(&view);
  EXPECT_TRUE(cursor.done());
  const BlockRange slice = cursor.Next({.max_bytes = 10, .max_pieces = 10});
  EXPECT_EQ(slice.bytes, 0u);
  EXPECT_EQ(slice.pieces, 0u);
  EXPECT_TRUE(RunsOf(slice).empty());
}

TEST(SliceCursor, BlocksWithoutBytesAreDoneAtOnce) {
  const std::vector<PagedRegion> nothing{{.base = 0, .block_bytes = 0, .stride = 0, .count = 4}};
  const std::vector<uint32_t> ids{1, 2};
  const auto list = FromPaged({nothing, nothing, ids, ids}, RegionTable(), RegionTable());
  ASSERT_OK(list);
  const BlockView view = ViewOf(*list);
  EXPECT_TRUE(SliceCursor(&view).done());
}

// Nor are there any before the first byte or behind the last: the last slice is known as such.
TEST(SliceCursor, BlocksWithoutBytesAroundOthersAreSkipped) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<Descriptor> blocks{{100, 0}, {100, 10}, {110, 0}, {120, 10}, {130, 0}};
  const auto list = BlockList::FromDescriptors({blocks, blocks}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  const BlockView view = ViewOf(*list);
  SliceCursor cursor(&view);
  EXPECT_EQ(RunsOf(cursor.Next({.max_bytes = 10, .max_pieces = 8})),
            (std::vector<PlannedRun>{{100, 100, 10}}));
  EXPECT_EQ(RunsOf(cursor.Next({.max_bytes = 10, .max_pieces = 8})),
            (std::vector<PlannedRun>{{120, 120, 10}}));
  EXPECT_TRUE(cursor.done());
}

TEST(SliceCursor, ASliceMayEndWithinABlock) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<Descriptor> blocks{{100, 10}, {120, 10}, {140, 10}, {160, 10}};
  const auto list = BlockList::FromDescriptors({blocks, blocks}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  const BlockView view = ViewOf(*list);
  SliceCursor cursor(&view);
  EXPECT_EQ(RunsOf(cursor.Next({.max_bytes = 25, .max_pieces = 8})),
            (std::vector<PlannedRun>{{100, 100, 10}, {120, 120, 10}, {140, 140, 5}}));
  EXPECT_EQ(RunsOf(cursor.Next({.max_bytes = 25, .max_pieces = 8})),
            (std::vector<PlannedRun>{{145, 145, 5}, {160, 160, 10}}));
  EXPECT_TRUE(cursor.done());
}

TEST(SliceCursor, ACopyWalksAgainFromThere) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<Descriptor> blocks{{100, 10}, {300, 10}, {200, 10}};
  const auto list = BlockList::FromDescriptors({blocks, blocks}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  const BlockView view = ViewOf(*list);
  SliceCursor cursor(&view);
  const SliceLimits limits{.max_bytes = 7, .max_pieces = 8};
  cursor.Next(limits);
  SliceCursor copy = cursor;
  Slices a;
  Slices b;
  while (!cursor.done()) a.push_back(RunsOf(cursor.Next(limits)));
  while (!copy.done()) b.push_back(RunsOf(copy.Next(limits)));
  EXPECT_EQ(a, b);
  EXPECT_FALSE(a.empty());
}

TEST(SliceCursor, LimitsOfZeroStillAdvance) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<Descriptor> blocks{{100, 3}};
  const auto list = BlockList::FromDescriptors({blocks, blocks}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  EXPECT_EQ(Walk(*list, {}), (Slices{{{100, 100, 1}}, {{101, 101, 1}}, {{102, 102, 1}}}));
}

// Adjacent in memory, but two registrations: a run never crosses from one to the other.
TEST(SliceCursor, RunsStayInTheirRegions) {
  const RegionTable local = TableOf({{100, 10}, {110, 10}});
  const RegionTable remote = TableOf({{500, 20}});
  const std::vector<Descriptor> from{{100, 10}, {110, 10}};
  const std::vector<Descriptor> to{{500, 10}, {510, 10}};
  const auto list = BlockList::FromDescriptors({from, to}, Direction::kWrite, local, remote);
  ASSERT_OK(list);
  const Slices slices = Walk(*list, {.max_bytes = 100, .max_pieces = 10});
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].size(), 2u);
}

// Each piece counts for max_pieces, also where pieces are merged: here there are four.
TEST(SliceCursor, RunsGrowAcrossPairs) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<PagedRegion> halves{{100, 10, 10, 2}, {120, 10, 10, 2}};
  const std::vector<uint32_t> ids{0, 1};
  const auto list = FromPaged({halves, halves, ids, ids}, table, table);
  ASSERT_OK(list);
  EXPECT_EQ(Walk(*list, {.max_bytes = 100, .max_pieces = 4}), (Slices{{{100, 100, 40, 0, 0}}}));
  EXPECT_EQ(Walk(*list, {.max_bytes = 100, .max_pieces = 3}),
            (Slices{{{100, 100, 30, 0, 0}}, {{130, 130, 10, 0, 0}}}));
}

// A device that takes one address per op gets one op for what lies together.
TEST(SliceCursor, MergedSlicesHoldAdjacentBlocksWithOneRun) {
  const RegionTable table = TableOf({{1000, 100'000}});
  std::vector<uint32_t> ids(100);
  std::iota(ids.begin(), ids.end(), 0u);
  const std::vector<PagedRegion> cache{
      {.base = 1000, .block_bytes = 16, .stride = 16, .count = ids.size()}};
  const auto paged = FromPaged({cache, cache, ids, ids}, table, table);
  ASSERT_OK(paged);
  std::vector<Descriptor> adjacent;
  adjacent.reserve(ids.size());
  for (const uint32_t id : ids) adjacent.push_back({1000 + 16 * id, 16});
  const auto listed =
      BlockList::FromDescriptors({adjacent, adjacent}, Direction::kWrite, table, table);
  ASSERT_OK(listed);
  for (const BlockList* list : {&*paged, &*listed}) {
    EXPECT_EQ(Walk(*list, {.max_bytes = 1 << 20, .max_pieces = 1, .merged = true}).size(), 1u);
    EXPECT_EQ(Walk(*list, {.max_bytes = 400, .max_pieces = 1, .merged = true}).size(), 4u);
    EXPECT_EQ(Walk(*list, {.max_bytes = 1 << 20, .max_pieces = 1}).size(), 100u);
  }
}

// A slice is arithmetic: it touches no id, here of ten million blocks whose ids are nowhere, and
// its position says which they are.
TEST(SliceCursor, ASliceCostsNothingPerId) {
  constexpr uint32_t kIds = 10'000'000;
  constexpr uint64_t kBytes = 4096;
  constexpr uint64_t kSlice = (uint64_t{1} << 40) + 1;  // most of one region, and not whole blocks
  const PagedRegion region{.base = 4096, .block_bytes = kBytes, .stride = kBytes, .count = kIds};
  const std::vector<BlockPieces> pieces{
      {.bytes = kBytes / 8, .dims = {{{2, 8, 8}, {4, 1, 1}}}, .dim_count = 2}};
  for (const uint32_t shape : {BlockPair::kOnePiece, 0u}) {
    const uint64_t each = shape == BlockPair::kOnePiece ? 1 : 8;  // pieces of a block
    const uint64_t piece_bytes = kBytes / each;
    const std::vector<BlockPair> pairs(100, {.local = region,
                                             .remote = region,
                                             .local_region = 0,
                                             .remote_region = 0,
                                             .id_count = kIds,
                                             .pieces = shape});
    const BlockView view{.pairs = pairs, .block_pieces = pieces};
    const uint64_t total = kBytes * kIds * pairs.size();
    uint64_t at = 0;
    for (SliceCursor cursor(&view); !cursor.done();) {
      const BlockRange slice = cursor.Next({.max_bytes = kSlice, .max_pieces = UINT64_MAX});
      const uint64_t block = at / kBytes;
      EXPECT_EQ(slice.first, (BlockPosition{.pair = static_cast<uint32_t>(block / kIds),
                                            .id = static_cast<uint32_t>(block % kIds),
                                            .piece = at % kBytes / piece_bytes,
                                            .offset = at % piece_bytes}));
      EXPECT_EQ(slice.bytes, std::min(kSlice, total - at));
      EXPECT_EQ(slice.pieces, (at + slice.bytes - 1) / piece_bytes - at / piece_bytes + 1);
      at += slice.bytes;
    }
    EXPECT_EQ(at, total);
  }
}

// Every list of up to three blocks of up to two bytes at up to five places on either side, with
// every limit from one to the whole.
TEST(SliceCursor, ExhaustiveSmallDescriptors) {
  const RegionTable local = TableOf({{1, 4}, {5, 4}});
  const RegionTable remote = TableOf({{1, 8}});
  constexpr uint64_t kPlaces = 5;
  constexpr uint64_t kOne = kPlaces * kPlaces * 3;  // local, remote, bytes of one block
  int planned = 0;
  for (uint64_t count = 1; count <= 3; ++count) {
    uint64_t cases = 1;
    for (uint64_t i = 0; i < count; ++i) cases *= kOne;
    // Three blocks: every 7th case keeps this under a second; 7 divides no radix.
    const uint64_t step = count == 3 ? 7 : 1;
    for (uint64_t code = 0; code < cases; code += step * (testing::kSanitized ? 11 : 1)) {
      std::vector<Descriptor> from;
      std::vector<Descriptor> to;
      for (uint64_t i = 0, rest = code; i < count; ++i, rest /= kOne) {
        const uint64_t bytes = rest % kOne / (kPlaces * kPlaces);
        from.push_back({rest % kPlaces + 2, bytes});
        to.push_back({rest / kPlaces % kPlaces + 1, bytes});
      }
      const auto list = BlockList::FromDescriptors({from, to}, Direction::kWrite, local, remote);
      if (!list.ok()) continue;  // overlaps, or crosses from one region to the other
      ++planned;
      const BlockView view = ViewOf(*list);
      const RunOracle oracle(view);
      for (uint64_t max_bytes = 1; max_bytes <= 2 * count; ++max_bytes) {
        for (uint64_t max_pieces = 1; max_pieces <= count; ++max_pieces) {
          ExpectSpecification(view, oracle, {.max_bytes = max_bytes, .max_pieces = max_pieces});
          if (HasFatalFailure()) FAIL() << "count " << count << " code " << code;
        }
      }
    }
  }
  EXPECT_GT(planned, 1000);
}

// Every paged list of one or two pairs of blocks of one or two bytes, up to three ids on either
// side out of three, with and without gaps between blocks, and every limit from one to the whole.
TEST(SliceCursor, ExhaustiveSmallPagedLists) {
  constexpr uint64_t kCount = 3;
  const RegionTable local = TableOf({{1, 20}, {21, 20}});
  const RegionTable remote = TableOf({{1, 40}});
  int planned = 0;
  for (uint32_t shape = 0; shape < 64; shape += testing::kSanitized ? 5 : 1) {
    std::vector<PagedRegion> from;
    std::vector<PagedRegion> to;
    for (uint32_t pair = 0; pair <= (shape & 1); ++pair) {
      const uint64_t bytes = 1 + (shape >> (1 + pair) & 1);
      const uint64_t gap = shape >> 3 & 1;
      // The second pair follows the first at once, in the next region or in the same.
      const uint64_t local_base = pair == 0 ? 21 - kCount * bytes : 21;
      from.push_back({local_base, bytes, bytes, kCount});
      to.push_back(
          {1 + pair * (kCount * (2 + gap)) + (shape >> 4 & 3), bytes, bytes + gap, kCount});
    }
    for (uint32_t code = 0; code < 27 * 27; ++code) {
      std::vector<uint32_t> local_ids;
      std::vector<uint32_t> remote_ids;
      for (uint32_t i = 0, rest = code; i < 3; ++i, rest /= 9) {
        local_ids.push_back(rest % 3);
        remote_ids.push_back(rest / 3 % 3);
      }
      for (size_t ids = 3; ids > 0; --ids) {
        const auto list =
            FromPaged({from, to, std::span(local_ids).first(ids), std::span(remote_ids).first(ids)},
                      local, remote);
        if (!list.ok()) continue;  // a destination twice
        ++planned;
        const BlockView view = ViewOf(*list);
        const RunOracle oracle(view);
        for (uint64_t max_bytes = 1; max_bytes <= list->total_bytes(); ++max_bytes) {
          for (uint64_t max_pieces = 1; max_pieces <= list->size(); ++max_pieces) {
            ExpectSpecification(view, oracle, {.max_bytes = max_bytes, .max_pieces = max_pieces});
            if (HasFatalFailure()) FAIL() << "shape " << shape << " code " << code;
          }
        }
      }
    }
  }
  EXPECT_GT(planned, 1000);
}

// Random paged lists: runs of ids, strides with and without gaps, regions side by side.
TEST(SliceCursor, RandomPagedLists) {
  std::mt19937_64 random(testing::TestSeed());
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < testing::Scaled(4000); ++round) {
    std::vector<PagedRegion> local;
    std::vector<PagedRegion> remote;
    std::vector<std::pair<uint64_t, uint64_t>> regions;
    constexpr uint64_t kBlocks = 24;
    uint64_t at = 1000;
    for (uint64_t pairs = below(3) + 1; pairs > 0; --pairs) {
      const uint64_t bytes = below(9);
      const uint64_t stride = bytes + (below(2) == 0 ? 0 : below(5));
      local.push_back({at, bytes, bytes, kBlocks});
      remote.push_back({at, bytes, stride, kBlocks});
      const uint64_t extent = std::max<uint64_t>(stride * kBlocks, 1);
      regions.emplace_back(at, extent);
      at += extent;
    }
    const RegionTable table = TableOf(regions);
    // Ids in runs: each start is followed by some neighbours, the order of runs is random.
    std::vector<uint32_t> starts(kBlocks / 4);
    std::iota(starts.begin(), starts.end(), 0u);
    std::shuffle(starts.begin(), starts.end(), random);
    std::vector<uint32_t> remote_ids;
    for (const uint32_t start : starts) {
      for (uint32_t i = 0; i < below(5); ++i) remote_ids.push_back(4 * start + i);
    }
    if (remote_ids.empty()) remote_ids.push_back(0);
    std::vector<uint32_t> local_ids;
    for (size_t i = 0; i < remote_ids.size(); ++i) {
      const bool follow = !local_ids.empty() && below(4) != 0 && local_ids.back() + 1 < kBlocks;
      local_ids.push_back(follow ? local_ids.back() + 1 : static_cast<uint32_t>(below(kBlocks)));
    }
    const auto list = FromPaged({local, remote, local_ids, remote_ids}, table, table);
    ASSERT_OK(list);
    const BlockView view = ViewOf(*list);
    ExpectSpecification(view, RunOracle(view),
                        {.max_bytes = below(60) + 1, .max_pieces = below(9) + 1});
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

TEST(SliceCursor, RandomDescriptorLists) {
  std::mt19937_64 random(testing::TestSeed());
  const auto below = [&](uint64_t n) { return random() % n; };
  const RegionTable table = TableOf({{1, 4000}, {200, 100}, {1000, 3001}});
  for (int round = 0; round < testing::Scaled(4000); ++round) {
    std::vector<Descriptor> from;
    std::vector<Descriptor> to;
    uint64_t remote = 1 + below(100);
    uint64_t local = 1 + below(100);
    for (uint64_t i = below(30) + 1; i > 0; --i) {
      const uint64_t bytes = below(12);
      from.push_back({local, bytes});
      to.push_back({remote, bytes});
      remote += bytes + (below(3) == 0 ? below(40) : 0);
      local = below(3) == 0 ? 1 + below(2000) : local + bytes;
    }
    const auto list = BlockList::FromDescriptors({from, to}, Direction::kWrite, table, table);
    ASSERT_OK(list);
    const BlockView view = ViewOf(*list);
    ExpectSpecification(view, RunOracle(view),
                        {.max_bytes = below(50) + 1, .max_pieces = below(9) + 1});
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

// Blocks of several runs, as between unlike KV caches, beside blocks of one; pairs without ids and
// without bytes among them.
TEST(SliceCursor, RandomListsOfBlocksOfRuns) {
  std::mt19937_64 random(testing::TestSeed());
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < testing::Scaled(4000); ++round) {
    const RandomRuns list(random);
    ExpectSpecification(list.view(), RunOracle(list.view()),
                        {.max_bytes = below(60) + 1, .max_pieces = below(9) + 1});
    if (HasFatalFailure()) FAIL() << "round " << round;
  }
}

// Offsets and sums near 2^63 come out right: one large block cut into slices.
TEST(SliceCursor, HugeBlock) {
  const RegionTable table = TableOf({{1, UINT64_MAX - 1}});
  const uint64_t bytes = (uint64_t{1} << 63) + 5;
  const std::vector<Descriptor> blocks{{1, bytes}};
  const auto list = BlockList::FromDescriptors({blocks, blocks}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  const Slices slices = Walk(*list, {.max_bytes = uint64_t{1} << 62, .max_pieces = 1});
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[2], (std::vector<PlannedRun>{{bytes - 4, bytes - 4, 5, 0, 0}}));
}

constexpr uint64_t kKiB = 1024;

TEST(SliceBytes, SmallTransfersAreOneSlice) {
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, 64 * kKiB, 128 * kKiB - 1}) {
    EXPECT_GE(SliceBytes(bytes, 8, 1 << 20), std::max(bytes, 64 * kKiB)) << bytes;
  }
}

TEST(SliceBytes, KeepsItsLimits) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < 100000; ++round) {
    const uint64_t bytes = random() >> (random() % 64);
    const auto rails = static_cast<uint32_t>(random() % 17);
    const uint64_t max_op = random() >> (random() % 64);
    const uint64_t slice = SliceBytes(bytes, rails, max_op);
    SCOPED_TRACE(::testing::Message() << bytes << " bytes, " << rails << " rails, " << max_op);
    ASSERT_GE(slice, std::min(std::max<uint64_t>(max_op, 1), 64 * kKiB));
    ASSERT_LE(slice, std::max<uint64_t>(max_op, 1));
    // Every rail gets a share of what is worth sharing.
    const uint64_t slices = bytes / slice + (bytes % slice != 0 ? 1 : 0);
    if (bytes / (64 * kKiB) >= rails) {
      ASSERT_GE(slices, rails);
    }
    // And no op is spent on crumbs.
    if (max_op >= 64 * kKiB) {
      ASSERT_LE(slices, bytes / (64 * kKiB) + 1);
    }
  }
}

TEST(SliceBytes, LargeTransfersTakeTheLargestOp) {
  EXPECT_EQ(SliceBytes(uint64_t{1} << 30, 2, 1 << 20), uint64_t{1} << 20);
  EXPECT_EQ(SliceBytes(UINT64_MAX, 1, UINT64_MAX), uint64_t{1} << 62);
  EXPECT_EQ(SliceBytes(1 << 20, 1, 4096), 4096u);
  EXPECT_EQ(SliceBytes(1 << 20, 4, 1 << 20), 64 * kKiB);
}

TEST(SliceBytes, WhatABackendWantsWholeIsCutOnlyWhereItMust) {
  constexpr uint64_t kMiB = 1024 * kKiB;
  EXPECT_GE(SliceBytes(32 * kMiB, 1, 32 * kMiB, 32 * kMiB), 32 * kMiB);
  EXPECT_EQ(SliceBytes(33 * kMiB, 1, 32 * kMiB, 32 * kMiB), 32 * kMiB);
  EXPECT_EQ(SliceBytes(64 * kMiB, 1, 32 * kMiB, 32 * kMiB), 32 * kMiB);
  EXPECT_EQ(SliceBytes(5 * kMiB, 1, 32 * kMiB, 2 * kMiB), 2 * kMiB + 512 * kKiB);
  EXPECT_EQ(SliceBytes(7, 1, 0, 0), 1u);
}

}  // namespace
}  // namespace kvxfer
