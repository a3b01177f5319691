#include "src/core/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer {
namespace {

using Slices = std::vector<std::vector<PlannedRun>>;

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

// All slices; each call's bytes are checked against its runs.
Slices Walk(const BlockList& list, const SliceLimits& limits) {
  Slices slices;
  SliceCursor cursor(&list);
  while (!cursor.done()) {
    std::vector<PlannedRun> runs;
    const uint64_t bytes = cursor.Next(limits, runs);
    uint64_t sum = 0;
    for (const PlannedRun& run : runs) sum += run.bytes;
    EXPECT_EQ(bytes, sum);
    EXPECT_GT(bytes, 0u);
    if (bytes == 0) break;
    slices.push_back(runs);
  }
  return slices;
}

struct Byte {
  uint64_t local = 0;
  uint64_t remote = 0;
  uint32_t local_region = 0;
  uint32_t remote_region = 0;
  bool operator==(const Byte&) const = default;
};

// The oracle: byte after byte of every block.
std::vector<Byte> BytesOf(const BlockList& list) {
  std::vector<Byte> bytes;
  for (uint64_t i = 0; i < list.size(); ++i) {
    const Block block = list.At(i);
    for (uint64_t b = 0; b < block.bytes; ++b) {
      bytes.push_back({block.local + b, block.remote + b, block.local_region, block.remote_region});
    }
  }
  return bytes;
}

std::vector<Byte> BytesOf(const Slices& slices) {
  std::vector<Byte> bytes;
  for (const auto& slice : slices) {
    for (const PlannedRun& run : slice) {
      for (uint64_t b = 0; b < run.bytes; ++b) {
        bytes.push_back({run.local + b, run.remote + b, run.local_region, run.remote_region});
      }
    }
  }
  return bytes;
}

bool Continues(const PlannedRun& a, const PlannedRun& b) {
  return a.local + a.bytes == b.local && a.remote + a.bytes == b.remote &&
         a.local_region == b.local_region && a.remote_region == b.remote_region;
}

// The specification at the head of plan.h. A slice ends only because a limit was reached.
void ExpectSpecification(const BlockList& list, const SliceLimits& limits) {
  const Slices slices = Walk(list, limits);
  ASSERT_EQ(BytesOf(slices), BytesOf(list));
  for (size_t s = 0; s < slices.size(); ++s) {
    const std::vector<PlannedRun>& runs = slices[s];
    uint64_t bytes = 0;
    for (const PlannedRun& run : runs) bytes += run.bytes;
    ASSERT_LE(bytes, limits.max_bytes);
    ASSERT_LE(runs.size(), limits.max_runs);
    for (size_t r = 1; r < runs.size(); ++r) ASSERT_FALSE(Continues(runs[r - 1], runs[r]));
    if (s + 1 < slices.size() && bytes < limits.max_bytes) {
      ASSERT_EQ(runs.size(), limits.max_runs);
      ASSERT_FALSE(Continues(runs.back(), slices[s + 1].front()));
    }
  }
}

TEST(SliceCursor, NothingIsDoneAtOnce) {
  EXPECT_TRUE(SliceCursor().done());
  const BlockList none;
  SliceCursor cursor(&none);
  EXPECT_TRUE(cursor.done());
  std::vector<PlannedRun> runs;
  EXPECT_EQ(cursor.Next({.max_bytes = 10, .max_runs = 10}, runs), 0u);
  EXPECT_TRUE(runs.empty());
}

TEST(SliceCursor, BlocksWithoutBytesAreDoneAtOnce) {
  const std::vector<PagedRegion> nothing{{.base = 0, .block_bytes = 0, .stride = 0, .count = 4}};
  const std::vector<uint32_t> ids{1, 2};
  const auto list = BlockList::FromPaged({nothing, nothing, ids, ids}, Direction::kWrite,
                                         RegionTable(), RegionTable());
  ASSERT_OK(list);
  EXPECT_TRUE(SliceCursor(&*list).done());
}

TEST(SliceCursor, AppendsAndLeavesEarlierRunsAlone) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<Descriptor> blocks{{100, 10}, {110, 10}};
  const auto list = BlockList::FromDescriptors({blocks, blocks}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  SliceCursor cursor(&*list);
  std::vector<PlannedRun> runs;
  EXPECT_EQ(cursor.Next({.max_bytes = 15, .max_runs = 8}, runs), 15u);
  EXPECT_EQ(cursor.Next({.max_bytes = 15, .max_runs = 8}, runs), 5u);
  EXPECT_TRUE(cursor.done());
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0], (PlannedRun{100, 100, 15, 0, 0}));
  EXPECT_EQ(runs[1], (PlannedRun{115, 115, 5, 0, 0}));
}

