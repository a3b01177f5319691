#include "src/core/plan/block_list.h"

#include <gtest/gtest.h>

#include <array>
#include <map>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "tests/support/scale.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/plan/block_at.h"
#include "tests/unit/core/plan/region_views.h"

namespace kvxfer {
namespace {

std::vector<uint32_t> Copied(std::span<const uint32_t> all) { return {all.begin(), all.end()}; }

using testing::Fails;
// Both sides have all addresses from 1 on, unless a test says otherwise.
struct Call {
  std::vector<PagedRegion> local{{.base = 1000, .block_bytes = 16, .stride = 16, .count = 10}};
  std::vector<PagedRegion> remote{{.base = 5000, .block_bytes = 16, .stride = 32, .count = 8}};
  std::vector<uint32_t> local_ids{0, 1, 2};
  std::vector<uint32_t> remote_ids{7, 0, 3};
  Direction direction = Direction::kWrite;
  RegionTable local_table{{View(1, 1, kTop - 1)}, "local"};
  RegionTable remote_table{{View(1, 1, kTop - 1)}, "decode-0"};

  absl::StatusOr<BlockList> Make() const {
    IdPool pool;
    return BlockList::FromPaged({local, remote, local_ids, remote_ids}, direction, local_table,
                                remote_table, pool);
  }
};

struct DescriptorCall {
  std::vector<Descriptor> local{{1000, 16}, {2000, 8}};
  std::vector<Descriptor> remote{{5000, 16}, {5016, 8}};
  Direction direction = Direction::kWrite;
  RegionTable local_table{{View(1, 1, kTop - 1)}, "local"};
  RegionTable remote_table{{View(1, 1, kTop - 1)}, "decode-0"};

  absl::StatusOr<BlockList> Make() const {
    return BlockList::FromDescriptors({local, remote}, direction, local_table, remote_table);
  }
};

TEST(BlockList, DefaultHasNoBlocks) {
  EXPECT_EQ(BlockList().size(), 0u);
  EXPECT_EQ(BlockList().total_bytes(), 0u);
}

TEST(BlockListPaged, BlocksAreWhereTheArithmeticSays) {
  Call call;
  call.local.push_back({.base = 90000, .block_bytes = 8, .stride = 8, .count = 3});
  call.remote.push_back({.base = 70000, .block_bytes = 8, .stride = 8, .count = 8});
  ASSERT_OK_AND_ASSIGN(const BlockList list, call.Make());
  ASSERT_EQ(list.size(), 6u);
  EXPECT_EQ(list.total_bytes(), 3u * 16 + 3 * 8);
  for (uint64_t i = 0; i < 6; ++i) {
    const Block block = At(list, i);
    const PagedRegion& local = call.local[i / 3];
    const PagedRegion& remote = call.remote[i / 3];
    EXPECT_EQ(block.local, local.base + call.local_ids[i % 3] * local.stride);
    EXPECT_EQ(block.remote, remote.base + call.remote_ids[i % 3] * remote.stride);
    EXPECT_EQ(block.bytes, local.block_bytes);
  }
}

TEST(BlockListPaged, RegionsAreNamedOnce) {
  Call call;
  call.remote_table = RegionTable({View(4, 5000, 300), View(2, 9000, 300), View(3, 7000, 1)}, "d");
  call.local.assign(3, call.local[0]);
  call.remote = {{9000, 16, 16, 8}, {5000, 16, 16, 8}, {9128, 16, 16, 8}};
  ASSERT_OK_AND_ASSIGN(const BlockList list, call.Make());
  EXPECT_EQ(Copied(list.remote_regions()), (std::vector<uint32_t>{0, 2}));
  EXPECT_EQ(Copied(list.local_regions()), (std::vector<uint32_t>{0}));
  EXPECT_EQ(At(list, 0).remote_region, 2u);
  EXPECT_EQ(At(list, 3).remote_region, 0u);
}

// Few ids are in the list itself, more in a buffer of the pool.
TEST(BlockListPaged, IdsMoveWithTheListAndSizesOutliveThem) {
  for (const uint32_t count : {1u, 8u, 9u, 64u}) {
    SCOPED_TRACE(count);
    Call call;
    call.local[0].count = call.remote[0].count = count;
    call.local[0].block_bytes = call.local[0].stride = 1;
    call.remote[0].block_bytes = call.remote[0].stride = 1;
    call.local_ids.resize(count);
    std::iota(call.local_ids.begin(), call.local_ids.end(), 0u);
    call.remote_ids.assign(call.local_ids.rbegin(), call.local_ids.rend());
    IdPool pool;
    ASSERT_OK_AND_ASSIGN(BlockList made, call.Make());
    BlockList list;
    list = std::move(made);
    EXPECT_EQ(Copied(list.local_ids()), call.local_ids);
    EXPECT_EQ(Copied(list.remote_ids()), call.remote_ids);
    const BlockView view = list.View({}, {});
    EXPECT_EQ(view.remote_ids[count - 1], 0u);
    list.ReleaseIds(pool);
    EXPECT_TRUE(list.local_ids().empty());
    EXPECT_EQ(list.size(), count);
    EXPECT_EQ(list.total_bytes(), count);
    EXPECT_EQ(Copied(list.remote_regions()), (std::vector<uint32_t>{0}));
  }
}

TEST(BlockListPaged, NoBlocks) {
  Call call;
  call.local_ids = call.remote_ids = {};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"no blocks"}));
  call = Call();
  call.local = call.remote = {};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"no blocks"}));
}

