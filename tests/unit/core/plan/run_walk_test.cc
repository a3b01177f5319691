// Every part of a block list is walked as its fewest runs, wherever it begins and ends, and
// whatever is taken of a run at a time.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "src/core/plan/pair_walk.h"
#include "tests/support/run_blocks.h"
#include "tests/support/scale.h"
#include "tests/unit/core/plan/run_oracle.h"

namespace kvxfer {
namespace {

// `bytes` bytes of `view`, from byte `first` on.
BlockRange Part(const BlockView& view, uint64_t first, uint64_t bytes) {
  SliceCursor cursor(&view);
  if (first > 0) cursor.Next({.max_bytes = first, .max_pieces = UINT64_MAX});
  return cursor.Next({.max_bytes = bytes, .max_pieces = UINT64_MAX});
}

bool SameRun(const Run& a, const Run& b) {
  return a.local == b.local && a.remote == b.remote && a.bytes == b.bytes &&
         a.registration == b.registration && a.key == b.key;
}

// Takes up to `step` bytes of a run at a time; what is taken, joined, are the runs of the range.
void ExpectTakes(const BlockRange& range, uint64_t step, const std::vector<PlannedRun>& want) {
  std::vector<PlannedRun> got;
  uint64_t left = range.bytes;
  bool fresh = true;  // no byte of the run was taken
  RunWalk walk(range);
  while (!walk.done()) {
    ASSERT_EQ(walk.left(), left);
    const Run run = walk.run();
    const Run ahead = walk.Ahead();
    const uint64_t taken = std::min(run.bytes, step);
    PlannedRun piece = RegionNames::Get().Planned(run);
    piece.bytes = taken;
    if (fresh) {
      got.push_back(piece);
    } else {
      ASSERT_EQ(piece.local, got.back().local + got.back().bytes);
      ASSERT_EQ(piece.remote, got.back().remote + got.back().bytes);
      ASSERT_EQ(piece.local_region, got.back().local_region);
      ASSERT_EQ(piece.remote_region, got.back().remote_region);
      got.back().bytes += taken;
    }
    // A copy is a walk of its own, from the same place.
    RunWalk copy = walk;
    walk.Take(taken);
    ASSERT_TRUE(SameRun(copy.run(), run));
    copy.Take(taken);
    ASSERT_TRUE(SameRun(copy.run(), walk.run()));
    left -= taken;
    fresh = taken == run.bytes;
    if (!fresh) {
      ASSERT_TRUE(SameRun(walk.Ahead(), ahead));
    } else if (walk.done()) {
      ASSERT_EQ(ahead.bytes, 0u);
    }
  }
  ASSERT_EQ(left, 0u);
  ASSERT_EQ(walk.left(), 0u);
  ASSERT_EQ(got, want);
}

// Pair by pair: whole blocks of a pair are one step, and the steps are the runs of the range.
void ExpectPairs(const BlockRange& range, const std::vector<PlannedRun>& want) {
  std::vector<PlannedRun> got;
  const BlockPair* before = nullptr;
  for (PairWalk walk(range); !walk.done(); walk.Next()) {
    const BlockRange step = walk.range();
    if (walk.pair() != nullptr) {
      ASSERT_NE(walk.pair(), before) << "its blocks came in two steps";
      ASSERT_EQ(walk.pair(), &range.view->pairs[step.first.pair]);
      ASSERT_GT(walk.blocks(), 0u);
      ASSERT_LE(walk.first_id() + walk.blocks(), walk.pair()->id_count);
      ASSERT_EQ(step.bytes, walk.blocks() * BlockBytes(*range.view, *walk.pair()));
      ASSERT_EQ(step.first, (BlockPosition{.pair = step.first.pair, .id = walk.first_id()}));
    } else if (!range.view->pairs.empty()) {
      ASSERT_LT(step.bytes, BlockBytes(*range.view, range.view->pairs[step.first.pair]));
    }
    before = walk.pair();
    for (const PlannedRun& run : RunsOf(step)) {
      if (!got.empty() && run.local == got.back().local + got.back().bytes &&
          run.remote == got.back().remote + got.back().bytes &&
          run.local_region == got.back().local_region &&
          run.remote_region == got.back().remote_region) {
        got.back().bytes += run.bytes;
      } else {
        got.push_back(run);
      }
    }
  }
  ASSERT_EQ(got, want);
}

// Every part of the list, with every step from one byte to all.
void ExpectEveryPart(const BlockView& view, uint64_t largest_step) {
  const RunOracle oracle(view);
  for (size_t first = 0; first < oracle.bytes(); ++first) {
    for (size_t bytes = 1; bytes <= oracle.bytes() - first; ++bytes) {
      SCOPED_TRACE(::testing::Message() << bytes << " bytes from " << first);
      const BlockRange part = Part(view, first, bytes);
      ASSERT_EQ(part.bytes, bytes);
      const std::vector<PlannedRun> want = oracle.Runs(first, bytes);
      ASSERT_EQ(RunsOf(part), want);
      ASSERT_NO_FATAL_FAILURE(ExpectPairs(part, want));
      for (uint64_t step = 1; step <= std::min<uint64_t>(bytes, largest_step); ++step) {
        ASSERT_NO_FATAL_FAILURE(ExpectTakes(part, step, want));
      }
    }
  }
}

BlockView Named(BlockView view) {
  view.registrations = RegionNames::Get().registrations();
  view.keys = RegionNames::Get().keys();
  return view;
}

TEST(RunWalk, OfNothingIsDone) {
  for (const RunWalk& walk : {RunWalk(), RunWalk(BlockRange{})}) {
    EXPECT_TRUE(walk.done());
    EXPECT_EQ(walk.left(), 0u);
    EXPECT_EQ(walk.run().bytes, 0u);
    EXPECT_EQ(walk.Ahead().bytes, 0u);
  }
}

TEST(RunWalk, EveryPartOfDescriptors) {
  // Adjacent on both sides, on one, on neither, in other regions; without bytes between.
  const std::vector<Block> blocks{{100, 500, 0, 0, 0}, {100, 500, 5, 0, 0}, {105, 505, 3, 0, 0},
                                  {108, 600, 4, 0, 0}, {112, 604, 0, 1, 1}, {112, 604, 2, 1, 0},
                                  {114, 606, 2, 1, 1}, {300, 608, 3, 1, 1}, {303, 611, 1, 1, 1},
                                  {304, 612, 0, 0, 0}};
  ExpectEveryPart(Named({.descriptors = blocks}), 40);
}

TEST(RunWalk, EveryPartOfPagedRegions) {
  const std::vector<uint32_t> local_ids{0, 1, 2, 5, 3, 4};
  const std::vector<uint32_t> remote_ids{2, 3, 4, 5, 0, 1};
  const std::vector<BlockPair> pairs{
      // Without gaps: runs of ids are one run. The second goes on where the first ends.
      {.local = {100, 3, 3, 6},
       .remote = {500, 3, 3, 6},
       .local_region = 0,
       .remote_region = 0,
       .first_id = 0,
       .id_count = 3},
      {.local = {109, 3, 3, 6},
       .remote = {509, 3, 3, 6},
       .local_region = 0,
       .remote_region = 0,
       .first_id = 0,
       .id_count = 2},
      // Neither ids nor bytes.
      {.local = {1, 3, 3, 6}, .remote = {1, 3, 3, 6}, .local_region = 0, .remote_region = 0},
      {.local = {1, 0, 3, 6},
       .remote = {1, 0, 3, 6},
       .local_region = 0,
       .remote_region = 0,
       .first_id = 0,
       .id_count = 6},
      // With gaps on one side, in other regions.
      {.local = {200, 4, 4, 6},
       .remote = {600, 4, 7, 6},
       .local_region = 1,
       .remote_region = 1,
       .first_id = 2,
       .id_count = 4}};
  ExpectEveryPart(
      Named({.pairs = pairs, .local_ids = local_ids.data(), .remote_ids = remote_ids.data()}), 40);
}

TEST(RunWalk, EveryPartOfBlocksOfRuns) {
  const std::vector<uint32_t> local_ids{0, 1, 2};
  const std::vector<uint32_t> remote_ids{3, 4, 1};
  const std::vector<BlockPieces> pieces{
      {.bytes = 2,
       .dims = {{{2, 6, 8}, {3, 2, 2}}},
       .dim_count = 2},  // the inner ones are adjacent
      {.bytes = 1,
       .dims = {{{2, 9, 9}, {2, 4, 3}, {2, 2, 1}}},
       .dim_count = 3},  // on one side only
      {.bytes = 3, .dims = {{{1, 0, 0}, {1, 0, 0}, {2, 3, 3}, {1, 7, 7}}}, .dim_count = 4}};
  const auto pair = [](uint32_t shape, uint64_t bytes, uint64_t stride) {
    return BlockPair{.local = {1000 + 100 * shape, bytes, bytes, 4},
                     .remote = {2000 + 100 * shape, bytes, stride, 8},
                     .local_region = shape % 2,
                     .remote_region = 0,
                     .first_id = 0,
                     .id_count = 2,
                     .pieces = shape};
  };
  std::vector<BlockPair> pairs{pair(0, 12, 14), pair(1, 8, 20), pair(2, 6, 6)};
  pairs[2].first_id = 1;
  ExpectEveryPart(Named({.pairs = pairs,
                         .block_pieces = pieces,
                         .local_ids = local_ids.data(),
                         .remote_ids = remote_ids.data()}),
                  16);
}

TEST(RunWalk, RandomPartsOfBlocksOfRuns) {
  std::mt19937_64 random(testing::TestSeed());
  for (int round = 0; round < testing::Scaled(4000); ++round) {
    const RandomRuns list(random);
    const RunOracle oracle(list.view());
    if (oracle.bytes() == 0) continue;
    for (int part = 0; part < 8; ++part) {
      const size_t first = random() % oracle.bytes();
      const size_t bytes = 1 + random() % (oracle.bytes() - first);
      SCOPED_TRACE(::testing::Message() << "round " << round << ": " << bytes << " from " << first);
      const BlockRange range = Part(list.view(), first, bytes);
      const std::vector<PlannedRun> want = oracle.Runs(first, bytes);
      ASSERT_EQ(RunsOf(range), want);
      ASSERT_NO_FATAL_FAILURE(ExpectTakes(range, 1 + random() % 20, want));
    }
  }
}

// Ids and strides at their largest.
TEST(RunWalk, AddressesNearTheEnd) {
  const std::vector<uint32_t> ids{UINT32_MAX};
  const PagedRegion region{
      .base = 1, .block_bytes = 100, .stride = uint64_t{1} << 31, .count = uint64_t{1} << 32};
  const std::vector<BlockPair> pairs{
      {.local = region, .remote = region, .local_region = 0, .remote_region = 0, .id_count = 1}};
  const BlockView view = Named({.pairs = pairs, .local_ids = ids.data(), .remote_ids = ids.data()});
  const uint64_t at = 1 + UINT32_MAX * (uint64_t{1} << 31);
  EXPECT_EQ(RunsOf(Part(view, 0, 100)), (std::vector<PlannedRun>{{at, at, 100, 0, 0}}));
  EXPECT_EQ(RunsOf(Part(view, 99, 1)), (std::vector<PlannedRun>{{at + 99, at + 99, 1, 0, 0}}));
}

// The helper that other tests make ops with gives their runs, in order.
TEST(RunWalk, OfRunsWrittenByHand) {
  const RegionNames& names = RegionNames::Get();
  const auto run = [&](uint64_t local, uint64_t bytes, size_t region) {
    return kvxfer::Run{.local = local,
                       .remote = local + 1000,
                       .bytes = bytes,
                       .registration = names.registrations()[region],
                       .key = names.keys()[region]};
  };
  EXPECT_TRUE(RunsOf(testing::RunBlocks({}).range()).empty());
  EXPECT_TRUE(RunsOf(testing::RunBlocks({run(5, 0, 0)}).range()).empty());
  const testing::RunBlocks blocks(
      {run(1, 0, 0), run(7, 3, 1), run(10, 2, 1), run(12, 4, 2), run(90, 0, 0), run(50, 1, 2)});
  EXPECT_EQ(blocks.range().bytes, 10u);
  EXPECT_EQ(blocks.range().pieces, 4u);
  EXPECT_EQ(
      RunsOf(blocks.range()),
      (std::vector<PlannedRun>{{7, 1007, 5, 1, 1}, {12, 1012, 4, 2, 2}, {50, 1050, 1, 2, 2}}));
}

}  // namespace
}  // namespace kvxfer
