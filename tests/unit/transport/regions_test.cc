#include "src/transport/regions.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <optional>
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
                    {"test", "rkey of region"}));
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