TEST(BlockListPaged, UnequalShapes) {
  Call call;
  call.local.push_back(call.local[0]);
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local has 2", "remote has 1"}));
  call = Call();
  call.remote_ids.pop_back();
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local_ids has 3", "remote_ids has 2"}));
  call = Call();
  call.remote[0].block_bytes = 15;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local[0]", "16", "remote[0]", "15"}));
}

TEST(BlockListPaged, IdsOutOfRangeAreNamed) {
  Call call;
  call.local_ids[1] = 10;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local_ids[1] is 10", "local[0]", "0 to 9"}));
  call = Call();
  call.remote_ids[2] = UINT32_MAX;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote_ids[2] is 4294967295", "0 to 7"}));
  call = Call();
  call.remote[0].count = 0;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote_ids[0] is 7", "no blocks"}));
}

TEST(BlockListPaged, TheSmallestPairBoundsTheIds) {
  Call call;
  call.local.push_back(call.local[0]);
  call.remote.push_back({.base = 9000, .block_bytes = 16, .stride = 16, .count = 7});
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote_ids[0] is 7", "remote[1]", "0 to 6"}));
}

TEST(BlockListPaged, StrideBelowBlockBytes) {
  Call call;
  call.local[0].stride = 15;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local[0]", "stride 15", "16"}));
  call.local[0].count = 1;
  call.local_ids = {0};
  call.remote_ids = {7};
  EXPECT_OK(call.Make());
  call.local[0].stride = 0;
  EXPECT_OK(call.Make());
}

TEST(BlockListPaged, SizesBeyondTheAddressSpace) {
  const std::vector<PagedRegion> impossible = {
      {.base = 1000, .block_bytes = 16, .stride = 1ull << 62, .count = 9},
      {.base = 1000, .block_bytes = 16, .stride = 1ull << 63, .count = 3},
      {.base = 1000, .block_bytes = 16, .stride = 16, .count = 1ull << 63},
      {.base = 1000, .block_bytes = 16, .stride = kTop, .count = kTop},
      {.base = kTop - 100, .block_bytes = 16, .stride = 16, .count = 8},
      {.base = 1000, .block_bytes = kTop - 500, .stride = kTop, .count = 1},
      {.base = 1000, .block_bytes = 16, .stride = kTop - 8, .count = 2},
  };
  for (size_t i = 0; i < impossible.size(); ++i) {
    Call call;
    call.local[0] = call.remote[0] = impossible[i];
    call.local_ids = call.remote_ids = {0};
    EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local[0]", "address space"})) << i;
  }
}

