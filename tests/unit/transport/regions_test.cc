#include "src/transport/regions.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "tests/support/status_macros.h"

namespace kvxfer::net {
namespace {

using testing::Fails;

constexpr uint32_t kRkey = 77;

class Regions : public ::testing::Test {
 protected:
  LocalRegion Local(uint32_t rkey, Access access = Access::kReadWrite) {
    LocalRegion region;
    region.span = {.data = memory_.data(), .bytes = memory_.size()};
    region.access = access;
    region.rkey = rkey;
    return region;
  }
  WireRun Run(uint64_t offset, uint32_t bytes, uint32_t rkey = kRkey) const {
    return {.address = reinterpret_cast<uint64_t>(memory_.data()) + offset,
            .bytes = bytes,
            .rkey = rkey};
  }
  bool Granted(const WireRun& run, Access wanted = Access::kRemoteWrite) {
    return map_->Check(run, wanted).ok();
  }

  std::array<std::byte, 4096> memory_{};
  std::vector<uint32_t> closed_;
  std::optional<RegionMap> map_{
      std::in_place, [this](const Region* region) { closed_.push_back(region->rkey()); }};
};

// As a data thread looks them up: the cache finds a region until it forgets it.
TEST_F(Regions, AreFoundThroughACacheOfOnesOwn) {
  ASSERT_OK_AND_ASSIGN(auto region, map_->Register(Local(kRkey), "test"));
  const auto* const same = static_cast<const Region*>(region.get());
  RegionCache cache;
  EXPECT_EQ(cache.Find(kRkey), nullptr);
  ASSERT_OK_AND_ASSIGN(const Region* const found,
                       map_->Check(Run(0, 8), Access::kRemoteWrite, cache));
  EXPECT_EQ(found, same);
  EXPECT_EQ(cache.Find(kRkey), same);
  // Another rkey in the same place of the cache.
  EXPECT_EQ(cache.Find(kRkey + 64), nullptr);
  EXPECT_EQ(cache.Find(kRkey), same);
  cache.Forget(*same);
  EXPECT_EQ(cache.Find(kRkey), nullptr);
  region.reset();
  EXPECT_FALSE(map_->Check(Run(0, 8), Access::kRemoteWrite, cache).ok());
}

TEST_F(Regions, GrantWhatIsInsideAndNothingElse) {
  ASSERT_OK_AND_ASSIGN(const auto region, map_->Register(Local(kRkey), "test"));
  EXPECT_TRUE(Granted(Run(0, 4096)));
  EXPECT_TRUE(Granted(Run(4096, 0)));
  EXPECT_FALSE(Granted(Run(1, 4096)));
  EXPECT_FALSE(Granted(Run(4097, 0)));
  EXPECT_FALSE(Granted(Run(0, UINT32_MAX)));
  EXPECT_FALSE(Granted(Run(~uint64_t{0}, 1)));
  EXPECT_FALSE(Granted(Run(~reinterpret_cast<uint64_t>(memory_.data()), 8)));
  const absl::Status outside = map_->Check(Run(4000, 97), Access::kRemoteWrite).status();
  EXPECT_TRUE(Fails(outside, absl::StatusCode::kPermissionDenied,
                    {"outside", "4096", "97", "4000 bytes behind its beginning"}));
  // The text goes to the peer and into logs.
  EXPECT_EQ(outside.message().find("0x"), absl::string_view::npos) << outside;
  EXPECT_TRUE(Fails(map_->Check(Run(0, 1, 5), Access::kRemoteWrite).status(),
                    absl::StatusCode::kPermissionDenied, {"no region has that rkey"}));
}

TEST_F(Regions, GrantTheirRightsOnly) {
  ASSERT_OK_AND_ASSIGN(const auto read, map_->Register(Local(1, Access::kRemoteRead), "test"));
  ASSERT_OK_AND_ASSIGN(const auto write, map_->Register(Local(2, Access::kRemoteWrite), "test"));
  EXPECT_TRUE(Granted(Run(0, 8, 1), Access::kRemoteRead));
  EXPECT_FALSE(Granted(Run(0, 8, 1), Access::kRemoteWrite));
  EXPECT_FALSE(Granted(Run(0, 8, 2), Access::kRemoteRead));
  EXPECT_TRUE(Fails(map_->Check(Run(0, 8, 2), Access::kRemoteRead).status(),
                    absl::StatusCode::kPermissionDenied, {"does not allow remote reads"}));
}

TEST_F(Regions, WhatIsNoRegionIsRefused) {
  EXPECT_TRUE(Fails(map_->Register(Local(0), "test").status(), absl::StatusCode::kInvalidArgument,
                    {"test"}));
  LocalRegion empty = Local(1);
  empty.span.bytes = 0;
  EXPECT_FALSE(map_->Register(empty, "test").ok());
  LocalRegion gpu = Local(1);
  gpu.span.kind = MemoryKind::kCuda;
  EXPECT_FALSE(map_->Register(gpu, "test").ok());
}

// Expect that one which is refused its rkey leaves the one that has it alone.
TEST_F(Regions, AnRkeyIsTakenOnce) {
  ASSERT_OK_AND_ASSIGN(auto first, map_->Register(Local(kRkey), "test"));
  EXPECT_TRUE(Fails(map_->Register(Local(kRkey), "test").status(), absl::StatusCode::kAlreadyExists,
                    {"test", "rkey of the region"}));
  EXPECT_TRUE(Granted(Run(0, 8)));
  EXPECT_TRUE(closed_.empty());
  first.reset();
  ASSERT_OK_AND_ASSIGN(const auto second, map_->Register(Local(kRkey), "test"));
  EXPECT_TRUE(Granted(Run(0, 8)));
}

// Also of those that share a place in the array of the ones used last.
TEST_F(Regions, AClosedOneGrantsNothingAndIsTold) {
  ASSERT_OK_AND_ASSIGN(auto one, map_->Register(Local(1), "test"));
  ASSERT_OK_AND_ASSIGN(auto other, map_->Register(Local(65), "test"));
  EXPECT_TRUE(Granted(Run(0, 8, 1)));
  EXPECT_TRUE(Granted(Run(0, 8, 65)));
  one.reset();
  EXPECT_EQ(closed_, std::vector<uint32_t>{1});
  EXPECT_FALSE(Granted(Run(0, 8, 1)));
  EXPECT_FALSE(map_->Knows(1));
  EXPECT_TRUE(Granted(Run(0, 8, 65)));
  other.reset();
  EXPECT_FALSE(Granted(Run(0, 8, 65)));
}

TEST_F(Regions, OutliveTheirMap) {
  ASSERT_OK_AND_ASSIGN(auto region, map_->Register(Local(kRkey), "test"));
  map_.reset();
  region.reset();
  EXPECT_TRUE(closed_.empty());
}

// While other threads register, the driver looks regions up and closes some.
TEST_F(Regions, AreRegisteredOnAnyThread) {
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kEach = 500;
  ASSERT_OK_AND_ASSIGN(const auto known, map_->Register(Local(kRkey), "test"));
  std::vector<std::unique_ptr<Registration>> made(size_t{kThreads} * kEach);
  std::atomic<uint32_t> running = kThreads;
  std::vector<std::jthread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (uint32_t i = 0; i < kEach; ++i) {
        const uint32_t at = t * kEach + i;
        auto region = map_->Register(Local(1000 + at), "test");
        if (region.ok()) made[at] = *std::move(region);
      }
      --running;
    });
  }
  while (running > 0) {
    EXPECT_TRUE(Granted(Run(0, 8)));
    EXPECT_FALSE(Granted(Run(0, 8, 5)));
    ASSERT_OK_AND_ASSIGN(const auto brief, map_->Register(Local(6), "test"));
    EXPECT_TRUE(Granted(Run(0, 8, 6)));
  }
  threads.clear();
  for (size_t i = 0; i < made.size(); ++i) {
    ASSERT_NE(made[i], nullptr) << i;
    EXPECT_TRUE(Granted(Run(0, 8, 1000 + static_cast<uint32_t>(i))));
  }
}

