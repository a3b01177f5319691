// Ids that are in GPU memory: what is checked without reading them.
#include <gtest/gtest.h>

#include <vector>

#include "src/core/plan/block_list.h"
#include "src/core/plan/block_overlap.h"
#include "src/core/plan/plan.h"
#include "tests/support/status_macros.h"
#include "tests/unit/core/plan/region_views.h"

namespace kvxfer {
namespace {

using testing::Fails;

constexpr uint64_t kIdsAt = 0x10000;

struct DeviceCall {
  std::vector<PagedRegion> local{{.base = 1000, .block_bytes = 16, .stride = 16, .count = 10}};
  std::vector<PagedRegion> remote{{.base = 5000, .block_bytes = 16, .stride = 32, .count = 8}};
  std::vector<uint32_t> local_ids;
  std::vector<uint32_t> remote_ids;
  DeviceIds local_device{.address = kIdsAt, .count = 3};
  DeviceIds remote_device{.address = kIdsAt + 64, .count = 3};
  Direction direction = Direction::kWrite;
  RegionView ids{.id = RegionId{7},
                 .base = kIdsAt,
                 .bytes = 128,
                 .access = Access::kNone,
                 .kind = MemoryKind::kCuda};

  absl::StatusOr<BlockList> Make() const {
    IdPool pool;
    const RegionTable here({View(1, 1, kIdsAt - 1), ids}, "local");
    const RegionTable there({View(1, 1, kTop - 1)}, "decode-0");
    return BlockList::FromPaged({local, remote, local_ids, remote_ids, local_device, remote_device},
                                direction, here, there, pool);
  }
};

TEST(DeviceIdList, NamesWhereTheIdsAre) {
  ASSERT_OK_AND_ASSIGN(const BlockList list, DeviceCall().Make());
  EXPECT_TRUE(list.ids_on_gpu());
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(list.total_bytes(), 48u);
  const BlockView view = list.View({}, {});
  EXPECT_EQ(view.local_device_ids.at, kIdsAt);
  EXPECT_EQ(view.remote_device_ids.at, kIdsAt + 64);
  EXPECT_EQ(view.local_device_ids.region, 1u);
  EXPECT_EQ(view.remote_device_ids.region, 1u) << "they are this agent's, of either side";
  EXPECT_EQ(view.pairs[0].id_count, 3u);
  EXPECT_EQ(list.local_regions().size(), 2u) << "the ids' region is in use";
  EXPECT_EQ(list.remote_regions().size(), 1u);
}

TEST(DeviceIdList, OneSideMayHaveItsIdsOnTheHost) {
  DeviceCall call;
  call.local_device = {};
  call.local_ids = {3, 1, 9};
  ASSERT_OK_AND_ASSIGN(const BlockList list, call.Make());
  EXPECT_TRUE(list.ids_on_gpu());
  EXPECT_EQ(list.local_ids()[2], 9u);
  EXPECT_EQ(list.View({}, {}).local_device_ids.at, 0u);
  call.local_ids = {3, 1, 10};
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local_ids[2] is 10", "blocks 0 to 9"}));
  // Duplicates on the side that is not written are allowed, on the other they are not known.
  call.local_ids = {3, 3, 3};
  EXPECT_OK(call.Make());
  call.direction = Direction::kRead;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"are both 3"}));
}

TEST(DeviceIdList, WhatCannotBeIsRefused) {
  const auto fails = [](auto change, const char* why) {
    DeviceCall call;
    change(call);
    return Fails(call.Make(), kInvalid, {why});
  };
  EXPECT_TRUE(fails(
      [](DeviceCall& c) {
        c.local_ids = {1, 2, 3};
      },
      "both local_ids and local_device_ids"));
  EXPECT_TRUE(fails([](DeviceCall& c) { c.remote_device.count = 2; }, "must be of equal length"));
  EXPECT_TRUE(fails([](DeviceCall& c) { c.local_device.count = c.remote_device.count = 0; },
                    "the list of ids is empty"));
  EXPECT_TRUE(fails([](DeviceCall& c) { c.remote_device.address += 2; }, "no multiple of 4"));
  EXPECT_TRUE(
      fails([](DeviceCall& c) { c.remote_device.address = kIdsAt + 120; }, "remote_device_ids"))
      << "they run over the end of their region";
  EXPECT_TRUE(fails([](DeviceCall& c) { c.ids.kind = MemoryKind::kHost; },
                    "local_device_ids are in host memory: pass them as local_ids"));
  EXPECT_TRUE(
      fails([](DeviceCall& c) { c.local_device.count = c.remote_device.count = uint64_t{1} << 33; },
            "2^32 - 1"));
}

TEST(DeviceIdList, ARegionWithoutBlocksIsRefused) {
  for (auto side : {&DeviceCall::local, &DeviceCall::remote}) {
    DeviceCall call;
    (call.*side)[0].count = 0;
    EXPECT_TRUE(Fails(call.Make(), kInvalid, {"[0] has no blocks"}));
  }
}

// Nobody on the host can pass on a part of a block whose place it does not know.
TEST(DeviceIdList, SlicesAreWholeBlocks) {
  DeviceCall call;
  call.local.push_back({.base = 2000, .block_bytes = 24, .stride = 24, .count = 10});
  call.remote.push_back({.base = 6000, .block_bytes = 24, .stride = 24, .count = 8});
  ASSERT_OK_AND_ASSIGN(const BlockList list, call.Make());
  const BlockView view = list.View({}, {});
  for (uint64_t max_bytes = 24; max_bytes < 140; ++max_bytes) {
    SliceCursor cursor(&view);
    uint64_t bytes = 0;
    while (!cursor.done()) {
      const BlockRange slice =
          cursor.Next({.max_bytes = max_bytes, .max_pieces = 100, .whole_pieces = true});
      ASSERT_GT(slice.bytes, 0u);
      ASSERT_LE(slice.bytes, max_bytes);
      ASSERT_EQ(slice.first.offset, 0u);
      bytes += slice.bytes;
    }
    ASSERT_EQ(bytes, list.total_bytes()) << max_bytes;
  }
}

// Whatever the ids are, blocks of different regions do not overlap.
TEST(DeviceIdList, DestinationsMustBeDisjointWhateverTheIdsAre) {
  DeviceCall call;
  call.local.push_back({.base = 2000, .block_bytes = 16, .stride = 16, .count = 10});
  call.remote.push_back({.base = 5016, .block_bytes = 16, .stride = 32, .count = 8});
  EXPECT_OK(call.Make()) << "they take turns";
  call.remote[1] = {.base = 5008, .block_bytes = 16, .stride = 32, .count = 8};
  EXPECT_TRUE(
      Fails(call.Make(), kInvalid, {"remote[0] and remote[1] overlap", "ids in host memory"}));
  call.remote[1] = {.base = 5000 + 8 * 32, .block_bytes = 16, .stride = 16, .count = 8};
  EXPECT_OK(call.Make());
  call.direction = Direction::kRead;
  EXPECT_OK(call.Make());
  call.local[1].base = 1150;
  EXPECT_TRUE(Fails(call.Make(), kInvalid, {"local[0] and local[1] overlap"}));
}

}  // namespace
}  // namespace kvxfer