TEST(BlockListPaged, TotalBeyond64BitsIsRefused) {
  Call call;
  call.direction = Direction::kWrite;
  const PagedRegion large{.base = 8, .block_bytes = 1ull << 62, .stride = 1ull << 62, .count = 3};
  call.local = {large};
  call.remote = {large};
  call.local_ids = {0, 0, 0};
  call.remote_ids = {0, 1, 2};
  EXPECT_OK(call.Make());
  call.local = {large, large};
  call.remote = {large, large};
  EXPECT_TRUE(Fails(call.Make(), kInvalid));
}

TEST(BlockListPaged, NullAddress) {
  Call call;
  call.local[0].base = 0;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local[0]", "null"}));
}

TEST(BlockListPaged, MustLieInOneRegion) {
  Call call;
  call.remote_table = RegionTable({View(1, 5000, 7 * 32 + 16)}, "decode-0");
  EXPECT_OK(call.Make());
  call.remote_table = RegionTable({View(1, 5000, 7 * 32 + 15)}, "decode-0");
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote[0]", "decode-0", "region 1"}));
  call.remote_table = RegionTable({View(1, 5000, 128), View(2, 5128, 128)}, "decode-0");
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote[0]"}));
}

TEST(BlockListPaged, RightsAreThePeers) {
  constexpr auto kDenied = absl::StatusCode::kPermissionDenied;
  Call call;
  call.local_table = RegionTable({View(1, 1, kTop - 1, Access::kNone)}, "local");
  call.remote_table = RegionTable({View(1, 1, kTop - 1, Access::kRemoteWrite)}, "decode-0");
  EXPECT_OK(call.Make());
  call.direction = Direction::kRead;
  EXPECT_TRUE(Fails(call.Make(), kDenied, {"remote[0]", "remote read"}));
  call.remote_table = RegionTable({View(1, 1, kTop - 1, Access::kRemoteRead)}, "decode-0");
  EXPECT_OK(call.Make());
  call.direction = Direction::kWrite;
  EXPECT_TRUE(Fails(call.Make(), kDenied, {"remote[0]", "remote write"}));
}

TEST(BlockListPaged, DestinationIdsOccurOnce) {
  Call call;
  call.remote_ids = {3, 0, 3};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote_ids[0]", "remote_ids[2]", "both 3"}));
  call.direction = Direction::kRead;
  EXPECT_OK(call.Make());
  call.local_ids = {4, 5, 5};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local_ids[1]", "local_ids[2]", "both 5"}));
  call.direction = Direction::kWrite;
  call.remote_ids = {3, 0, 4};
  EXPECT_OK(call.Make());
}

