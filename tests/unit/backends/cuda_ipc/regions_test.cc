// What a peer says of its regions, taken for a stranger's word; and how regions of many allocations
// are gone through.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "src/backends/cuda_ipc/peer_region.h"
#include "src/cuda/watched_span.h"
#include "tests/support/scale.h"
#include "tests/support/status_macros.h"

namespace kvxfer::cuda_ipc {
namespace {

using ::kvxfer::testing::Fails;
constexpr uint64_t kBase = 0x7f0000000000;
using testing::kMiB;

TEST(CudaIpcRegions, ARegionThatCannotBeIsRefused) {
  const auto begins = [](const std::function<void(RegionPacket&)>& change) {
    RegionPacket packet{.region = 1, .base = kBase, .bytes = 4 * kMiB, .access = 3, .parts = 2};
    change(packet);
    return PeerRegion::Begin(packet, {}).status();
  };
  EXPECT_OK(begins([](RegionPacket&) {}));
  for (const auto& change : std::vector<std::function<void(RegionPacket&)>>{
           [](RegionPacket& p) { p.bytes = 0; },
           [](RegionPacket& p) { p.base = UINT64_MAX - kMiB; },
           [](RegionPacket& p) { p.parts = 0; },
           [](RegionPacket& p) { p.parts = 1 << 20; },
           [](RegionPacket& p) { p.access = 4; },
       }) {
    EXPECT_TRUE(Fails(begins(change), absl::StatusCode::kInvalidArgument));
  }
}

TEST(CudaIpcRegions, PartsFollowEachOtherAndEndWithTheRegion) {
  const RegionPacket packet{.base = kBase, .bytes = 4 * kMiB, .access = 3, .parts = 2};
  const auto part = [](const std::function<void(PartPacket&)>& change) {
    PartPacket out{.base = kBase,
                   .bytes = kMiB,
                   .allocation_base = kBase - kMiB,
                   .allocation_bytes = 2 * kMiB,
                   .form = HandleForm::kFile,
                   .kind = 1};
    change(out);
    return out;
  };
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<PeerRegion> region, PeerRegion::Begin(packet, {}));
  EXPECT_OK(region->Check(part([](PartPacket&) {})));
  for (const auto& change : std::vector<std::function<void(PartPacket&)>>{
           [](PartPacket& p) { p.base += 1; },
           [](PartPacket& p) { p.bytes = 0; },
           [](PartPacket& p) { p.bytes = 4 * kMiB; },
           [](PartPacket& p) { p.bytes = UINT64_MAX; },
           [](PartPacket& p) { p.allocation_base = kBase + 1; },
           [](PartPacket& p) { p.allocation_bytes = 2 * kMiB - 1; },
           [](PartPacket& p) { p.allocation_bytes = UINT64_MAX; },
           [](PartPacket& p) { p.kind = 9; },
           [](PartPacket& p) { p.form = HandleForm{4}; },
       }) {
    EXPECT_TRUE(Fails(region->Check(part(change)), absl::StatusCode::kInvalidArgument));
  }
  region->Skip(part([](PartPacket&) {}));
  EXPECT_FALSE(region->whole());
  const auto rest = [&](uint64_t bytes) {
    return part([bytes](PartPacket& p) {
      p.base = p.allocation_base = kBase + kMiB;
      p.bytes = p.allocation_bytes = bytes;
    });
  };
  EXPECT_TRUE(Fails(region->Check(rest(2 * kMiB)), absl::StatusCode::kInvalidArgument));
  EXPECT_OK(region->Check(rest(3 * kMiB)));
  region->Skip(rest(3 * kMiB));
  EXPECT_TRUE(region->whole());
  EXPECT_TRUE(Fails(region->Check(rest(3 * kMiB)), absl::StatusCode::kInvalidArgument));
}

TEST(CudaIpcRegions, EveryAddressIsInItsPart) {
  std::vector<cuda::Allocation> parts;
  uint64_t end = kBase;
  for (uint64_t i = 0; i < 100; ++i) {
    parts.push_back({.base = end, .bytes = 1 + i % 7});
    end += parts.back().bytes;
  }
  for (uint64_t at = kBase; at < end; ++at) {
    for (const size_t hint : {size_t{0}, size_t{50}, size_t{99}, size_t{1000}}) {
      const size_t found = cuda::PartAt(parts, at, hint);
      ASSERT_LT(found, parts.size());
      EXPECT_GE(at, parts[found].base);
      EXPECT_LT(at, parts[found].base + parts[found].bytes);
    }
  }
}

}  // namespace
}  // namespace kvxfer::cuda_ipc