class Keys : public ::testing::Test {
 protected:
  bool Have(BlockPosition first, uint64_t bytes) const {
    return HaveKeys({.view = &view_, .first = first, .bytes = bytes, .pieces = 1});
  }

  const RkeyOnly key_{kRkey};
  std::array<const RemoteKey*, 2> keys_{&key_, nullptr};
  BlockView view_{.keys = keys_};
};

TEST_F(Keys, OfTheDescriptorsOfARangeCount) {
  EXPECT_TRUE(HaveKeys({}));
  const std::array<Block, 4> blocks{
      Block{.bytes = 8, .remote_region = 0}, Block{.bytes = 0, .remote_region = 1},
      Block{.bytes = 8, .remote_region = 0}, Block{.bytes = 8, .remote_region = 1}};
  view_.descriptors = blocks;
  EXPECT_TRUE(Have({}, 16));
  EXPECT_FALSE(Have({}, 17));
  EXPECT_TRUE(Have({.offset = 3}, 13));
  EXPECT_FALSE(Have({.offset = 3}, 14));
  EXPECT_FALSE(Have({.id = 3, .offset = 7}, 1));
}

TEST_F(Keys, OfThePairsOfARangeCount) {
  const PagedRegion region{.base = 0, .block_bytes = 8, .stride = 16, .count = 10};
  const auto pair = [&](uint32_t remote, uint32_t ids, uint32_t pieces) {
    return BlockPair{.local = region,
                     .remote = region,
                     .remote_region = remote,
                     .id_count = ids,
                     .pieces = pieces};
  };
  const std::array<BlockPieces, 1> block_pieces{
      BlockPieces{.bytes = 2, .dims = {{{4, 0, 0}}}, .dim_count = 1}};
  const std::array<BlockPair, 4> pairs{pair(0, 2, BlockPair::kOnePiece), pair(1, 0, 0),
                                       pair(0, 2, 0), pair(1, 1, BlockPair::kOnePiece)};
  view_.pairs = pairs;
  view_.block_pieces = block_pieces;
  EXPECT_TRUE(Have({}, 32));
  EXPECT_FALSE(Have({}, 33));
  EXPECT_TRUE(Have({.id = 1, .offset = 5}, 19));
  EXPECT_FALSE(Have({.id = 1, .offset = 5}, 20));
  EXPECT_TRUE(Have({.pair = 2, .id = 1, .piece = 2, .offset = 1}, 3));
  EXPECT_FALSE(Have({.pair = 2, .id = 1, .piece = 2, .offset = 1}, 4));
  EXPECT_FALSE(Have({.pair = 3}, 1));
}

TEST(WireRun, SurvivesTheWire) {
  std::array<std::byte, kWireRunBytes> bytes;
  Encode(WireRun{.address = 0x0123456789abcdef, .bytes = 0xfedcba98, .rkey = 3}, bytes);
  EXPECT_EQ(bytes[0], std::byte{0xef});
  const WireRun back = DecodeWireRun(bytes);
  EXPECT_EQ(back.address, 0x0123456789abcdefu);
  EXPECT_EQ(back.bytes, 0xfedcba98u);
  EXPECT_EQ(back.rkey, 3u);
}

}  // namespace
}  // namespace kvxfer::net