// What one check leaves behind in the thread's memory says nothing to the next.
TEST(BlockListPaged, ChecksDoNotKnowOfEachOther) {
  Call call;
  call.remote[0] = {.base = 5000, .block_bytes = 16, .stride = 16, .count = 100'000};
  call.local_ids = {1, 1, 1};
  std::mt19937_64 random(testing::TestSeed());
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (int round = 0; round < 1000; ++round) {
    const uint32_t reach = round % 2 == 0 ? 100 : 100'000;  // with a bitmap, and by sorting
    const uint32_t first = below(reach);
    call.remote_ids = {first, (first + 1 + below(reach - 2)) % reach, first};
    ASSERT_FALSE(call.Make().ok());
    call.remote_ids.pop_back();
    call.local_ids = {1, 1};
    ASSERT_OK(call.Make());
    call.local_ids = {1, 1, 1};
  }
}

// Far apart and few: the way that sorts instead of a bitmap.
TEST(BlockListPaged, SparseDestinationIdsOccurOnce) {
  Call call;
  call.remote[0] = {.base = 5000, .block_bytes = 16, .stride = 16, .count = 1ull << 32};
  call.remote_ids = {UINT32_MAX, 5, UINT32_MAX};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote_ids[0]", "remote_ids[2]", "4294967295"}));
  call.remote_ids = {UINT32_MAX, 5, UINT32_MAX - 1};
  EXPECT_OK(call.Make());
}

TEST(BlockListPaged, BlocksWithoutBytes) {
  Call call;
  call.local[0] = {.base = 0, .block_bytes = 0, .stride = 0, .count = 10};
  call.remote[0] = {.base = 0, .block_bytes = 0, .stride = 64, .count = 10};
  call.remote_ids = {3, 3, 3};
  call.local_table = call.remote_table = RegionTable({}, "empty");
  ASSERT_OK_AND_ASSIGN(const BlockList list, call.Make());
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(list.total_bytes(), 0u);
  EXPECT_TRUE(list.remote_regions().empty());
  EXPECT_EQ(At(list, 0).remote_region, kNoRegion);
  call.remote_ids = {3, 10, 3};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote_ids[1] is 10"}));
}

TEST(BlockListPaged, OverlapNamesBothBlocks) {
  Call call;
  call.local.assign(2, call.local[0]);
  call.remote = {{.base = 5000, .block_bytes = 16, .stride = 32, .count = 8},
                 {.base = 5000 + 7 * 32 + 8, .block_bytes = 16, .stride = 16, .count = 8}};
  call.remote_ids = {7, 0, 3};
  EXPECT_TRUE(
      Fails(call.Make(), kInvalid, {"block 7 of remote[0]", "block 0 of remote[1]", "overlap"}));
  call.remote_ids = {6, 0, 3};
  EXPECT_OK(call.Make());
}

// All layers inside one block: the layout in which destination regions interleave.
TEST(BlockListPaged, InterleavedLayers) {
  Call call;
  call.local.clear();
  call.remote.clear();
  for (uint64_t layer = 0; layer < 8; ++layer) {
    call.local.push_back({.base = 1000 + layer * 16, .block_bytes = 16, .stride = 128, .count = 9});
    call.remote.push_back(
        {.base = 5000 + layer * 16, .block_bytes = 16, .stride = 128, .count = 9});
  }
  EXPECT_OK(call.Make());
  --call.remote[3].base;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote[2]", "remote[3]", "overlap"}));
}

// Every byte of every destination block, marked by trying.
bool PlainDisjoint(const std::vector<PagedRegion>& regions, const std::vector<uint32_t>& ids) {
  std::map<uint64_t, int> marks;
  for (const PagedRegion& region : regions) {
    for (const uint32_t id : ids) {
      for (uint64_t b = 0; b < region.block_bytes; ++b) {
        if (++marks[region.base + id * region.stride + b] > 1) return false;
      }
    }
  }
  return true;
}

TEST(BlockListPaged, OverlapIsExact) {
  std::mt19937_64 random(testing::TestSeed());
  int refused = 0;
  const int rounds = testing::Scaled(20000);
  for (int round = 0; round < rounds; ++round) {
    Call call;
    call.direction = random() % 2 == 0 ? Direction::kWrite : Direction::kRead;
    auto& destination = call.direction == Direction::kWrite ? call.remote : call.local;
    auto& source = call.direction == Direction::kWrite ? call.local : call.remote;
    auto& ids = call.direction == Direction::kWrite ? call.remote_ids : call.local_ids;
    const uint64_t regions = random() % 4 + 1;
    const uint64_t common_stride = random() % 12 + 4;
    destination.clear();
    source.clear();
    for (uint64_t r = 0; r < regions; ++r) {
      const uint64_t block_bytes = random() % 4;
      const uint64_t stride = random() % 3 != 0 ? common_stride : block_bytes + random() % 9;
      destination.push_back({random() % 60 + 1, block_bytes, stride, 8});
      source.push_back({100, block_bytes, 8, 8});
    }
    ids.clear();
    for (uint64_t i = random() % 6 + 1; i > 0; --i)
      ids.push_back(static_cast<uint32_t>(random() % 8));
    auto& source_ids = call.direction == Direction::kWrite ? call.local_ids : call.remote_ids;
    source_ids.assign(ids.size(), 2);
    const absl::StatusOr<BlockList> list = call.Make();
    const bool disjoint = PlainDisjoint(destination, ids);
    refused += disjoint ? 0 : 1;
    ASSERT_EQ(list.ok(), disjoint) << "round " << round << ": " << list.status();
    if (!disjoint) {
      ASSERT_TRUE(Fails(list, kInvalid));
    }
  }
  // Both answers are well represented.
  EXPECT_GT(refused, rounds / 5);
  EXPECT_LT(refused, rounds * 4 / 5 + 1);
}

TEST(BlockListDescriptors, BlocksAreAsGiven) {
  DescriptorCall call;
  ASSERT_OK_AND_ASSIGN(const BlockList list, call.Make());
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list.total_bytes(), 24u);
  EXPECT_EQ(At(list, 1).local, 2000u);
  EXPECT_EQ(At(list, 1).remote, 5016u);
  EXPECT_EQ(At(list, 1).bytes, 8u);
  EXPECT_EQ(Copied(list.remote_regions()), (std::vector<uint32_t>{0}));
}