TEST(SliceCursor, ACopyWalksAgainFromThere) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<Descriptor> blocks{{100, 10}, {300, 10}, {200, 10}};
  const auto list = BlockList::FromDescriptors({blocks, blocks}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  SliceCursor cursor(&*list);
  std::vector<PlannedRun> first;
  cursor.Next({.max_bytes = 7, .max_runs = 8}, first);
  SliceCursor copy = cursor;
  std::vector<PlannedRun> a;
  std::vector<PlannedRun> b;
  while (!cursor.done()) cursor.Next({.max_bytes = 7, .max_runs = 8}, a);
  while (!copy.done()) copy.Next({.max_bytes = 7, .max_runs = 8}, b);
  EXPECT_EQ(a, b);
  EXPECT_FALSE(a.empty());
}

TEST(SliceCursor, LimitsOfZeroStillAdvance) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<Descriptor> blocks{{100, 3}};
  const auto list = BlockList::FromDescriptors({blocks, blocks}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  EXPECT_EQ(BytesOf(Walk(*list, {})), BytesOf(*list));
}

// Adjacent in memory, but two registrations: a run never crosses from one to the other.
TEST(SliceCursor, RunsStayInTheirRegions) {
  const RegionTable local = TableOf({{100, 10}, {110, 10}});
  const RegionTable remote = TableOf({{500, 20}});
  const std::vector<Descriptor> from{{100, 10}, {110, 10}};
  const std::vector<Descriptor> to{{500, 10}, {510, 10}};
  const auto list = BlockList::FromDescriptors({from, to}, Direction::kWrite, local, remote);
  ASSERT_OK(list);
  const Slices slices = Walk(*list, {.max_bytes = 100, .max_runs = 10});
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].size(), 2u);
}

TEST(SliceCursor, RunsGrowAcrossPairs) {
  const RegionTable table = TableOf({{100, 1000}});
  const std::vector<PagedRegion> halves{{100, 10, 10, 2}, {120, 10, 10, 2}};
  const std::vector<uint32_t> ids{0, 1};
  const auto list =
      BlockList::FromPaged({halves, halves, ids, ids}, Direction::kWrite, table, table);
  ASSERT_OK(list);
  const Slices slices = Walk(*list, {.max_bytes = 100, .max_runs = 1});
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0], (std::vector<PlannedRun>{{100, 100, 40, 0, 0}}));
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
      for (uint64_t max_bytes = 1; max_bytes <= 2 * count; ++max_bytes) {
        for (uint64_t max_runs = 1; max_runs <= count; ++max_runs) {
          ExpectSpecification(*list, {.max_bytes = max_bytes, .max_runs = max_runs});
          if (HasFatalFailure()) FAIL() << "count " << count << " code " << code;
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
    const auto list = BlockList::FromPaged({local, remote, local_ids, remote_ids},
                                           Direction::kWrite, table, table);
    ASSERT_OK(list);
    ExpectSpecification(*list, {.max_bytes = below(60) + 1, .max_runs = below(9) + 1});
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
    ExpectSpecification(*list, {.max_bytes = below(50) + 1, .max_runs = below(9) + 1});
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
  const Slices slices = Walk(*list, {.max_bytes = uint64_t{1} << 62, .max_runs = 1});
  ASSERT_EQ(slices.size(), 3u);
  EXPECT_EQ(slices[2][0], (PlannedRun{bytes - 4, bytes - 4, 5, 0, 0}));
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

}  // namespace
}  // namespace kvxfer