TEST(BlockListDescriptors, BadArgumentsAreNamed) {
  DescriptorCall call;
  call.local = call.remote = {};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"no blocks"}));
  call = DescriptorCall();
  call.local.pop_back();
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local has 1", "remote has 2"}));
  call = DescriptorCall();
  call.local[1].bytes = 9;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local[1]", "9", "remote[1]", "8"}));
  call = DescriptorCall();
  call.remote[1].address = 0;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote[1]", "null"}));
  call = DescriptorCall();
  call.local[0].address = kTop - 3;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local[0]"}));
  call = DescriptorCall();
  call.remote_table = RegionTable({View(1, 5000, 23)}, "decode-0");
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote[1]", "decode-0", "0x1398", "+8"}));
  call.remote_table = RegionTable({View(1, 5000, 24, Access::kRemoteRead)}, "decode-0");
  EXPECT_TRUE(Fails(call.Make(), absl::StatusCode::kPermissionDenied, {"remote[0]"}));
  call.direction = Direction::kRead;
  EXPECT_OK(call.Make());
}

TEST(BlockListDescriptors, TotalBeyond64BitsIsRefused) {
  DescriptorCall call;
  call.local = {{1, 1ull << 63}, {1, 1ull << 63}};
  call.remote = {{1, 1ull << 63}, {1, 1ull << 63}};
  EXPECT_TRUE(Fails(call.Make(), kInvalid));
}

TEST(BlockListDescriptors, BlocksWithoutBytes) {
  DescriptorCall call;
  call.local = {{0, 0}, {1000, 4}, {1000, 0}};
  call.remote = {{0, 0}, {5000, 4}, {5001, 0}};
  ASSERT_OK_AND_ASSIGN(const BlockList list, call.Make());
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(list.total_bytes(), 4u);
  EXPECT_EQ(At(list, 2).bytes, 0u);
}

TEST(BlockListDescriptors, OverlapIsExact) {
  DescriptorCall call;
  call.remote = {{5000, 16}, {5008, 8}};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"remote[0]", "remote[1]", "0x1390"}));
  std::mt19937_64 random(testing::TestSeed());
  int refused = 0;
  const int rounds = testing::Scaled(20000);
  for (int round = 0; round < rounds; ++round) {
    call.direction = random() % 2 == 0 ? Direction::kWrite : Direction::kRead;
    call.local.clear();
    call.remote.clear();
    std::map<uint64_t, int> marks;
    bool disjoint = true;
    for (uint64_t i = random() % 6 + 1; i > 0; --i) {
      const Descriptor written{random() % 80 + 1, random() % 8};
      const Descriptor read{random() % 4 + 1, written.bytes};
      const bool write = call.direction == Direction::kWrite;
      call.local.push_back(write ? read : written);
      call.remote.push_back(write ? written : read);
      for (uint64_t b = 0; b < written.bytes; ++b) {
        disjoint = ++marks[written.address + b] == 1 && disjoint;
      }
    }
    refused += disjoint ? 0 : 1;
    ASSERT_EQ(call.Make().ok(), disjoint) << "round " << round << ": " << call.Make().status();
  }
  EXPECT_GT(refused, rounds / 5);
  EXPECT_LT(refused, rounds * 4 / 5 + 1);
}

// Blocks of one size, as those of a cache, in any order, some a little beside their place.
TEST(BlockListDescriptors, OverlapOfEqualBlocksIsExact) {
  DescriptorCall call;
  std::mt19937_64 random(testing::TestSeed() + 1);
  int refused = 0;
  const int rounds = testing::Scaled(20000);
  for (int round = 0; round < rounds; ++round) {
    call.direction = random() % 2 == 0 ? Direction::kWrite : Direction::kRead;
    call.local.clear();
    call.remote.clear();
    const uint64_t bytes = random() % 6 + 1;
    const uint64_t first = random() % 3 + 1;
    std::map<uint64_t, int> marks;
    bool disjoint = true;
    for (uint64_t i = random() % 5 + 1; i > 0; --i) {
      const uint64_t beside = random() % 8 == 0 ? random() % bytes : 0;
      const Descriptor written{first + random() % 12 * bytes + beside, bytes};
      const Descriptor read{random() % 4 + 1, bytes};
      const bool write = call.direction == Direction::kWrite;
      call.local.push_back(write ? read : written);
      call.remote.push_back(write ? written : read);
      for (uint64_t b = 0; b < bytes; ++b) {
        disjoint = ++marks[written.address + b] == 1 && disjoint;
      }
    }
    refused += disjoint ? 0 : 1;
    ASSERT_EQ(call.Make().ok(), disjoint) << "round " << round << ": " << call.Make().status();
  }
  EXPECT_GT(refused, rounds / 5);
  EXPECT_LT(refused, rounds * 4 / 5 + 1);
}

// The region of the descriptor before is a hint, no more: each is as the table says of it alone.
TEST(BlockListDescriptors, RegionsAreThoseOfEachAlone) {
  std::mt19937_64 random(testing::TestSeed() + 2);
  constexpr std::array kRights{Access::kReadWrite, Access::kRemoteRead, Access::kRemoteWrite};
  int made = 0;
  for (int round = 0; round < testing::Scaled(20000); ++round) {
    std::vector<RegionView> regions;
    for (uint32_t id = 1; id <= 4; ++id) {
      regions.push_back(
          View(id, random() % 60 + 1, random() % 30 + 1, kRights[random() % kRights.size()]));
    }
    DescriptorCall call{.local = {}, .remote = {}, .remote_table = {regions, "decode-0"}};
    for (uint64_t i = 0; i < 3; ++i) {
      call.local.push_back({1000 + i, 2});
      call.remote.push_back({random() % 90 + 1, 2});
    }
    bool found = true;
    for (const Descriptor& each : call.remote) {
      const auto region = call.remote_table.Find(each.address, 2, Access::kRemoteWrite);
      found = found && region.ok();
    }
    const auto list = call.Make();
    if (!found) {
      ASSERT_FALSE(list.ok());
      continue;
    }
    if (!list.ok()) continue;  // they overlap
    ++made;
    for (size_t i = 0; i < call.remote.size(); ++i) {
      const auto region = call.remote_table.Find(call.remote[i].address, 2, Access::kRemoteWrite);
      ASSERT_EQ(list->descriptors()[i].remote_region, *region) << "round " << round;
    }
  }
  EXPECT_GT(made, 10);
}

}  // namespace
}  // namespace kvxfer
